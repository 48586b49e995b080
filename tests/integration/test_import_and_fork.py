"""What a program sees of its loaders, its import errors and its forks is what it sees without the agent."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from iotrace.sources.session import open_session
from tests.support.runs import report_of, run_script

# `tarfile` stands for the modules with hooks: its package differs from machine to machine in no way.
LOADERS = """
import copy, importlib, importlib.abc, importlib.machinery, importlib.resources, importlib.util
import inspect, pickle, pkgutil, sys

def tell(what, look):
    try:
        found = look()
    except Exception as error:
        found = type(error).__name__
    print(what, found)

for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    loader = spec.loader
    kinds = importlib.abc.InspectLoader, importlib.abc.SourceLoader, importlib.machinery.SourceFileLoader
    tell("kind", lambda: (type(loader).__name__, [isinstance(loader, kind) for kind in kinds]))
    tell("repr", lambda: repr(spec).split(" at ")[0])
    tell("equal", lambda: importlib.util.find_spec(name).loader == loader)
    tell("source", lambda: len(loader.get_source(name)))
    tell("file", lambda: loader.get_filename(name))
    tell("package", lambda: loader.is_package(name))
    tell("code", lambda: loader.get_code(name).co_filename)
    tell("data", lambda: len(loader.get_data(loader.get_filename(name))))
    tell("reader", lambda: type(loader.get_resource_reader(name)).__name__)
    tell("fields", lambda: sorted(vars(loader)))
    tell("copies", lambda: [type(make(loader)).__name__ for make in (copy.copy, copy.deepcopy)])
    tell("pickled", lambda: type(pickle.loads(pickle.dumps(loader))) is importlib.machinery.SourceFileLoader)
    tell("pkgutil", lambda: len(pkgutil.get_data(name, "__init__.py")))
    lazy = importlib.util.module_from_spec(spec)
    importlib.util.LazyLoader(loader).exec_module(lazy)
    tell("lazy", lambda: lazy.__name__)
    module = importlib.import_module(name)
    tell("loaded", lambda: [type(each).__name__ for each in (module.__loader__, module.__spec__.loader)])
    tell("inspect", lambda: len(inspect.getsource(module)))
    tell("resources", lambda: (importlib.resources.files(name) / "__init__.py").is_file())
    tell("again", lambda: importlib.util.find_spec(name).loader is module.__loader__)
    tell("reloaded", lambda: importlib.reload(module) is module)
"""

BROKEN = """
import traceback
for _ in range(2):
    try:
        import h5py
    except Exception:
        print(traceback.format_exc())
"""

# Python 3.12 counts the threads of /proc/self/stat at a fork, before or after the hooks for the parent.
FORKS = """
import os, tarfile
counts = set()
def count():
    with open("/proc/self/stat") as file:
        counts.add(int(file.read().rsplit(")", 1)[1].split()[17]))
os.register_at_fork(after_in_parent=count)
with tarfile.open("t.tar", "w") as archive:
    archive.add(__file__)
for turn in range(40):
    with tarfile.open("t.tar") as archive:
        archive.extractfile(archive.getmembers()[0]).read()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
print(sorted(counts))
"""


def bare(directory: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("zipped", [False, True])
def test_loaders_are_what_they_are_without_us(tmp_path: Path, zipped: bool) -> None:
    (tmp_path / "h5py").mkdir()
    (tmp_path / "h5py" / "__init__.py").write_text("here = __file__\n")
    path = tmp_path
    if zipped:
        path = tmp_path / "all.zip"
        with zipfile.ZipFile(path, "w") as file:
            file.write(tmp_path / "h5py" / "__init__.py", "h5py/__init__.py")
        (tmp_path / "h5py" / "__init__.py").unlink()
        (tmp_path / "h5py").rmdir()
    script = f"import sys; sys.path.insert(0, {str(path)!r}); sys.argv += ['h5py', 'tarfile']\n{LOADERS}"
    run = run_script(tmp_path, script)
    assert run.code == 0, run.stderr
    expected = bare(tmp_path, "-c", script)
    assert run.stdout == expected
    assert "pickled True" in expected or zipped


@pytest.mark.parametrize("body", ["import not_there", "1 / 0"])
def test_an_import_that_fails_prints_what_it_printed(tmp_path: Path, body: str) -> None:
    (tmp_path / "h5py").mkdir()
    (tmp_path / "h5py" / "__init__.py").write_text(f"{body}\n")
    run = run_script(tmp_path, BROKEN)
    (script,) = tmp_path.glob("program_*.py")
    assert run.stdout == bare(tmp_path, str(script))
    assert "Traceback" in run.stdout


def test_the_writer_is_no_thread_at_a_fork_and_comes_again(tmp_path: Path) -> None:
    run = run_script(tmp_path, FORKS)
    assert run.code == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[1]"
    (spans,) = [path for path in run.session.glob("processes/*/spans.bin") if path.stat().st_size]
    assert spans.stat().st_size >= 40 * 72


def _pythons(*versions: str) -> list[str]:
    """Other Pythons beside this one; those of pyenv by their own path, as its shims are scripts."""
    places = [Path("/usr/bin"), Path("/usr/local/bin"), *Path.home().glob(".pyenv/versions/*/bin")]
    found = [place / f"python{version}" for place in places for version in versions]
    return [str(program) for program in found if program.exists()]


def _run_by(program: str, script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    session = "session-" + Path(program).name
    line = [sys.executable, "-m", "iotrace", "run", "-q", "-o", session, "--", program, script]
    return subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=600)


NEWER = _pythons("3.12", "3.13", "3.14")
OLDER = _pythons("2.7", "3.6", "3.7", "3.8", "3.9")


@pytest.mark.skipif(not NEWER, reason="no Python 3.12 or newer beside this one")
def test_newer_pythons_do_not_warn_of_our_thread(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(f"import warnings; warnings.simplefilter('error')\n{FORKS}")
    for program in NEWER:
        done = _run_by(program, "forks.py", tmp_path)
        assert (done.returncode, done.stdout) == (0, "[1]\n"), done.stderr


@pytest.mark.skipif(not OLDER, reason="no Python older than 3.10 beside this one")
def test_pythons_too_old_for_the_agent_run_as_if_untraced(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(
        "import os, subprocess\nos.close(os.open('old.py', 0))\nprint(subprocess.call(['true']))\n"
    )
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    for program in OLDER:
        done = _run_by(program, "old.py", tmp_path)
        # Where a child closes all descriptors, dftracer misses its log.
        errors = [line for line in done.stderr.splitlines() if not line.startswith("unable to write log")]
        assert (done.returncode, done.stdout, errors) == (0, "0\n", [])


ELSEWHERE = """
import gzip, os
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset

class Parts(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.from_numpy(np.load("part.npz")["x"])

if __name__ == "__main__":
    np.savez_compressed("part.npz", x=np.ones((200, 500), "f4"))
    model = torch.nn.Linear(500, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in DataLoader(Parts(), batch_size=2, num_workers=1):
        model(batch).mean().backward()
        optimizer.step()
    try:
        import iotrace
    except ImportError as error:
        raise RuntimeError("at the end") from error
"""


def test_a_python_without_iotrace_is_traced_like_another(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # whose own .pth files are not read
    (tmp_path / "train.py").write_text(ELSEWHERE)
    done = _run_by(str(tmp_path / "venv" / "bin" / "python"), "train.py", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: at the end" in done.stderr
    session = tmp_path / "session-python"
    assert not list(session.glob("processes/*/agent.log"))
    report = report_of(session)
    (rank,) = report["ranks"]
    assert rank["steps"]["count"] > 0
    assert rank["loaders"][0]["workers"] == 1
    assert rank["phases_ms"]["backward"] > 0
    (worker,) = (process for process in open_session(session).processes if process.worker is not None)
    assert [Path(file).name for file in worker.span_files.values()] == ["part.npz"]
    assert "RuntimeError" in report["verdict"]["text"]


def test_an_error_of_the_agent_is_told_once(tmp_path: Path) -> None:
    run = run_script(tmp_path, FORKS)
    for directory in run.session.glob("processes/*"):
        (directory / "agent.log").write_text("1795366850.304 the hook of torch failed: KeyError('x')\n" * 3)
    (told,) = [item for item in run.report()["not_captured"] if "KeyError" in item["why"]]
    assert told["why"] == "iotrace's own code failed there: the hook of torch failed: KeyError('x')"
    for directory in run.session.glob("processes/*"):
        full = "1795366850.304 the hook failed: OSError(28, 'No space left on device')\n"
        (directory / "agent.log").write_text(full)
    (told,) = [item for item in run.report()["not_captured"] if "hook" in item["why"]]
    assert told["why"].startswith(f"the disk of {run.session} was full: the hook failed: ")
    assert told["remedy"] == "free some space there, or record to another disk with -o"
