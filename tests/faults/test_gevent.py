"""Libraries that patch the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.harness import Trial
from tests.faults.rows import row

PATCHES = {
    "gevent": "from gevent import monkey\nmonkey.patch_all()\n",
    "eventlet": (
        "import warnings\nwarnings.simplefilter('ignore')\nimport eventlet\neventlet.monkey_patch()\n"
    ),
}
PROGRAM = """
import os, subprocess, sys, threading, time
import h5py, numpy, torch
from torch.utils.data import DataLoader, Dataset
with h5py.File("d.h5", "w") as file:
    file["x"] = numpy.zeros((16, 64), "f4")
class Data(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        with h5py.File("d.h5", "r") as file:
            return torch.tensor(file["x"][index])
model = torch.nn.Linear(64, 1)
for batch in DataLoader(Data(), batch_size=2):
    model(batch).sum().backward()
for _ in range(3):
    done = subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True)
    print(done.returncode, done.stdout.strip(), done.stderr.strip())
    pid = os.fork()
    if not pid:
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
found = []
def work(number):
    time.sleep(0.01)
    found.append(number)
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(found))
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both libraries, for PYTHONPATH: no other test shall import them."""
    directory = tmp_path_factory.mktemp("libraries")
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(directory), *PATCHES]
    subprocess.run(install, check=True, timeout=200)
    return directory


@row(
    "gevent's or eventlet's monkey patch, then a training, processes, forks, threads",
    kept="output, exit codes",
    lost="nothing",
    limit_s=300,
)
@pytest.mark.parametrize("library", sorted(PATCHES))
def test_monkey_patches(trial: Trial, libraries: Path, library: str) -> None:
    pair = trial.both(PATCHES[library] + PROGRAM, env={"PYTHONPATH": str(libraries)})
    assert "child" in pair.bare.stdout
    pair.assert_same(files=False)
    pair.assert_nothing_lost()
