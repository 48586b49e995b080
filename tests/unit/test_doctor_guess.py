"""What the doctor reads from a command's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotrace.doctor.command import guess_data, parse_demand


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        ("train.py --workers 4", 4),
        ("train.py --num-workers=3", 3),
        ("train.py dataloader.num_workers.training=8", 8),
        ("train.py --data.num_workers 2", 2),
        ("train.py --workers-dir 5", None),
        ("train.py --coworkers=5", None),
        ("train.py --workers", None),
        ("train.py --persistent_workers=1 --num_workers=8", 8),
        ("train.py --persistent-workers 1", None),
        ("train.py --workers 2 --data.num_workers.training=3", 3),
        ("train.py --dataloader_num_workers 4", 4),
    ],
)
def test_workers_that_the_command_asks_for(words: str, workers: int | None) -> None:
    assert parse_demand(["python", *words.split()]).workers == workers


def test_ranks_that_the_launcher_is_told_to_start() -> None:
    assert parse_demand(["torchrun", "--nproc_per_node", "8", "train.py"]).ranks == 8
    assert parse_demand(["torchrun", "--nproc-per-node=2", "train.py"]).ranks == 2
    assert parse_demand(["torchrun", "--nproc_per_node", "gpu", "train.py"]).ranks == 1
    assert parse_demand([]).ranks == 1


def test_a_guess_at_the_data(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert guess_data(["python", "train.py", "--lr", "1"], tmp_path) is None
    (tmp_path / "data").mkdir()
    assert guess_data(["python", "train.py", "--lr", "1"], tmp_path) == Path("data")
    (tmp_path / "set").mkdir()
    assert guess_data(["python", "train.py", "--dataset=set"], tmp_path) == Path("set")
    assert guess_data(["python", "train.py", "set", "data"], tmp_path) == Path("data")


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        ("env PYTHONPATH=lib python train.py --data set", "set"),
        ("python -m train", None),
        ("torchrun --log-dir=logs train.py --data set", "set"),
        ("torchrun --log-dir logs train.py", None),
        ("python train.py lib --data-dir set", "set"),
        ("python train.py --output=logs data.path=set", "set"),
        ("python train.py --verbose set", None),
        ("python train.py --data elsewhere lib", None),
    ],
)
def test_what_is_no_data_is_not_guessed(tmp_path: Path, words: str, guess: str | None) -> None:
    for name in ("lib", "logs", "set", "train"):
        (tmp_path / name).mkdir()
    assert guess_data(words.split(), tmp_path) == (Path(guess) if guess else None)
