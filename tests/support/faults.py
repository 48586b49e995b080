"""A training program that meets one fault at one step, run with and without iotrace."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iotrace.sources.processes import Process, read_processes
from iotrace.sources.records import TorchWindow
from tests.support.runs import environment

# Steps 0 to 2 wait, 3 and 4 warm up, 5 to 8 record; step 9 is touched by the export.
STEPS = "3:2:4"
BEFORE, IN_WARMUP, IN_WINDOW, AFTER = 1, 4, 7, 10

_numbers = itertools.count()

PROGRAM = """
import atexit, ctypes, json, os, shutil, signal, sys, threading, time
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

print("customised", getattr(sys, "customised", False), flush=True)
torch.manual_seed(0)
torch.set_num_threads(1)
fault, at, where = sys.argv[1], int(sys.argv[2]), sys.argv[3]
CPU = [ProfilerActivity.CPU]

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        if fault == "worker raises" and index == 2 * at:
            raise ValueError("a bad sample")
        return torch.randn(8, generator=torch.Generator().manual_seed(index))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(inplace=True))
        self.decoder = torch.nn.Linear(8, 1)
        self.inside = None
    def forward(self, batch):
        hidden = self.encoder(batch)
        if self.inside:
            inside, self.inside = self.inside, None
            inside()
        return self.decoder(hidden)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Numbers(), 2, num_workers=1)
iterator = iter(loader)

def work():
    model(torch.ones(1, 8)).sum().backward()

def told(trace):
    document = json.load(open(trace))
    events = document if isinstance(document, list) else document["traceEvents"]
    print("their operators", sum(event.get("name") == "aten::addmm" for event in events), flush=True)

def kineto(**options):
    with profile(activities=CPU, **options) as theirs:
        work()
    theirs.export_chrome_trace("theirs.json")
    told("theirs.json")

class Subclass(profile):
    pass

def subclass():
    with Subclass(activities=CPU) as theirs:
        work()
    theirs.export_chrome_trace("theirs.json.gz")
    import gzip
    print("their bytes", len(gzip.open("theirs.json.gz").read()) > 1000)

def scheduled():
    global stepped
    stepped = profile(
        activities=CPU,
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=torch.profiler.tensorboard_trace_handler("theirs"),
    )
    stepped.start()

def all_threads():
    kineto(experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True))

def legacy():
    with torch.autograd.profiler.profile(use_kineto=False) as theirs:
        work()
    theirs.export_chrome_trace("theirs.json")
    told("theirs.json")

def oldest():
    from torch.autograd import profiler_legacy
    with profiler_legacy.profile() as theirs:
        work()
    theirs.export_chrome_trace("theirs.json")
    told("theirs.json")

def emit(kind):
    try:
        with kind():
            work()
        print("emitted")
    except BaseException as error:  # NVTX needs CUDA
        print("not emitted", error)

def fill():
    filling = os.path.join(os.environ["FULL"], "filling")
    atexit.register(os.unlink, filling)
    with open(filling, "wb") as file:
        try:
            while True:
                file.write(b"0" * 1048576)
                file.flush()
        except OSError as error:
            print("filled")

def signalled():
    signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
    os.kill(os.getpid(), signal.SIGUSR1)

faults = {
    "nothing": lambda: None,
    "kineto": kineto,
    "subclass": subclass,
    "scheduled": scheduled,
    "all threads": all_threads,
    "legacy": legacy,
    "oldest": oldest,
    "emit_itt": lambda: emit(torch.autograd.profiler.emit_itt),
    "emit_nvtx": lambda: emit(torch.autograd.profiler.emit_nvtx),
    # torch's handler of SIGCHLD raises: during the sleep, in both runs.
    "worker killed": lambda: (os.kill(iterator._workers[0].pid, signal.SIGKILL), time.sleep(30)),
    "worker raises": lambda: None,
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "interrupted": lambda: os.kill(os.getpid(), signal.SIGINT),
    "left": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(4),
    "segfault": lambda: ctypes.string_at(0),
    "fork": lambda: print(os.waitpid(os.fork() or (print("child", flush=True), os._exit(5)), 0)[1]),
    "disk full": fill,
    "session deleted": lambda: [shutil.rmtree(name) for name in sys.argv[4:] if os.path.isdir(name)],
    "signal handler": signalled,
}
stepped = None

def meet():
    model.zero_grad()
    if where == "another thread":
        thread = threading.Thread(target=faults[fault])
        thread.start()
        thread.join()
    elif where == "inside forward":
        model.inside = faults[fault]
    else:
        faults[fault]()

for step, batch in enumerate(iterator):
    if step == at:
        meet()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item().hex(), flush=True)
    if stepped is not None:
        stepped.step()
if stepped is not None:
    stepped.stop()
    told(os.path.join("theirs", os.listdir("theirs")[0]))
"""


@dataclass(frozen=True)
class Both:
    """The same program, bare and traced."""

    bare: subprocess.CompletedProcess[str]
    traced: subprocess.CompletedProcess[str]
    session: Path

    @property
    def main(self) -> Process:
        """The training process, as the session knows it."""
        return next(each for each in read_processes(self.session)[0] if each.identity.role == "main")

    @property
    def window(self) -> list[tuple[str, str]]:
        """What became of the torch window: each event and its reason."""
        return [(record.event, record.why) for record in self.main.of_type(TorchWindow)]

    def traces(self, pattern: str = "torch-[0-9]*.json.gz") -> list[Path]:
        """Traces in the session."""
        return sorted(self.session.glob(f"processes/*/{pattern}"))


def run_both(
    directory: Path,
    fault: str,
    at: int,
    where: str = "",
    python: Sequence[str] = (),
    session: Path | None = None,
    **variables: str,
) -> Both:
    """Run the program bare and traced, each in a directory of its own; both must do the same."""
    program = directory / "program.py"
    program.write_text(PROGRAM)
    session = session or directory / f"session-{next(_numbers)}"
    command = [sys.executable, *python, str(program), fault, str(at), where, str(session)]
    launcher = [sys.executable, "-m", "iotrace", "run", "-o", str(session), "--torch-steps", STEPS, "--"]

    def run(line: list[str], name: str) -> subprocess.CompletedProcess[str]:
        there = directory / f"{name}-{next(_numbers)}"
        there.mkdir()
        return subprocess.run(
            line, cwd=there, capture_output=True, text=True, env=environment(**variables), timeout=280
        )

    both = Both(run(command, "bare"), run([*launcher, *command], "traced"), session)
    assert_same(both.bare, both.traced)
    return both


def assert_same(bare: subprocess.CompletedProcess[str], traced: subprocess.CompletedProcess[str]) -> None:
    """The same output, losses among it to the last bit, and the same exit code, as a shell gives it."""
    assert traced.stdout == bare.stdout, traced.stderr
    expected = 128 - bare.returncode if bare.returncode < 0 else bare.returncode
    assert traced.returncode == expected, traced.stderr
