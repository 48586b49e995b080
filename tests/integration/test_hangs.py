"""Hangs as they happen, each a real program, all at once: what is told of each; of slow ones nothing is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iotrace.session import names
from tests.support import fuse
from tests.support.runs import environment, launcher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = """
import multiprocessing, os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

MODE, MOUNT = sys.argv[1:3]
FULL, LOCK = multiprocessing.Queue(maxsize=4), threading.Lock()

class Samples(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.005)
        if MODE == "mount":
            if index == 60:
                os.path.exists(f"{MOUNT}/stop")  # from now on it answers no more
            with open(f"{MOUNT}/data_{index}", "rb", buffering=0) as file:
                file.read(1 << 16)
        if MODE == "read" and index == 61:
            with open(f"{MOUNT}/data_{index}", "rb", buffering=0) as file:
                os.path.exists(f"{MOUNT}/stop")
                file.read(1 << 16)
        if MODE == "intercepted" and index == 61:
            open("intercepted_61", "wb")
        if MODE == "fifo" and index == 61:
            os.mkfifo("pipe-that-never-answers")
            open("pipe-that-never-answers", "rb")
        if MODE == "queue" and index >= 40:
            FULL.put(bytes(100))
        if index == 61:
            if MODE == "lock":
                LOCK.acquire()
                LOCK.acquire()
            if MODE == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if MODE == "slow":
                time.sleep(60)
            if MODE == "reads":
                for _ in range(60):
                    time.sleep(1)
                    open(__file__).read()
            if MODE == "computes":
                compute(60)
            if MODE == "endless":
                while crop_of(torch.zeros(32, 32)) is None:  # no crop of this sample holds a label
                    pass
        return torch.zeros(4)

def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

def crop_of(labels):
    x, y = torch.randint(0, 16, (2,)).tolist()
    crop = labels[x:x + 16, y:y + 16]
    return crop if crop.any() else None

weight = torch.nn.Parameter(torch.zeros(4))
for number, batch in enumerate(DataLoader(Samples(), batch_size=4, num_workers=2)):
    (weight * batch).sum().backward()
    if number == 40:
        if MODE == "step":
            compute(100000)
        if MODE == "long":
            compute(60)
    if number in range(40, 48) and MODE == "slower":
        compute(10)
"""

# It stands between the recorder and libc, as client libraries of some file systems do, and hangs in a call.
INTERCEPTS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define OPEN(NAME) \\
int NAME(const char *path, int flags, ...) { \\
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \\
    if (strstr(path, "intercepted_")) { pthread_mutex_lock(&lock); pthread_mutex_lock(&lock); } \\
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #NAME))(path, flags, mode); \\
}
OPEN(open)
OPEN(open64)
"""

RANKS = """
import datetime, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

MODE = sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
rank, other = dist.get_rank(), dist.new_group([0, 1])

class Samples(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4)

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for number, batch in enumerate(DataLoader(Samples(), batch_size=4)):
    if number == 40 and rank == 1:
        if MODE == "never":
            dist.barrier(other)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pass
    model(batch).sum().backward()
"""

# What is told of each, as a pattern; None: nothing.
_TOLD = {
    "mount": r"/mount/data_\d+ on fuse at \S+/mount for \d+ s",  # an open; its name depends on libc
    "read": r"is in read of \S+/read/data_61 on fuse at \S+/read for \d+ s",
    "intercepted": r"is in open for \d+ s, and waits there for a lock, not for the file system, file ",
    "fifo": r"is stuck opening pipe-that-never-answers for \d+ s \(a named pipe that no other ",
    "queue": "waits to put into a full queue",
    "lock": "waits for a lock",
    "stopped": "is stopped: kill -CONT",
    "slow": None,
    "reads": None,
    "computes": None,
    "endless": " computes, file ",  # in __getitem__, or in what that calls
    "step": "in compute",
    "long": None,
    "slower": None,
    "never": "ranks are not in one collective: rank 0 is in backward, rank 1 is in barrier",
    "late": None,
}
_MOUNTS = ("mount", "read")  # each has a file system of its own that stops answering
_COMPUTING = ("endless", "step")  # what is called so, and not hung
_SECONDS = 240


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """What was told of each program within `_SECONDS`, at the most."""
    directory = tmp_path_factory.mktemp("hangs")
    (directory / "one.py").write_text(PROGRAM)
    (directory / "ranks.py").write_text(RANKS)
    (directory / "intercepts.c").write_text(INTERCEPTS)
    build = ["cc", "-shared", "-fPIC", "-o", "intercepts.so", "intercepts.c", "-ldl"]
    subprocess.run(build, cwd=directory, check=True)
    mounted = []
    started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no FUSE, or not root
            for mode in _MOUNTS:
                stack.enter_context(fuse.mounted(directory / mode))
                mounted.append(mode)
        for mode in _TOLD:
            if mode in _MOUNTS and mode not in mounted:
                continue
            command = [str(directory / "one.py"), mode, str(directory / mode)]
            if mode in ("never", "late"):
                command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
                command += [str(directory / "ranks.py"), mode]
            line, session = launcher(directory, command, ["--quiet", "--torch-steps", "off"])
            process = subprocess.Popen(
                line,
                cwd=directory,
                env=environment(OMP_NUM_THREADS="1", **_preloads(directory, mode)),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            started[mode] = process, session
        try:
            until = time.monotonic() + _SECONDS
            while time.monotonic() < until:
                found = {mode: _texts(session) for mode, (_, session) in started.items()}
                if all(found[mode] or _TOLD[mode] is None for mode in found) and all(
                    process.poll() is not None
                    for mode, (process, _) in started.items()
                    if _TOLD[mode] is None
                ):
                    break
                time.sleep(1)
            found = {mode: _texts(session) for mode, (_, session) in started.items()}
            yield {mode: [*found[mode], *_as_told(session)] for mode, (_, session) in started.items()}
        finally:
            for process, session in started.values():
                _end(process, session)


def _preloads(directory: Path, mode: str) -> dict[str, str]:
    return {"LD_PRELOAD": f"{directory}/intercepts.so"} if mode == "intercepted" else {}


def _texts(session: Path) -> list[str]:
    line = [sys.executable, "-m", "iotrace", "status", str(session), "--json"]
    done = subprocess.run(line, capture_output=True, text=True)
    status: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"hangs": []}
    return [text for hang in status["hangs"] for text in hang["text"]]


def _as_told(session: Path) -> list[str]:
    """Return what was told of hangs when they were: of one that lasts on, no call's time is told later."""
    lines = [line for each in session.rglob(names.HANGS) for line in each.read_text().splitlines()]
    return [text for line in lines for text in json.loads(line).get("text", [])]


def _end(process: subprocess.Popen[bytes], session: Path) -> None:
    """End the launcher and all processes of its session, of which some sleep for good."""
    pids = [int(each.name.partition("-")[0]) for each in (session / "processes").glob("*")]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    process.wait()


@pytest.mark.parametrize("mode", _TOLD)
def test_a_hang_is_named_and_a_slow_job_is_none(told: dict[str, list[str]], mode: str) -> None:
    if mode not in told:
        pytest.skip("a file system of FUSE cannot be mounted here")
    expected = _TOLD[mode]
    if expected is None:
        assert told[mode] == []
        return
    name = "COMPUTING WITHOUT A STEP" if mode in _COMPUTING else "HUNG"
    assert told[mode][0].startswith(f"{name}: no batch for ")
    assert any(re.search(expected, line) for line in told[mode]), told[mode]
