"""Signal handlers that raise."""

from __future__ import annotations

import pytest

from tests.faults.harness import Trial
from tests.faults.rows import row

# At a random moment of the work a handler raises: a TimeoutError (which is an OSError), an exception of the
# program's, a KeyboardInterrupt. Prints how many signals came, and how many of the exceptions arrived.
PROGRAM = """
import os, random, signal, sys
kind, most, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Late(Exception):
    pass

def handler(number, frame):
    global fired
    fired += 1
    raise kind_of_error("late")

fired = caught = 0
longest = 0.003
if kind in ("loader", "window"):
    import torch
    from torch.utils.data import DataLoader, Dataset
    torch.set_num_threads(1)
    class Numbers(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            return torch.ones(4)
    model = torch.nn.Linear(4, 1)
    def work():
        torch.set_grad_enabled(True)  # the exception may come as torch switches it
        for batch in DataLoader(Numbers(), batch_size=2):
            if kind == "window":
                model(batch).sum().backward()
elif kind == "files":
    def work():
        for flags in (os.O_RDONLY, os.O_WRONLY) * 25:
            descriptor = os.open("data.bin", flags)
            try:
                if flags == os.O_RDONLY:
                    os.read(descriptor, 16)
            finally:
                os.close(descriptor)
elif kind.startswith("forks"):
    if kind == "forks, logging":
        import logging
    longest, calls = 0.006, 0
    def work():
        global calls
        calls += 1
        pid, terminal = os.forkpty() if calls % 16 == 0 else (os.fork(), -1)
        if not pid:
            os._exit(0)
        if terminal >= 0:
            os.close(terminal)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
elif kind == "h5py":
    import h5py, numpy
    with h5py.File("d.h5", "w") as file:
        file["x"] = numpy.zeros((64, 64), "f4")
    data = h5py.File("d.h5", "r")["x"]
    def work():
        for index in range(64):
            data[index]
elif kind == "regions":
    import iotrace
    def work():
        for _ in range(20):
            with iotrace.region("part"):
                iotrace.step()

work()
signal.signal(signal.SIGALRM, handler)
times = random.Random(seed)
for kind_of_error in (TimeoutError, Late, KeyboardInterrupt):
    last = fired + most // 3
    while fired < last:
        before = fired
        try:
            signal.setitimer(signal.ITIMER_REAL, times.uniform(0.0001, longest))
            while fired == before:
                work()
        except kind_of_error:
            caught += 1
print(fired, caught)
"""
EXCEPTIONS = "every exception arrives; 300 signals a workload"


@row("a handler raises within os.open, read, close", kept=EXCEPTIONS, lost="nothing")
def test_files(trial: Trial) -> None:
    trial.files["data.bin"] = bytes(4096)
    pair = trial.both(PROGRAM, "files", "300", "1")
    assert pair.bare.stdout == "300 300\n"
    pair.assert_same()
    pair.assert_nothing_lost()


@row("a handler raises within os.fork, os.forkpty", kept=f"{EXCEPTIONS}; the exit", lost="nothing")
def test_forks(trial: Trial) -> None:
    pair = trial.both(PROGRAM, "forks", "300", "1")
    assert pair.bare.stdout == "300 300\n"
    pair.assert_same()


@row(
    "a handler raises within os.fork where `logging` has hooks",
    kept="no fewer arrive than bare, where some are lost in those hooks; over three seeds",
    lost="nothing",
    limit_s=250,
)
def test_forks_with_hooks_of_others(trial: Trial) -> None:
    lost = {"bare": 0, "traced": 0}
    for seed in "123":
        pair = trial.both(PROGRAM, "forks, logging", "300", seed)
        assert (pair.bare.code, pair.traced.code) == (0, 0), pair.traced.stderr
        for name, ended in (("bare", pair.bare), ("traced", pair.traced)):
            fired, caught = map(int, ended.stdout.split())
            lost[name] += fired - caught
    assert lost["traced"] <= lost["bare"]


@row(
    "a handler raises within a DataLoader, h5py's reads, regions",
    kept=EXCEPTIONS,
    lost="nothing",
    limit_s=240,
)
@pytest.mark.parametrize("kind", ["loader", "h5py", "regions"])
def test_libraries(trial: Trial, kind: str) -> None:
    pair = trial.both(PROGRAM, kind, "300", "1")
    assert pair.bare.stdout == "300 300\n"
    pair.assert_same(files=False)  # h5py's holds the time
    pair.assert_nothing_lost()


@row(
    "a handler raises within a window of torch.profiler",
    kept=EXCEPTIONS,
    lost="the window, if the exception comes while it opens or ends; reported",
    limit_s=240,
)
def test_window(trial: Trial) -> None:
    pair = trial.both(PROGRAM, "window", "300", "1", options=["--torch-steps", "3:2:4:100000"])
    assert pair.bare.stdout == "300 300\n"
    assert (pair.traced.code, pair.traced.stdout) == (0, "300 300\n"), pair.traced.stderr


@row("torch's handler tells that a worker was killed", kept="torch's own error, each time", lost="nothing")
def test_a_killed_worker(trial: Trial) -> None:
    pair = trial.both(
        """
import os, signal, time
import iotrace
from torch.utils.data import DataLoader
for attempt in range(4):
    batches = iter(DataLoader(range(100_000), num_workers=1))
    next(batches)
    end = time.monotonic() + 20
    try:
        os.kill(batches._workers[0].pid, signal.SIGKILL)
        while time.monotonic() < end:
            with iotrace.region("part"):
                iotrace.step()
    except Exception as error:
        print(type(error).__name__, str(error).startswith("DataLoader worker (pid"))
    del batches
"""
    )
    assert pair.bare.stdout == 4 * "RuntimeError True\n"
    assert (pair.traced.code, pair.traced.stdout) == (0, pair.bare.stdout), pair.traced.stderr
