"""``iotrace export``: dftracer's own tools read what it writes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from iotrace.sources.dftracer.call_reader import read_posix
from iotrace.sources.session import open_session
from tests.support.runs import Run


def export(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "iotrace", "export", *arguments], capture_output=True, text=True
    )


def tool(name: str, *arguments: str) -> str:
    """The output of one of dftracer's programs, which lie beside the interpreter."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / name), *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dftracers_tools_count_every_event(unet_run: Run, tmp_path: Path) -> None:
    path = tmp_path / "unet.pfw.gz"
    done = export(str(unet_run.session), "--format", "dftracer", "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["events"]
    assert set(counts) == {"step", "wait", "batch", "item", "collate", "read path", "phase", "posix"}
    session = open_session(unet_run.session)
    spans = sum(len(process.spans) for process in session.processes)
    assert counts["item"] + counts["collate"] + counts["read path"] + counts["phase"] == spans
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert sum(counts.values()) == sum(line["ph"] == 1 for line in lines)
    assert "0 failed" in tool("dftracer_validate", "--files", str(path))
    index = ("--index-dir", str(tmp_path))
    assert int(tool("dftracer_event_count", "-d", str(tmp_path), *index)) == sum(counts.values())
    stats = tool("dftracer_stats", "-d", str(tmp_path), *index)
    assert all(category in stats for category in ("pipeline", "dataloader", "data", "reader"))


def test_events_tell_their_batch_their_file_and_whole_microseconds(unet_run: Run, tmp_path: Path) -> None:
    path = tmp_path / "unet.pfw"
    assert export(str(unet_run.session), "--format", "dftracer", "-o", str(path)).returncode == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    files = {line["args"]["value"]: line["args"]["name"] for line in lines if line["name"] == "FH"}
    hosts = {line["args"]["value"] for line in lines if line["name"] == "HH"}
    events = [line for line in lines if line["ph"] == 1]
    assert all(type(line[key]) is int for line in events for key in ("ts", "dur", "pid", "tid", "id"))
    assert {line["args"]["hhash"] for line in events} == hosts
    reads = [line for line in events if line["name"] == "h5py.Dataset.__getitem__"]
    assert {Path(files[line["args"]["fhash"]]).suffix for line in reads} == {".h5"}
    assert all(line["args"]["size"] > 0 and line["args"]["epoch"] >= 0 for line in reads)
    made = Counter(
        (line["args"]["epoch"], line["args"]["step"]) for line in events if line["name"] == "batch"
    )
    assert {(line["args"]["epoch"], line["args"]["step"]) for line in reads} == set(made)
    # Our own reader takes it for a log of dftracer's, with the reads' files.
    assert set(read_posix(tmp_path).files) == set(files.values())


def test_dftracers_tools_read_what_a_run_leaves_of_posix_calls(unet_run: Run, tmp_path: Path) -> None:
    directory = unet_run.session / "posix"
    logs = sorted(directory.glob("*.pfw.gz"))
    session = open_session(unet_run.session)
    assert len(logs) == len(session.calls.by_process())
    lines = [json.loads(line) for log in logs for line in gzip.decompress(log.read_bytes()).splitlines()]
    events = [line for line in lines if line["ph"] == 1]
    assert sum(line["args"]["calls"] for line in events) == session.calls.made
    reads = [line for line in events if line["name"] == "pread64"]
    assert {line["cat"] for line in events} == {"POSIX"}
    whole = session.calls.where(session.calls.named(["pread64"])).result.sum()
    assert sum(line["args"]["ret"] for line in reads) == whole
    assert int(tool("dftracer_event_count", "-d", str(directory), "--index-dir", str(tmp_path))) == len(
        events
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nowhere", "--format", "dftracer", "-o", "x.pfw.gz"], 1, "nowhere"),
        (["SESSION", "--format", "dftracer", "-o", "missing/x.pfw.gz"], 1, "cannot write"),
        (["SESSION", "--format", "dftracer", "-o", "/dev/null"], 1, "no regular file"),
        (["SESSION", "--format", "otf2", "-o", "x.pfw.gz"], 2, "--format is dftracer"),
        (["SESSION", "--format", "dftracer"], 2, "-o FILE is missing"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(
    unet_run: Run, tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    words = [word.replace("SESSION", str(unet_run.session)) for word in arguments]
    words = [f"{tmp_path}/{word}" if word.endswith(".gz") else word for word in words]
    done = export(*words)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
