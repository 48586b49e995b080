"""The agent gets into every Python process of the command, once, quickly, and unseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from iotrace.session import names
from iotrace.sources.processes import Process, read_processes
from tests.support.runs import PROJECT, environment, run_script

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
    for process in read_processes(run.session)[0]:
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
    line = [sys.executable, str(program)]
    bare = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, env=environment())
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
    (process,) = read_processes(tmp_path / "session")[0]
    assert process.pid == pid
    assert process.ended
    assert str(PROJECT) not in done.stdout


def test_start_up_imports_few_modules(tmp_path: Path) -> None:
    """Each is a file to read in every process of the command; ``tools/bench agent`` measures the time."""
    (tmp_path / names.PROCESSES).mkdir()
    bare = {key: value for key, value in os.environ.items() if key != names.SETTINGS_VARIABLE}
    traced = {**bare, names.SETTINGS_VARIABLE: names.encode_settings({"session": str(tmp_path)})}

    def imported(environment: dict[str, str]) -> set[str]:
        program = "import sys; print(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        )
        return set(done.stdout.split())

    added = imported(traced) - imported(bare)
    assert list((tmp_path / names.PROCESSES).iterdir())
    ours = {name.removeprefix("iotrace").removeprefix(".") for name in added if name.startswith("iotrace")}
    recording = {
        "recording",
        *(f"recording.{name}" for name in ("recorder", "encode", "import_times", "regions")),
    }
    agent = {"bootstrap", "forks", "imports", "patching", "unpatched", *recording}
    of_session = ("names", "identity", "append_file", "guard", "masks")
    session = {f"session.{name}" for name in of_session}
    assert ours == {"agent", *(f"agent.{name}" for name in agent), "session", *session}
    others = {name for name in added if not name.startswith("iotrace")}
    of_library = {"__future__", "_functools", "_json", "_operator", "_struct", "atexit", "fcntl", "itertools"}
    assert others <= of_library


def test_the_way_in_is_installed_here_too() -> None:
    """The suite runs from an editable install: its ``.pth`` lies beside the one that adds the sources."""
    import sysconfig

    site = Path(sysconfig.get_path("purelib"))
    installed, source = site / "iotrace_agent.pth", PROJECT / "src" / "iotrace_agent.pth"
    assert installed.read_text() == source.read_text(), f"an old one is installed: copy {source} to {site}"


def test_a_missing_session_directory_costs_the_program_nothing(tmp_path: Path) -> None:
    settings = names.encode_settings({"session": str(tmp_path / "gone")})
    done = subprocess.run(
        [sys.executable, "-c", "print('fine')"],
        env={**os.environ, names.SETTINGS_VARIABLE: settings},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


CLOSING = """
import os
os.makedirs("data", exist_ok=True)
open("data/input.bin", "wb").write(b"x" * 100)
read = lambda: open("data/input.bin", "rb").read(10)
read()
os.closerange(3, 1024)
for descriptor in range(3, 40):
    try:
        os.close(descriptor)
    except OSError:
        pass
with open("checkpoint.txt", "w") as file:
    file.write("weights")
    file.flush()
    for _ in range(100):
        read()
pid = os.fork()
if pid == 0:
    os.closerange(3, 1024)
    with open("child.txt", "w") as file:
        file.write("child")
        file.flush()
        for _ in range(100):
            read()
    os._exit(0)
os.waitpid(pid, 0)
print(open("checkpoint.txt").read(), open("child.txt").read())
"""


def test_a_program_that_closes_every_descriptor_keeps_its_files_whole(tmp_path: Path) -> None:
    run = run_script(tmp_path, CLOSING)
    assert run.code == 0, run.stderr
    assert run.stdout == "weights child\n"
    assert (tmp_path / "checkpoint.txt").read_text() == "weights"
    assert (tmp_path / "child.txt").read_text() == "child"


EXEC = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
weight = torch.ones(1, requires_grad=True)
for (batch,) in DataLoader(TensorDataset(torch.ones(4, 1))):
    (batch * weight).sum().backward()
try:
    os.execve(path="/no/such/program", argv=["x"], env={})
except FileNotFoundError:
    print("still here", flush=True)
if sys.argv[1] == "again":
    os.execv(sys.executable, [sys.executable, sys.argv[0], "last"])
"""


def test_records_survive_an_exec(tmp_path: Path) -> None:
    run = run_script(tmp_path, EXEC, "again")
    assert run.code == 0, run.stderr
    assert run.stdout == "still here\nstill here\n"
    report = run.report()
    assert [rank["loaders"][0]["batches"] for rank in report["ranks"]] == [4, 4]
    assert report["session"]["complete"]


RAW_NAMES = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset
class Files(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        with open(b"data/caf\\xe9.bin", "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).float()
os.makedirs("data", exist_ok=True)
open(b"data/caf\\xe9.bin", "wb").write(b"x" * 64)
weight = torch.ones(64, requires_grad=True)
import numpy
for batch in DataLoader(Files(), batch_size=2, num_workers=numpy.int64(1), prefetch_factor=numpy.int64(2)):
    (batch * weight).sum().backward()
print(sys.argv[1:])
"""


def test_names_and_arguments_that_are_not_utf8_and_integers_of_numpy(tmp_path: Path) -> None:
    run = run_script(tmp_path, RAW_NAMES, os.fsdecode(b"\xff"))
    assert run.code == 0, run.stderr
    report = run.report()
    assert report["session"]["complete"], report["not_captured"]
    (rank,) = report["ranks"]
    assert (rank["loaders"][0]["batches"], rank["loaders"][0]["workers"]) == (3, 1)
    assert r"data/caf\xe9.bin" in {file["path"] for file in rank["io"]["files"]}


NESTED = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
class Outer(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        for (batch,) in DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2):
            pass
        return batch[0]
import sys
weight = torch.ones(1, requires_grad=True)
for batch in DataLoader(Outer(), batch_size=3, num_workers=int(sys.argv[1])):
    (batch * weight).sum().backward()
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_loader_inside_a_dataset_is_no_rank_and_no_sample_of_the_outer(
    tmp_path: Path, workers: str
) -> None:
    run = run_script(tmp_path, NESTED, workers)
    assert run.code == 0, run.stderr
    (rank,) = run.report()["ranks"]
    steps = rank["steps"]
    assert steps["samples_per_second"] == pytest.approx(3 * steps["per_second"])
    primary = next(loader for loader in rank["loaders"] if loader["primary"])
    assert (primary["dataset"], primary["batches"]) == ("Outer", 4)
