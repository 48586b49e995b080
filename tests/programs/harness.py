"""Run a program of the battery bare and under iotrace, and list in what the two disagree."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs import own_clock
from tests.programs.catalog import COMMON, Known, Program
from tests.programs.own_clock import OwnClock
from tests.support.runs import environment, in_process

TOLERANCE = 0.01  # of the loop: how far two clocks over the same run may lie apart
_MOST_SKIPPED = 8  # the first step, and those that await a worker's first batch
_SECONDS = 400
_STAMP = re.compile(r"(?<=^[IWEF]\d{4} )[\d:.]+ +\d+ ")  # time and thread in a line of a library's log


@dataclass
class Outcome:
    """A program's figures, its own beside those told, and every disagreement."""

    program: Program
    disagreements: list[str] = field(default_factory=list)
    skipped: str | None = None
    own_steps: list[int] = field(default_factory=list)
    told_steps: list[int | None] = field(default_factory=list)
    own_fractions: list[float | None] = field(default_factory=list)
    told_fractions: list[float | None] = field(default_factory=list)
    causes: list[str | None] = field(default_factory=list)
    files: list[str | None] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether the program ran, and nothing disagrees."""
        return self.skipped is None and not self.disagreements

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        if self.skipped is not None:
            return f"skipped: {self.skipped}"
        return "; ".join(self.disagreements) or "agrees"


@dataclass(frozen=True)
class _Ran:
    code: int
    stdout: str
    stderr: str


def examine(program: Program, directory: Path, bare: bool = True) -> Outcome:
    """Run `program` traced and, if `bare`, also without iotrace below `directory`, and compare."""
    outcome = Outcome(program)
    if program.missing is not None:
        outcome.skipped = f"no module {program.missing}"
        return outcome
    try:
        _run_and_compare(outcome, directory, bare)
    except Exception as error:  # a report that fails is one program's row, not the table's end
        outcome.disagreements.append(f"no figures: {error!r}")
    return outcome


def _run_and_compare(outcome: Outcome, directory: Path, bare: bool) -> None:
    program = outcome.program
    session = directory / "session"
    trace = [sys.executable, "-m", "iotrace", "run", "-q", "--torch-steps", "off", "-o", str(session), "--"]
    # Both at once: the programs sleep more than they work, and no time of one is compared with the other's.
    started = {"traced": _start(program, directory / "traced", trace)}
    if bare:
        started["bare"] = _start(program, directory / "bare", [])
    ran = {name: _end(process, directory / name) for name, process in started.items()}
    _compare_runs(outcome, ran.get("bare", ran["traced"]), ran["traced"])
    report = json.loads(_report(session, "--json"))
    _compare_report(outcome, report, directory / "traced")
    said = [each["code"] for each in report["recommendations"]]
    remedies = [each["remedy"] for each in report["recommendations"]]
    if program.known.fix and not next(iter(remedies), "").startswith(program.known.fix):
        outcome.disagreements.append(f"remedies {remedies}, not first {program.known.fix}")
    if program.known.says not in (None, *said):
        outcome.disagreements.append(f"rules {said}, not {program.known.says}")
    if program.known.silent in said:
        outcome.disagreements.append(f"{program.known.silent}, which is not so")
    if not program.known.torch and "torch" in _report(session):
        outcome.disagreements.append("the report speaks of torch")


def _report(session: Path, *options: str) -> str:
    done = in_process("report", str(session), *options)
    if done.returncode:
        raise RuntimeError(f"iotrace report ends with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _start(program: Program, directory: Path, prefix: list[str]) -> subprocess.Popen[str]:
    directory.mkdir(parents=True)
    ranks = program.known.ranks
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(COMMON), environment().get("PYTHONPATH")))),
        "PYTHONWARNINGS": "default",
        "OMP_NUM_THREADS": "1",
        "OWN_CLOCK": str(directory / "own-clock"),
    }
    process = subprocess.Popen(
        [*prefix, sys.executable, *(torchrun if ranks > 1 else []), str(program.path)],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    _prefer(process.pid)
    return process


def _prefer(pid: int) -> None:
    """Have the program run before others, where the system allows that.

    A busy machine may take its CPU between a stamp of its own clock and one of iotrace's.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, -10)
        Path(f"/proc/{pid}/autogroup").write_text("-10")


def _end(process: subprocess.Popen[str], directory: Path) -> _Ran:
    try:
        stdout, stderr = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        stderr += f"\nended after {_SECONDS} s"
    return _Ran(process.returncode, *(text.replace(str(directory), ".") for text in (stdout, stderr)))


def _compare_runs(outcome: Outcome, bare: _Ran, traced: _Ran) -> None:
    expected = outcome.program.known.exit
    if (bare.code, traced.code) != (expected, expected):
        said = (bare if bare.code != expected else traced).stderr.strip().splitlines() or [""]
        codes = f"{bare.code} bare, {traced.code} traced"
        outcome.disagreements.append(f"exit code {codes}, not {expected} ({said[-1]})")
    for what in ("stdout", "stderr"):
        ours, theirs = (_lines(getattr(run, what)) for run in (traced, bare))
        if ours != theirs:
            first = next(iter([line for line in ours if line not in theirs] or theirs), "")
            outcome.disagreements.append(f"another {what} ({first})")


def _lines(text: str) -> list[str]:
    lines = (_STAMP.sub("", line) for line in text.splitlines())
    return [line for line in lines if not line.startswith("iotrace")]


def _compare_report(outcome: Outcome, report: dict[str, Any], directory: Path) -> None:
    known = outcome.program.known
    ranks = report["ranks"]
    if len(ranks) != known.ranks and not (not ranks and known.unknown == "always"):
        outcome.disagreements.append(f"{len(ranks)} ranks, not {known.ranks}")
    for number in range(known.ranks):
        clock = own_clock.read(directory / f"own-clock.{number}")
        rank = ranks[number] if number < len(ranks) else None
        outcome.own_steps.append(len(clock.cuts))
        if len(clock.cuts) != known.steps:
            outcome.disagreements.append(f"made {len(clock.cuts)} steps, not {known.steps}")
        _compare_steps(outcome, clock, rank)
        if rank is not None:
            _compare_causes(outcome, known, rank, directory)


def _compare_steps(outcome: Outcome, clock: OwnClock, rank: dict[str, Any] | None) -> None:
    """Compare steps and wait of a rank; `rank` is None where the report has none."""
    known = outcome.program.known
    steps = rank["steps"] if rank else {}
    begun = steps.get("begun")
    fraction = rank["data_wait"]["raw_wait_fraction"] if rank else None
    excluded = steps.get("excluded") or {"first": 1, "warmup": 0, "profiled": 0}
    skipped = sum(excluded.values())
    own = clock.fraction(skipped)
    outcome.told_steps.append(begun)
    outcome.own_fractions.append(own)
    outcome.told_fractions.append(fraction)
    if fraction is None and known.unknown:
        if rank is not None and not steps.get("unknown_why"):
            outcome.disagreements.append("no reason why the wait is unknown")
        if begun not in (None, len(clock.cuts)):
            outcome.disagreements.append(f"told {begun} steps, made {len(clock.cuts)}")
        return
    if begun != len(clock.cuts):
        outcome.disagreements.append(f"told {begun} steps, made {len(clock.cuts)}")
    if skipped > _MOST_SKIPPED or steps.get("count", 0) + skipped < len(clock.cuts) - 1:
        outcome.disagreements.append(f"measured {steps.get('count')} steps, left out {skipped}")
    if known.unknown == "always":
        outcome.disagreements.append(f"told {fraction}, where the wait cannot be known")
    elif fraction is None or own is None:
        why = steps.get("unknown_why")
        outcome.disagreements.append("the wait is unknown" + (f": {why}" if why else ""))
    elif abs(fraction - own) > TOLERANCE:
        outcome.disagreements.append(f"told {fraction:.1%}, own {own:.1%}")


def _compare_causes(outcome: Outcome, known: Known, rank: dict[str, Any], directory: Path) -> None:
    wait = rank["data_wait"]
    causes = wait["causes_ms"] or {}
    cause = max(causes, key=lambda name: causes[name] or 0) if any(causes.values()) else None
    file = wait["files"][0]["path"] if wait["files"] else None
    outcome.causes.append(cause)
    outcome.files.append(file and os.path.relpath(directory / file, directory))
    told = wait["raw_wait_fraction"] is not None
    if known.causes and cause not in known.causes and told:
        outcome.disagreements.append(f"cause {cause}, not {' or '.join(known.causes)}")
    if known.file and outcome.files[-1] != known.file and told:
        outcome.disagreements.append(f"file {outcome.files[-1]}, not {known.file}")
    if known.after and told:
        after = max(wait["files"], key=lambda cost: cost["transform_ms"], default=None)
        named = after and os.path.relpath(directory / after["path"], directory)
        if after is None or named != known.after or after["transform_ms"] < causes["transform"] / 2:
            outcome.disagreements.append(f"transform after {named}, not {known.after}")
    after = max(wait["files"], key=lambda one: one.get("transform_ms") or 0, default={"path": None})["path"]
    if (
        known.after
        and told
        and (after is None or os.path.relpath(directory / after, directory) != known.after)
    ):
        outcome.disagreements.append(f"after reading {after}, not {known.after}")
    if known.stage and told:
        slowest = [stage["name"] for stage in rank["pipeline"] if stage["slowest"]]
        if slowest != [known.stage]:
            outcome.disagreements.append(f"slowest stage {slowest}, not {known.stage}")
        lines = [(stage["hot"] or {"line": ""})["line"] for stage in rank["pipeline"] if stage["slowest"]]
        if known.hot is not None and [line.rpartition("/")[2] for line in lines] != [known.hot]:
            outcome.disagreements.append(f"most of its work at {lines}, not {known.hot}")
    if known.reads:
        reads = rank["loop_reads"]["files"] if rank["loop_reads"] else []
        if [os.path.relpath(directory / cost["path"], directory) for cost in reads[:1]] != [known.reads]:
            outcome.disagreements.append(f"the loop reads {reads[:1]}, not {known.reads}")
    if known.loaders is not None and len(rank["loaders"]) != known.loaders:
        outcome.disagreements.append(f"{len(rank['loaders'])} loaders, not {known.loaders}")
    parts = wait.get("by_loader")
    if parts and abs(sum(part["raw_ms"] for part in parts) - wait["raw_ms"]) > 1e-3 * wait["raw_ms"] + 1e-6:
        outcome.disagreements.append("the waits of the loaders do not sum to the loop's")
