"""What a session must not hold: the values of secrets on command lines."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from iotrace.session.masks import MASK, is_secret, masked, masked_text
from tests.support.texts import any_text

SECRET = "sk-4f1d"


@pytest.mark.parametrize(
    "given",
    [
        ["train.py", "--api-key", SECRET, "--epochs", "3"],
        ["train.py", f"--api-key={SECRET}"],
        ["train.py", f"--api_key={SECRET},{SECRET}"],
        ["train.py", "--hf-token", SECRET],
        ["train.py", "-password", SECRET],
        ["env", f"WANDB_API_KEY={SECRET}", "python", "train.py"],
        ["train.py", f"logger.wandb.token={SECRET}", "+trainer.max_epochs=3"],
        ["train.py", f"--apiKey={SECRET}"],
        ["train.py", f"AWS_SECRET_ACCESS_KEY={SECRET}"],
        ["train.py", f"--config={{'password': '{SECRET}', 'lr': 1}}"],
        ["train.py", f'--config={{"api_key": "{SECRET} and more", "lr": 1}}'],
        ["sh", "-c", f"export HF_TOKEN={SECRET}; python train.py"],
        ["sh", "-c", f"python train.py --api-key {SECRET} --epochs 3"],
        ["sh", "-c", f"python train.py --password '{SECRET} {SECRET}' --epochs 3"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}"],
        ["train.py", f"s3://user:{SECRET}@host/bucket"],
        ["train.py", f"https://host/data?token={SECRET}&page=1"],
        ["train.py", "--secrets", SECRET],
        ["python", "-c", f"subprocess.run(['wandb', '--api-key', '{SECRET}', '-v'])"],
    ],
)
def test_a_secret_is_masked(given: list[str]) -> None:
    shown = masked(given)
    assert len(shown) == len(given)
    assert SECRET not in " ".join(shown)
    assert MASK in " ".join(shown)


@pytest.mark.parametrize(
    "line",
    [
        "train.py --data /data/keyboard/tokens.h5 --epochs 3",
        "train.py --max-tokens 2048 --tokenizer gpt2",
        "train.py --lr=0.1 model.depth=12 s3://bucket/key/data?part=1",
        "python -c print('time:12:30') http://host:80/path@2x.png",
        "train.py --num-workers 4 -- --verbose key",
    ],
)
def test_other_words_are_kept(line: str) -> None:
    assert masked(line.split()) == line.split()


def test_what_follows_is_kept() -> None:
    line = f"python train.py --api-key {SECRET} --epochs 3; HF_TOKEN='{SECRET}' python eval.py"
    assert masked_text(line) == line.replace(SECRET, MASK)
    assert masked(["--password", "--verbose"]) == ["--password", "--verbose"]


@given(st.lists(any_text()))
def test_any_command_line_keeps_its_length(arguments: list[str]) -> None:
    shown = masked(arguments)
    assert len(shown) == len(arguments)
    assert masked(shown) == shown


@given(st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1))
def test_a_value_of_any_letters_is_masked(value: str) -> None:
    assert masked(["--api-key", value, f"--token={value}"]) == ["--api-key", MASK, f"--token={MASK}"]


def test_names() -> None:
    secret = ["API_KEY", "--hf-token", "dbPassword", "SSH_PASSPHRASE", "GOOGLE_CREDENTIALS", "secrets"]
    assert all(map(is_secret, secret))
    assert not any(map(is_secret, ["max_tokens", "tokenizer", "keyboard", "PATH", "--epochs"]))
