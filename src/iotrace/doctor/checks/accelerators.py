"""Check the accelerators: their device nodes, and what the sidecar's readers get of them.

Check torch and its profiler in the command's interpreter, in a child process with a time limit.
"""

from __future__ import annotations

import glob
import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.doctor.command import Interpreter
from iotrace.doctor.probe import last_line
from iotrace.doctor.results import Check, judged, ok, unknown
from iotrace.doctor.run import TORCH_SECONDS, Sandbox
from iotrace.launch.telemetry import Record, amd as amd_smi, level_zero, nvml
from iotrace.launch.telemetry.gpus import Device, Emit, FigureError, UnavailableError
from iotrace.session.identity import nodes as nodes_of
from iotrace.units import counted

_NVIDIA_NODES = "/dev/nvidia[0-9]*"
_AMD_NODE = "/dev/kfd"
# Of Intel's GPUs those that are no adapter of a display, by their class on the bus: Max, Flex.
_RENDER_NODES, _INTEL, _NO_DISPLAY = "/sys/class/drm/renderD*/device", "0x8086", "0x0380"
_SYSMAN = "ZES_ENABLE_SYSMAN"  # asks Level Zero for telemetry
NO_NVIDIA, NO_AMD, NO_INTEL = "no NVIDIA device", "no AMD device", "no Intel device that computes"
_CONTAINER = "in a container: --gpus all, with NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def nvidia() -> Check:
    """Check NVML, its devices, and the figures that they give."""
    return judge_nvidia(len(glob.glob(_NVIDIA_NODES)), *_ask(nvml.find))


def amd() -> Check:
    """Check amdsmi in the same way; without a device it is not loaded, which takes long."""
    return judge_amd(*_ask(amd_smi.find)) if glob.glob(_AMD_NODE) else ok("amd", NO_AMD)


def intel() -> Check:
    """Check Level Zero in the same way, as the sidecar asks it: its variable is set for this check alone."""
    nodes = [Path(node) for node in glob.glob(_RENDER_NODES)]
    before = os.environ.get(_SYSMAN)
    os.environ[_SYSMAN] = "1"
    try:
        asked = _ask(level_zero.find)
    finally:
        if before is None:
            del os.environ[_SYSMAN]
        else:
            os.environ[_SYSMAN] = before
    return judge_intel(sum(map(_computes, nodes)), *asked)


def _computes(node: Path) -> bool:
    with suppress(OSError):
        vendor, kind = ((node / name).read_text().strip() for name in ("vendor", "class"))
        return vendor == _INTEL and kind.startswith(_NO_DISPLAY)
    return False


def _ask(find: Callable[[Emit], list[Device]]) -> tuple[list[str] | None, str, dict[str, str]]:
    """Return the devices' names (None without the library), the problems, and why each figure failed."""
    emitted: list[Record] = []
    try:
        devices = find(emitted.append)
    except UnavailableError as error:
        return None, str(error), {}
    failing = {}
    for device in devices:
        for figure in device.figures:
            try:
                figure.read()
            except FigureError as error:
                failing[figure.name] = str(error)
    problems = "; ".join(f"{problem['figure']}: {problem['why']}" for problem in emitted)
    return [str(device.about["name"] or "a device without a name") for device in devices], problems, failing


def judge_nvidia(nodes: int, devices: list[str] | None, error: str, failing: dict[str, str]) -> Check:
    """Judge the number of device nodes, and the names that NVML gives (None: it did not load)."""
    if devices:
        return _seen("nvidia", "NVML", devices, error, failing)
    if not nodes:
        return ok("nvidia", NO_NVIDIA)
    remedy = "pip install nvidia-ml-py" if "nvidia-ml-py" in error else _CONTAINER
    what = f"{counted(nodes, 'device node')}, but NVML sees none{f': {error}' if error else ''}"
    return judged("nvidia", HostFacts(gpus_unseen=what, remedy=remedy))


def judge_amd(devices: list[str] | None, error: str, failing: dict[str, str]) -> Check:
    """Judge in the same way where the driver's device node exists."""
    if devices:
        return _seen("amd", "amdsmi", devices, error, failing)
    what = f"an AMD device, but amdsmi sees none{f': {error}' if error else ''}"
    remedy = "pip install amdsmi, of the version of this host's ROCm (/opt/rocm)"
    return judged("amd", HostFacts(gpus_unseen=what, remedy=remedy))


def judge_intel(nodes: int, devices: list[str] | None, error: str, failing: dict[str, str]) -> Check:
    """Judge in the same way; a display's adapter that Level Zero does not see is no fault."""
    if devices:
        return _seen("intel", "Level Zero", devices, error, failing)
    if not nodes:
        return ok("intel", NO_INTEL)
    what = f"{counted(nodes, 'Intel device')}, but Level Zero sees none{f': {error}' if error else ''}"
    remedy = "pip install pyzes; the driver has libze_loader.so.1; in a container: --device /dev/dri"
    return judged("intel", HostFacts(gpus_unseen=what, remedy=remedy))


def _seen(identity: str, library: str, devices: list[str], error: str, failing: dict[str, str]) -> Check:
    names = ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
    by_reason: dict[str, list[str]] = {}
    for figure, why in failing.items():
        by_reason.setdefault(why, []).append(figure)
    unread = [error] if error else []
    unread += [f"{', '.join(figures)}: {why}" for why, figures in by_reason.items()]
    return ok(identity, f"{library} sees {names}", f"not available: {'; '.join(unread)}" if unread else "")


TORCH = "torch-profiler"

# It prints after each step: where the profiler hangs, the version is known. The profiler is the one that the
# agent uses, one level below torch.profiler.profile, whose start imports torch._inductor for a second.
_PROGRAM = """
import json
def show(**found):
    print(json.dumps(found), flush=True)
try:
    import torch
except ModuleNotFoundError as error:
    show(absent=str(error)); raise SystemExit
except Exception as error:
    show(broken="%s: %s" % (type(error).__name__, error)); raise SystemExit
build = {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")}
show(version=torch.__version__, build={k: v for k, v in build.items() if v})
devices = {}
for name in ("cuda", "xpu"):
    module = getattr(torch, name, None)
    try:
        if module is not None and module.is_available():
            devices["hip" if name == "cuda" and build["hip"] else name] = module.device_count()
    except Exception:
        pass
show(devices=devices, kineto=torch.autograd.kineto_available())
try:
    from torch.autograd.profiler import profile
    with profile(use_kineto=True) as profiler:
        torch.ones(2) + 1
    show(events=len(profiler.function_events))
except Exception as error:
    show(profiler="%s: %s" % (type(error).__name__, error))
import os
os._exit(0)  # all is printed: what torch would tear down costs time
"""


class TorchFacts(msgspec.Struct):
    """What the child process printed of torch."""

    absent: str = ""
    broken: str = ""
    version: str = ""
    build: dict[str, str] = {}
    devices: dict[str, int] | None = None
    kineto: bool | None = None
    events: int | None = None
    profiler: str = ""


def check_torch(
    interpreter: Interpreter, environment: dict[str, str], sandbox: Sandbox, seconds: float = TORCH_SECONDS
) -> Check:
    """Check that torch.profiler records there; the finding names the accelerators that torch can use."""
    try:
        variables = {**environment, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # no CUDA context for a question
        # python -c imports from the current directory, which may hold a json.py of the user's.
        with sandbox.directory() as directory:
            done = sandbox.run([*interpreter.words, "-c", _PROGRAM], variables, seconds, directory)
        facts, late = _merge(done.stdout), f"the process that asked torch ended early: {last_line(done)}"
    except subprocess.TimeoutExpired as error:
        facts = _merge(str(error.stdout or ""))
        late = f"torch was not imported within {seconds:g} s"
    return judge_torch(facts, late, environment)


def _merge(output: str) -> TorchFacts:
    merged: dict[str, object] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            with suppress(msgspec.DecodeError):
                merged.update(msgspec.json.decode(line, type=dict))
    return msgspec.convert(merged, TorchFacts)


def judge_torch(facts: TorchFacts, late: str, environment: Mapping[str, str] | None = None) -> Check:
    """Judge what the process printed before its end or time limit; `late` says why it printed no more.

    `environment` is the command's: its launcher's variables tell on how many nodes the job runs.
    """
    if facts.absent:
        return unknown(TORCH, "torch is not there", facts.absent)
    if facts.broken:
        return judged(TORCH, HostFacts(torch_error=facts.broken))
    if facts.kineto is False:
        remedy = "install torch from its own wheels, or build it with USE_KINETO=1"
        fault = f"torch {facts.version} was built without Kineto"
        return judged(TORCH, HostFacts(profiler_fault=fault, remedy=remedy))
    if facts.profiler:
        return judged(TORCH, HostFacts(profiler_fault=f"it does not start: {facts.profiler}"))
    if facts.events is None or facts.devices is None:
        remedy = "iotrace doctor --timeout 300, or see what it does: python -X importtime -c 'import torch'"
        return unknown(TORCH, "no answer", late, remedy)
    if facts.events == 0:
        return judged(TORCH, HostFacts(profiler_fault="it recorded nothing of an addition"))
    build = ", ".join(f"{name.upper()} {version}" for name, version in facts.build.items()) or "CPU build"
    devices = ", ".join(counted(count, f"{name.upper()} device") for name, count in facts.devices.items())
    what = f"records; {build}, {devices or 'no accelerator that torch can use'}"
    spared = "xpu" in facts.devices and nodes_of(environment or {}) > 1
    lacks = bool(facts.build and not facts.devices)
    return judged(TORCH, HostFacts(what=what, finds_no_device=lacks, spares_device=spared))
