"""torch and its profiler in the command's interpreter: asked in a process of its own, with a time limit."""

from __future__ import annotations

import subprocess

import msgspec

from iotrace.doctor.checks.processors import counted
from iotrace.doctor.command import Interpreter
from iotrace.doctor.probe import last_line
from iotrace.doctor.results import Check, missing, ok, unknown, warning
from iotrace.doctor.sandbox import Workplace

_SECONDS = 3.9
BROKEN = "torch cannot be imported"
_LEAVE_OUT = "reinstall torch; the rest is recorded without it: iotrace run --torch-steps off"

# In steps: an import that hangs in the profiler still has told the version. The profiler is the one that the
# agent uses, one level below torch.profiler.profile, whose start imports torch._inductor for a second.
_PROGRAM = """
import json
def tell(**found):
    print(json.dumps(found), flush=True)
try:
    import torch
except ModuleNotFoundError as error:
    tell(absent=str(error)); raise SystemExit
except Exception as error:
    tell(broken="%s: %s" % (type(error).__name__, error)); raise SystemExit
build = {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")}
tell(version=torch.__version__, build={k: v for k, v in build.items() if v})
devices = {}
for name in ("cuda", "xpu"):
    module = getattr(torch, name, None)
    try:
        if module is not None and module.is_available():
            devices["hip" if name == "cuda" and build["hip"] else name] = module.device_count()
    except Exception:
        pass
tell(devices=devices, kineto=torch.autograd.kineto_available())
try:
    from torch.autograd.profiler import profile
    with profile(use_kineto=True) as profiler:
        torch.ones(2) + 1
    tell(events=len(profiler.function_events))
except Exception as error:
    tell(profiler="%s: %s" % (type(error).__name__, error))
import os
os._exit(0)  # all is told: what torch would tear down costs time
"""


class _Told(msgspec.Struct):
    absent: str = ""
    broken: str = ""
    version: str = ""
    build: dict[str, str] = {}
    devices: dict[str, int] | None = None
    kineto: bool | None = None
    events: int | None = None
    profiler: str = ""


def check_torch(interpreter: Interpreter, environment: dict[str, str], workplace: Workplace) -> Check:
    """Whether torch.profiler records there, and the accelerators that torch can use."""
    try:
        own = {**environment, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # no CUDA context for a question
        # python -c imports from the current directory: a json.py in the user's is none of a script elsewhere.
        with workplace.directory() as directory:
            done = workplace.run([*interpreter.words, "-c", _PROGRAM], own, _SECONDS, directory)
        told, late = _merge(done.stdout), f"the process that asked torch ended early: {last_line(done)}"
    except subprocess.TimeoutExpired as error:
        told = _merge(str(error.stdout or ""))
        late = f"torch was not imported within {_SECONDS} s: ask again when it lies in the page cache"
    return judge_torch(told, late)


def _merge(output: str) -> _Told:
    told: dict[str, object] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                told.update(msgspec.json.decode(line, type=dict))
            except msgspec.DecodeError:
                continue
    return msgspec.convert(told, _Told)


def judge_torch(told: _Told, late: str) -> Check:
    """From what the process told before its end or its time limit; `late` says why it told no more."""
    lost = "no kernels, no compute"
    if told.absent:
        return unknown("torch-profiler", "torch is not there", told.absent)
    if told.broken:
        why = "no steps, no data waits: the training program will not run either"
        return missing("torch-profiler", f"{BROKEN}: {told.broken}", why, "mend its environment")
    if told.kineto is False:
        remedy = "install torch from its own wheels, or build it with USE_KINETO=1"
        return missing("torch-profiler", f"torch {told.version} was built without Kineto", lost, remedy)
    if told.profiler:
        return missing("torch-profiler", f"it does not start: {told.profiler}", lost, _LEAVE_OUT)
    if told.events is None or told.devices is None:
        return unknown(
            "torch-profiler", "no answer", late, "iotrace doctor again, or python -c 'import torch'"
        )
    if told.events == 0:
        return missing("torch-profiler", "it recorded nothing of an addition", lost, _LEAVE_OUT)
    build = ", ".join(f"{name.upper()} {version}" for name, version in told.build.items()) or "CPU build"
    counted = ", ".join(counted(count, f"{name.upper()} device") for name, count in told.devices.items())
    what = f"records; {build}, {counted or 'no accelerator that torch can use'}"
    if told.build and not told.devices:
        return warning(
            "torch-profiler",
            what,
            "torch is built for an accelerator and finds none: the program would train on the CPU",
            "check the driver and CUDA_VISIBLE_DEVICES; in a container: --gpus all",
        )
    return ok("torch-profiler", what)
