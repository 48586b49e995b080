"""Run deterministic programs under the agents of checkouts, and write what their sessions hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.golden_cases.checkout import Checkout
from tools.golden_cases.normal import Masks
from tools.golden_cases.recording import PROGRAMS, Recorded, Recorder
from tools.golden_cases.session_files import lines_of
from tools.golden_cases.write import MARKER

_OWN_LOG = {"DFTRACER_ENABLE": "1", "DFTRACER_INIT": "FUNCTION"}
_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "ranks.py"))
_SWEEP = ("sweep", "--workers", "1", "--steps", "8", "-o", "session", "--")

# The words after ``python``; a program that is "alone" makes its session itself.
_TRACED: dict[str, tuple[str, ...]] = {
    "readers_0": ("readers.py", "0"),
    "readers_2": ("readers.py", "2"),
    "regions": ("regions.py",),
    "regions_spawn": ("regions.py", "spawn"),
    "lightning": ("lightning_fit.py",),
    "own_profiler": ("own_profiler.py",),
    "marks": ("marks.py",),
    "marks_own_log": ("marks.py", "own/log"),
    "sleeper": ("sleeper.py", "--workers", "1"),
}
_ALONE = {"callback": "lightning_fit.py", "profile": "profiled.py"}


def write_agent(
    checkout: Checkout, out: Path, wanted: Callable[[str], bool], say: Callable[[str], None]
) -> None:
    """Run every wanted program under `checkout` and write what its session holds below `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("Results of tools/golden agent\n")
    names = [*_TRACED, "ranks", "sweep", *_ALONE]
    for name in filter(wanted, names):
        say(f"{checkout.path}: {name}")
        with tempfile.TemporaryDirectory(prefix="golden-") as directory:
            lines = _run(checkout, name, Path(directory).resolve())
        (out / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _run(checkout: Checkout, name: str, directory: Path) -> list[str]:
    """The lines of the sessions that the program made in `directory`."""
    recorder = Recorder(Recorded(directory), checkout)
    (directory / "work" / "own").mkdir(parents=True)
    (directory / "logs").mkdir()
    session = directory / "work" / "session"
    variables: dict[str, str] = {}
    if name in _TRACED:
        program, *words = _TRACED[name]
        if program == "readers.py":
            recorder.run(name, [checkout.python, str(PROGRAMS / program), "0", "0"])
        line = recorder.traced(session, str(PROGRAMS / program), *words, options=["--quiet"])
        variables = _OWN_LOG if name == "marks_own_log" else {}
    elif name == "ranks":
        line = recorder.traced(session, *_RANKS, options=["--quiet"])
    elif name == "sweep":
        line = checkout.command(*_SWEEP, checkout.python, str(PROGRAMS / "sleeper.py"))
    else:
        line = [checkout.python, str(PROGRAMS / _ALONE[name]), str(session)]
    recorder.run(name, line, int(name == "sweep"), **variables)  # of one point, which says nothing
    masks = Masks({"work": directory / "work", "checkout": checkout.path, "programs": PROGRAMS})
    sessions = sorted(path.parent for path in session.parent.rglob("manifest.json"))
    return [f"{path.name}: {line}" for path in sessions for line in lines_of(path, masks.paths)]
