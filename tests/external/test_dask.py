"""``--dask`` on real schedulers and workers: the same results, and a sentence for each failure."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.benchmarks.big import write_session

from iotrace.cluster import LOCAL, connected
from iotrace.errors import IotraceError
from tests.support.runs import in_process
from tests.support.waiting import eventually

DATA = Path(__file__).parent.parent / "data"
# What stands first on the path of the workers of one test: `import iotrace` fails, or finds another version.
MISSING = "raise ModuleNotFoundError('no module named iotrace')"
OTHER = "__version__ = '9.9'\nclass compiled:\n    available = staticmethod(lambda: True)"


@contextmanager
def started(*words: str, path: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of Dask's until the block ends."""
    before = [] if path is None else [str(path)]
    entries = [*before, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entries)}
    process = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.dask_{words[0]}", *words[1:]],
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def scheduler(directory: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A scheduler without workers: its address and its process."""
    import json

    file = directory / "scheduler.json"
    words = ["scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard"]
    with started(*words, "--scheduler-file", str(file)) as process:
        eventually(file.exists)
        eventually(lambda: file.read_text().rstrip().endswith("}"))
        yield json.loads(file.read_text())["address"], process


@contextmanager
def workers(address: str, directory: Path, path: Path | None = None) -> Iterator[None]:
    """A worker process with two threads."""
    words = ["worker", address, "--nthreads", "2", "--no-nanny", "--no-dashboard"]
    with started(*words, "--local-directory", str(directory), path=path):
        yield


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "session"
    write_session(path, 60, loaders=1, workers=2, ranks=3, calls=2)
    return path


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("dask")
    with scheduler(directory) as (address, _), workers(address, directory):
        yield address


def test_a_report_of_a_session_is_the_same(session: Path, address: str) -> None:
    bare = in_process("report", str(session), "--json")
    done = in_process("report", str(session), "--json", "--dask", address)
    assert (done.returncode, done.stderr) == (0, bare.stderr)
    assert done.stdout == bare.stdout


@pytest.mark.parametrize("where", ["address", LOCAL])
def test_a_merge_is_the_same(session: Path, address: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    assert in_process("merge", str(session), "-o", str(tmp_path / "here/all.pftrace")).returncode == 0
    to = ["--dask", LOCAL if where == LOCAL else address]
    done = in_process("merge", str(session), "-o", str(tmp_path / "there/all.pftrace"), *to)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here/all.pftrace").read_bytes() == (tmp_path / "there/all.pftrace").read_bytes()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["all.pftrace"]


def test_a_report_of_traces_is_the_same(address: str) -> None:
    traces = sorted(map(str, DATA.glob("*.json.gz")))[:2]
    bare = in_process("report", *traces, "--json")
    done = in_process("report", *traces, "--json", "--dask", address)
    assert (done.returncode, done.stdout) == (0, bare.stdout)


def test_a_report_of_traces_one_of_which_is_cut_is_the_same(address: str, tmp_path: Path) -> None:
    traces = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(traces):
        whole = gzip.decompress((DATA / f"gloo_rank{rank}.json.gz").read_bytes())
        path.write_bytes(whole[: len(whole) // (1 + rank)])
    words = ["report", *map(str, traces), "--json"]
    bare, done = in_process(*words), in_process(*words, "--dask", address)
    assert (done.returncode, done.stdout, done.stderr) == (0, bare.stdout, bare.stderr)
    assert '"complete": false' in done.stdout


def test_what_a_task_says_of_its_input_is_said_here(address: str, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("neither JSON nor a trace")
    done = in_process("report", str(tmp_path / "no.json"), "--dask", address)
    bare = in_process("report", str(tmp_path / "no.json"))
    assert (done.returncode, done.stderr) == (1, bare.stderr)


@pytest.mark.parametrize("address", ["nonsense", "foo://localhost:1"])
def test_no_address_is_wrong_usage(session: Path, address: str) -> None:
    done = in_process("report", str(session), "--dask", address)
    assert done.returncode == 2
    assert "such as --dask tcp://HOST:8786" in done.stderr


def test_a_scheduler_that_is_gone(session: Path) -> None:
    done = in_process("report", str(session), "--dask", "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in done.stderr
    assert "--dask local" in done.stderr


@pytest.mark.parametrize(
    ("module", "said"), [(MISSING, "iotrace cannot be imported by 1 Dask worker"), (OTHER, "has iotrace 9.9")]
)
def test_workers_without_this_iotrace(session: Path, tmp_path: Path, module: str, said: str) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/iotrace.py").write_text(module)
    with scheduler(tmp_path) as (address, _), workers(address, tmp_path, tmp_path / "first"):
        done = in_process("report", str(session), "--dask", address)
    assert done.returncode == 1
    assert said in done.stderr
    assert "pip install iotrace-agent==" in done.stderr


def test_workers_that_do_not_see_a_file(address: str) -> None:
    with connected(address) as cluster, pytest.raises(IotraceError, match="does not see /no/such/session"):
        cluster.check_sees([Path("/no/such/session")])


def _wait_for_the_end(began: str) -> None:
    Path(began).touch()
    threading.Event().wait()


def test_a_scheduler_that_dies_in_mid_job(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with scheduler(tmp_path) as (address, process), workers(address, tmp_path), connected(address) as cluster:

        def kill() -> None:
            eventually(began.exists)
            os.kill(process.pid, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        with pytest.raises(IotraceError, match="went away in mid-job") as caught:
            cluster.map(_wait_for_the_end, [str(began)])
    assert "leave --dask out" in caught.value.remedy
