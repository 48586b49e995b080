"""What every command does where its output cannot be shown or written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotrace import cli


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
