"""The agent gets into every Python process of the command, once, quickly, and unseen."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from iotrace.session import names
from iotrace.sources.records import Process, read_processes
from tests.support.runs import PROJECT, run_script

TREE = """
import json, multiprocessing, os, subprocess, sys

def child(queue):
    queue.put(os.getpid())

if __name__ == "__main__":
    pids = {"main": os.getpid()}
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        pids[method] = queue.get()
        process.join()
    for name, options in (("subprocess", []), ("isolated", ["-I"]), ("no environment", ["-E"])):
        print_pid = [sys.executable, *options, "-c", "import os; print(os.getpid())"]
        pids[name] = int(subprocess.run(print_pid, capture_output=True, text=True).stdout)
    forked = os.fork()
    if forked == 0:
        os._exit(0)
    os.waitpid(forked, 0)
    pids["os.fork"] = forked
    print(json.dumps(pids))
"""


def test_every_way_to_a_python_process(tmp_path: Path) -> None:
    run = run_script(tmp_path, TREE)
    assert run.code == 0, run.stderr
    pids = json.loads(run.stdout)
    found: dict[int, list[Process]] = {}
    for process in read_processes(run.session):
        found.setdefault(process.pid, []).append(process)
    for name, pid in pids.items():
        assert len(found.get(pid, [])) == 1, name
    roles = {name: found[pid][0].identity.role for name, pid in pids.items()}
    assert roles == {
        "main": "main",
        "fork": "forked",
        "spawn": "spawned",
        "forkserver": "forked",
        "subprocess": "main",
        "isolated": "main",
        "no environment": "main",
        "os.fork": "forked",
    }
    # multiprocessing's own helpers are known for what they are: none of them is a process of ours.
    assert all(
        "resource_tracker" not in " ".join(process.identity.argv)
        for processes in found.values()
        for process in processes
    )
    assert not list(run.session.glob(f"{names.PROCESSES}/*/{names.LOG}"))


VISIBLE = """
import json, signal, sys, threading
print(json.dumps({
    "threads": [thread.name for thread in threading.enumerate()],
    "path": sys.path,
    "heavy": sorted({"typing", "numpy", "torch"} & set(sys.modules)),
    "signals": [str(signal.getsignal(number)) for number in (2, 6, 13, 15)],
}))
"""


def test_the_program_sees_what_it_sees_without_iotrace(tmp_path: Path) -> None:
    run = run_script(tmp_path, VISIBLE)
    program = next(tmp_path.glob("program_*.py"))
    bare = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(run.stdout) == json.loads(bare.stdout)


def test_an_interpreter_without_iotrace_is_reached_through_pythonpath(tmp_path: Path) -> None:
    environment = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    script = tmp_path / "who.py"
    script.write_text("import sys, os; print(os.getpid(), 'iotrace' in sys.modules, sys.path[1:2])")
    command = [sys.executable, "-m", "iotrace", "run", "-o", str(tmp_path / "session"), "--"]
    done = subprocess.run(
        [*command, str(environment / "bin" / "python"), str(script)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout.split()[0])
    (process,) = read_processes(tmp_path / "session")
    assert process.pid == pid
    assert process.ended
    assert str(PROJECT) not in done.stdout


def test_start_up_costs_fifteen_milliseconds_at_most(tmp_path: Path) -> None:
    """Interleaved pairs of an empty program with and without the agent; dftracer's cost is its own."""
    (tmp_path / names.PROCESSES).mkdir()
    bare = {key: value for key, value in os.environ.items() if key != names.SETTINGS_VARIABLE}
    traced = {**bare, names.SETTINGS_VARIABLE: names.encode_settings({"session": str(tmp_path)})}

    def seconds(environment: dict[str, str]) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
        return time.perf_counter() - start

    seconds(traced)
    differences_ms = [1e3 * (seconds(traced) - seconds(bare)) for _ in range(25)]
    assert list((tmp_path / names.PROCESSES).iterdir())
    print(f"agent start-up: median {statistics.median(differences_ms):.1f} ms")
    assert statistics.median(differences_ms) <= 15


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(directory), str(PROJECT)]
    subprocess.run(line, check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return built


def test_the_wheel_is_pure_typed_and_carries_its_way_in(wheel: Path) -> None:
    contents = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.name.startswith("iotrace_agent-")
    assert "iotrace_agent.pth" in contents
    assert "iotrace/py.typed" in contents
    assert "iotrace/agent/shim/sitecustomize.py" in contents
    assert not [name for name in contents if name.startswith(("tests/", "workloads/"))]


def test_the_way_in_is_installed_here_too() -> None:
    """The suite runs from an editable install: its ``.pth`` lies beside the one that adds the sources."""
    import sysconfig

    site = Path(sysconfig.get_path("purelib"))
    assert "IOTRACE_AGENT" in (site / "iotrace_agent.pth").read_text()


def test_a_missing_session_directory_costs_the_program_nothing(tmp_path: Path) -> None:
    settings = names.encode_settings({"session": str(tmp_path / "gone")})
    done = subprocess.run(
        [sys.executable, "-c", "print('fine')"],
        env={**os.environ, names.SETTINGS_VARIABLE: settings},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
