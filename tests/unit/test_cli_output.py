"""What every command does where its output cannot be shown or written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotrace import cli
from iotrace.cli.open import _is_plain_text
from iotrace.cli.trial import FEWEST_RUNS
from iotrace.trying.proof import FEWEST_PAIRS
from tests.support.runs import in_process


def iotrace(
    *words: str, stdout: object = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "iotrace", *words],
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        timeout=60,
    )


def test_a_full_disk_is_a_sentence() -> None:
    with open("/dev/full", "wb") as full:
        done = iotrace("schema", "doctor", stdout=full)
    assert (done.returncode, done.stderr) == (
        1,
        b"iotrace: the output cannot be written: No space left on device\n",
    )


def test_a_reader_that_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = iotrace("schema", "doctor", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_encoding_does_not_have_is_replaced(encoding: str) -> None:
    done = iotrace("doctor", "--", "/no/such/command", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"> check its name and PATH" in done.stdout


def test_json_is_utf8_and_holds_names_that_are_not(tmp_path: Path) -> None:
    data = os.fsencode(tmp_path) + b"/\xff \xc3\xa9"
    os.mkdir(data)
    done = iotrace(
        "doctor", "--json", "--data", os.fsdecode(data), "--", "/bin/true", PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    found = {check["id"]: check["what"] for check in json.loads(done.stdout)["checks"]}
    assert found["data"].startswith(f"{tmp_path}/� é is on ")


@pytest.mark.parametrize(("cause", "code"), [(KeyboardInterrupt(), 130), (ValueError(), None)])
def test_an_interrupt_within_a_class_that_is_being_made(
    monkeypatch: pytest.MonkeyPatch, cause: BaseException, code: int | None
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("Error calling __set_name__") from cause

    monkeypatch.setattr(cli.app, "invoke", fails)
    if code is None:
        with pytest.raises(RuntimeError):
            cli._main(["ls"])
    else:
        assert cli._main(["ls"]) == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "--view", "kernals"], "there is no --view kernals: did you mean kernels?"),
        (["report", "--format", "xml"], "--format is text, md or json, not xml"),
        (["report", "-o", "page.html"], "there is no option -o: --html FILE writes a page"),
        (["compare", "-o", "page.html"], "there is no option -o: --html FILE writes a page"),
        (["ls", "-o", "list"], "there is no option -o"),
        (["try", "none", "--runs", "5"], "--runs takes a whole number of at least 6"),
        (["explain", "slow-decodin"], "IO102 slow-decoding, "),
        (["rules", "zarr", "nosuchword"], "no rule has the words zarr nosuchword"),
    ],
)
def test_wrong_words_are_answered_with_what_may_be_meant(words: list[str], said: str) -> None:
    done = in_process(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_rules_are_found_by_words() -> None:
    every = in_process("rules").stdout
    found = in_process("rules", "Chunks", "h5py").stdout
    assert "IO102 slow-decoding" in found
    assert "IO204" not in found
    assert len(found) < len(every)
    listed = json.loads(in_process("rules", "slow-decod", "--json").stdout)["rules"]
    assert [each["code"] for each in listed] == ["IO102"]


def test_try_refuses_as_few_runs_as_prove_nothing() -> None:
    assert FEWEST_RUNS == 2 * FEWEST_PAIRS


@pytest.mark.parametrize(
    ("text", "opened"),
    [("hello\nthis is caf\u00e9", False), ('{"traceEvents": []}', True), ("# tracer: nop", True)],
)
def test_only_plain_text_is_not_opened(tmp_path: Path, text: str, opened: bool) -> None:
    file = tmp_path / "trace.txt"
    file.write_text(text)
    assert _is_plain_text(file) is not opened
    if not opened:
        done = in_process("open", str(file))
        assert (done.returncode, f"{file} is no trace that iotrace knows" in done.stderr) == (1, True)


def test_binary_traces_are_no_plain_text(tmp_path: Path) -> None:
    file = tmp_path / "trace.pftrace"
    file.write_bytes(b"\x0a\x05hello\x00\xff")
    assert not _is_plain_text(file)
