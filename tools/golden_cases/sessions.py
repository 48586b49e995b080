"""The sessions and sweeps that are recorded."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from tests.support.nvml import build_standin
from tests.support.workloads import WORKLOADS, make_data
from tools.golden_cases.recording import PROGRAMS, Make, Recorder

_STEPS = "24"  # ten of them before and in the window of torch.profiler
_WAIT_SECONDS = 60
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


def sessions() -> dict[str, Make]:
    """How each session is made, by name."""
    return {
        **dict.fromkeys(WORKLOADS, _workload),
        "callback": partial(_own_session, program="lightning_fit.py"),
        "elastic": partial(
            _traced, program="ranks.py", start=(*_TORCHRUN, "--max-restarts=1"), words=("fail",)
        ),
        "failed": partial(_traced, program="own_profiler.py", words=("fail",), code=1),
        "gpu": _gpu,
        "killed_launcher": partial(_killed, launcher=True),
        "killed_program": partial(_killed, launcher=False),
        "lightning": partial(_traced, program="lightning_fit.py"),
        "marks": partial(_traced, program="marks.py"),
        "marks_own_log": partial(
            _traced,
            program="marks.py",
            words=("own/log",),
            variables={"DFTRACER_ENABLE": "1", "DFTRACER_INIT": "FUNCTION"},
        ),
        "no_posix_but": partial(
            _traced,
            program="readers.py",
            words=("0", "6"),
            options=("--no-telemetry", "--io", "data/readers/a.h5"),
        ),
        "own_profiler": partial(_traced, program="own_profiler.py"),
        "profile": partial(_own_session, program="profiled.py"),
        "readers": partial(_traced, program="readers.py", words=("2", "12")),
        "regions": partial(_traced, program="regions.py"),
        "regions_spawn": partial(
            _traced, program="regions.py", words=("spawn",), options=("--torch-steps", "off")
        ),
        "shapes": partial(
            _traced,
            program="regions.py",
            options=("--torch-steps", "2:1:3:2", "--torch-options", "shapes,stacks,memory,flops"),
        ),
        "two_launchers": _two_launchers,
    }


def sweeps() -> dict[str, Make]:
    """How each sweep is made, by name."""
    return {"sleeper": _sweep}


def _workload(recorder: Recorder, session: Path) -> None:
    workload = WORKLOADS[session.name]
    make_data(recorder.recorded.work, [workload])
    command = workload.command()
    command[command.index("--steps") + 1] = _STEPS
    recorder.run(session.name, recorder.traced(session, *command))


def _traced(
    recorder: Recorder,
    session: Path,
    *,
    program: str,
    start: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    code: int = 0,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    (recorder.recorded.work / "own").mkdir(exist_ok=True)
    path = str(PROGRAMS / program)
    if program == "readers.py":
        recorder.run(session.name, [recorder.checkout.python, path, "0", "0"])
    line = recorder.traced(session, *start, path, *words, options=options)
    recorder.run(session.name, line, code, **variables)


def _own_session(recorder: Recorder, session: Path, *, program: str) -> None:
    """A program that records itself, without the launcher."""
    recorder.run(session.name, [recorder.checkout.python, str(PROGRAMS / program), str(session)])


def _gpu(recorder: Recorder, session: Path) -> None:
    """Devices as the stand-in for NVML reports them."""
    library = build_standin(recorder.recorded.work / "nvml")
    line = recorder.traced(session, str(PROGRAMS / "sleeper.py"), "--workers", "1")
    pids = str(recorder.recorded.work / "pids")
    recorder.run(session.name, line, LD_LIBRARY_PATH=str(library), NVML_STANDIN_PIDS=pids)


def _killed(recorder: Recorder, session: Path, *, launcher: bool) -> None:
    """A session whose program or launcher was killed at its 20th step."""
    reached = recorder.recorded.work / f"{session.name}.reached"
    reached.unlink(missing_ok=True)
    line = recorder.traced(session, str(PROGRAMS / "endless.py"), str(reached))
    process = recorder.start(session.name, line)
    deadline = time.monotonic() + _WAIT_SECONDS
    while not reached.exists():
        recorder.expect(session.name, process.poll() or 0, 0)
        if time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"golden: recording {session.name}: the program has not begun")
        time.sleep(0.05)
    time.sleep(1)  # two writes of the agent
    programs = [
        int(path.name.partition("-")[0])
        for path in (session / "processes").iterdir()
        if str(process.pid) in _parent(path)
    ]
    if launcher:
        process.kill()
    for pid in programs:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def _parent(directory: Path) -> str:
    """The parent's pid of the process that has `directory`."""
    status = Path("/proc", directory.name.partition("-")[0], "status").read_text()
    return next(line for line in status.splitlines() if line.startswith("PPid:"))


def _two_launchers(recorder: Recorder, session: Path) -> None:
    """Two tasks of one job on two hosts by name."""
    line = recorder.traced(session, str(PROGRAMS / "ranks.py"))
    job = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    started = [
        recorder.start(session.name, line, **job, SLURM_PROCID=task, IOTRACE_HOST=f"node{task}")
        for task in ("0", "1")
    ]
    for process in started:
        recorder.expect(session.name, process.wait(), 0)


def _sweep(recorder: Recorder, directory: Path) -> None:
    """A sweep whose programs' telemetry has another name: a replay of it samples this host, too."""
    program = [recorder.checkout.python, str(PROGRAMS / "sleeper.py")]
    options = ["--workers", "1,2", "--steps", "20", "--io", "/nowhere", "-o", str(directory)]
    line = recorder.checkout.command("sweep", *options, "--", *program)
    name = f"sweep-{directory.name}"
    code = recorder.start(name, line).wait()
    no_advice = 1  # other programs took the CPUs
    recorder.expect(name, 0 if code == no_advice else code, 0)
    for telemetry in directory.glob("runs/*/session/telemetry/*"):
        shutil.move(telemetry, telemetry.with_name(f"recorded-{telemetry.name}"))
