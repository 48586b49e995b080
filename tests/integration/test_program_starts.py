"""Programs that start others: no call is lost, and nothing is said on their standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.session import open_session
from tests.support.runs import run_script, run_traced

PROGRAM = """
import json, os, subprocess, sys
data = os.open("data.bin", os.O_RDONLY)
reads, said = 0, []
for start in range(40):
    for place in range(start % 7 + 1):
        reads += os.pread(data, 8, place) == b"8 bytes!"[place:] + b"8 bytes!"[:place]
    arguments = [f"argument-{start}-{number}-{'x' * 30}" for number in range(12)]
    # Found by PATH, after a dozen misses; what the child says comes to the same standard error, or here.
    done = subprocess.run(["true", *arguments], stderr=subprocess.PIPE if start % 2 else None)
    said.append((done.stderr or b"").decode())
print(json.dumps({"pid": os.getpid(), "reads": reads, "said": "".join(said)}))
"""

SPAWNING = """
import multiprocessing, os
def read(number):
    data = os.open("data.bin", os.O_RDONLY)
    return sum(len(os.pread(data, 8, place)) == 8 for place in range(number + 20))
if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        print(sum(pool.map(read, range(6), chunksize=1)))
        pool.close()
        pool.join()
"""

WAYS = """
import errno, os, subprocess, sys
def start(*arguments, **keywords):
    try:
        done = subprocess.run(*arguments, **keywords)
        print(done.returncode)
    except OSError as error:
        print(type(error).__name__, errno.errorcode[error.errno], error.filename)
        traceback = error.__traceback__
        while traceback is not None:
            assert "iotrace" not in traceback.tb_frame.f_code.co_filename
            traceback = traceback.tb_next
os.makedirs("first"); os.makedirs("second")
open("first/tool", "w").close()  # not executable: the search goes on
open("first/plain", "w").close()
open("second/tool", "w").write("#!/bin/sh\\nexit 7\\n"); os.chmod("second/tool", 0o755)
here = os.getcwd()
os.environ["PATH"] = f"{here}/none:{here}/first:{here}/second:{here}/none/either"
start(["tool"])
start(["absent"])
start(["plain"])
start(["absent"], umask=0o22, start_new_session=True)
start([f"{here}/absent"])
start([here])
start([f"{here}/first/tool"])
start(["./absent"], cwd="second")
start(["./tool"], cwd="second")
start(["absent"], executable=f"{here}/data.bin/below")
reads = os.open("data.bin", os.O_RDONLY)
for _ in range(50):
    os.pread(reads, 1, 0)
start(["tool"], preexec_fn=lambda: None)
start(["tool"], env={"PATH": f"{here}/data.bin:second"})
start(["tool"], env={"PATH": f"{here}/data.bin:second"}, cwd=here)
start(["tool"], env={"PATH": f"{here}/data.bin"})
if sys.version_info >= (3, 11):
    start(["tool"], process_group=0)
"""


ENDING = """
import os, subprocess
data = os.open("data.bin", os.O_RDONLY)
for _ in range(3):
    os.pread(data, 8, 0)
open("tool", "w").write("#!/not/there\\n"); os.chmod("tool", 0o755)
try:
    subprocess.run(["./tool"])
except FileNotFoundError:
    print("not found")
for _ in range(5):
    os.pread(data, 8, 0)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "data.bin").write_bytes(b"8 bytes!" * 100)
    return tmp_path


def reads_of(calls: PosixCalls) -> dict[str, int]:
    """How many calls of ``pread`` there were, by file."""
    own = calls.where(calls.named(["pread64"]))
    found: Counter[str] = Counter()
    for file, made in zip(own.file.tolist(), own.calls.tolist(), strict=True):
        found[calls.files[file]] += made
    return dict(found)


def search_path() -> str:
    """A PATH with many places at which nothing is."""
    return ":".join([*(f"/opt/none-{number}/bin" for number in range(12)), os.environ["PATH"]])


def test_no_call_is_lost_where_others_are_started(place: Path) -> None:
    program = place / "program.py"
    program.write_text(PROGRAM)
    run = run_traced(place, [str(program)], ["--quiet"], PATH=search_path())
    told = json.loads(run.stdout)
    alone = subprocess.run(
        [sys.executable, str(program)],
        cwd=place,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": search_path()},
    )
    assert run.stderr == alone.stderr
    assert told["said"] == json.loads(alone.stdout)["said"]
    session = open_session(run.session)
    own = session.calls.where(session.calls.pid == told["pid"])
    assert reads_of(own) == {str(place / "data.bin"): told["reads"]}
    assert told["reads"] > 100
    assert session.calls.problems == []
    assert not list(run.session.glob("processes/*/agent.log"))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_no_call_is_lost_where_workers_are_spawned(place: Path, method: str) -> None:
    run = run_script(place, SPAWNING.replace("{method}", method))
    session = open_session(run.session)
    assert reads_of(session.calls) == {str(place / "data.bin"): int(run.stdout)}
    assert int(run.stdout) == sum(range(20, 26))
    assert session.calls.problems == []
    assert "unable to write" not in run.stderr


def test_programs_are_found_and_fail_as_without(place: Path) -> None:
    elsewhere = place / "alone"
    elsewhere.mkdir()
    (elsewhere / "data.bin").write_bytes(b"")
    alone = subprocess.run([sys.executable, "-c", WAYS], cwd=elsewhere, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    run = run_script(place, WAYS)
    assert run.stdout == alone.stdout.replace(str(elsewhere), str(place))
    assert alone.stdout.splitlines()[0] == "7"
    # A start that fails ends in the child, which shares the memory: recording goes on.
    calls = open_session(run.session).calls
    assert reads_of(calls) == {str(place / "data.bin"): 50}
    assert calls.problems == []
    assert "unable to" not in run.stderr
    assert not list(run.session.glob("processes/*/agent.log"))


def test_a_failed_start_loses_nothing(place: Path) -> None:
    run = run_script(place, ENDING)
    assert run.stdout == "not found\n"
    assert reads_of(open_session(run.session).calls) == {str(place / "data.bin"): 8}


def test_a_failed_start_does_not_end_dftracer(place: Path) -> None:
    (place / "program.py").write_text(ENDING)
    run = run_traced(place, ["program.py"], ["--quiet", "--torch-steps", "off", "--io-by", "dftracer"])
    assert run.stdout == "not found\n"
    assert reads_of(open_session(run.session).calls) == {"data.bin": 8}
    assert run.report()["session"]["complete"] is True
