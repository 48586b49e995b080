"""What recording POSIX calls costs: one call, a process's start, whole programs, all beside the same bare."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tools.benchmarks.compare import command_of
from tools.benchmarks.machine import machine
from tools.benchmarks.steps import LEFT_OUT, steps_for
from tools.benchmarks.tables import heading, table
from tools.benchmarks.variants import AGAIN, AGENT, BARE, BOTH, POSIX, environment_of, interleaved, measure

import iotrace
from iotrace.launch import posix
from iotrace.session import names

DFTRACER = names.DFTRACER
_SHOWN = {
    AGAIN: "again",
    AGENT: "agent",
    POSIX: "recorder",
    BOTH: "agent, recorder",
    DFTRACER: "dftracer",
}
_WORKLOADS = Path(__file__).parent.parent.parent / "workloads"
_CALLS_SOURCE = Path(__file__).with_name("posix_calls.c")
_LOOPS, _CALLS_EACH = 7, 20_000  # the fastest of so many loops, of so many calls
_FIRST_CALLS = 4_000
# `--io-by dftracer` leaves out what is not Python, which it tells by the name.
_CALLS_PROGRAM = "python_calls"
# What posix_calls.c measures: as it is shown, and ns that are to be added at most.
_CALLS: dict[str, tuple[str, float | None]] = {
    "pread_4k": ("pread of 4 KiB", 100),
    "pread_64": ("pread of 64 bytes", 100),
    "first": ("pread of 64 bytes, first 4,000", 100),  # of the file: while each gets a burst of its own
    "open_close": ("open and close", 400),
    "stat": ("stat", 200),
    "lseek": ("lseek", None),
    "pread_elsewhere": ("pread of a file that is left out", None),
}
# Programs, and what each calls its parts: as it is shown, and the most CPU time over bare.
_PROGRAMS = {
    "tar": {"gets": ("tar, 8,000 members", 1.05)},
    "sqlite": {"gets": ("sqlite, 15,000 gets", 1.08)},
    "lmdb": {"gets": ("lmdb, 100,000 gets", 1.05)},
    "small": {"first": ("5,000 small files, first touch", 1.30), "again": ("the same again", 1.20)},
    "h5py": {"gets": ("h5py, 6,000 chunks", 1.05)},
}
_NEEDS = {"lmdb": "lmdb", "h5py": "h5py"}
_MOST_INSTRUCTIONS, _MOST_START_MS, _MOST_STEP = 0.5, 8.0, 1.01
_COMMANDS = 500

# PROGRAM, or "make PROGRAM": makes its data in the current directory. Prints the CPU time of its parts in ns:
# user and system time of its process, without the interpreter's start and imports.
_PROGRAM = """
import json, os, random, resource, sys
parts, dice = {}, random.Random(3)
def used_ns():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round(1e9 * (used.ru_utime + used.ru_stime))
def part(name, get, keys):
    before_ns = used_ns()
    for key in keys:
        get(key)
    parts[name] = used_ns() - before_ns
def some(count, below):
    return [dice.randrange(below) for _ in range(count)]
def make_tar():
    import io, tarfile
    with tarfile.open("members.tar", "w") as archive:
        for number in range(2000):
            member = tarfile.TarInfo(f"member_{number}")
            member.size = 3000
            archive.addfile(member, io.BytesIO(os.urandom(3000)))
def run_tar():
    import tarfile
    archive = tarfile.open(os.path.abspath("members.tar"))
    members = archive.getmembers()
    part("gets", lambda at: archive.extractfile(members[at]).read(), some(8000, 2000))
def make_sqlite():
    import sqlite3
    base = sqlite3.connect("rows.db")
    base.execute("create table rows(key integer primary key, value blob)")
    base.executemany("insert into rows values(?, ?)", ((key, os.urandom(500)) for key in range(40000)))
    base.commit()
def run_sqlite():
    import sqlite3
    base = sqlite3.connect(os.path.abspath("rows.db"))
    base.execute("pragma cache_size=10")
    get = "select value from rows where key=?"
    part("gets", lambda key: base.execute(get, (key,)).fetchone(), some(15000, 40000))
def make_lmdb():
    import lmdb
    base = lmdb.open("rows.lmdb", map_size=1 << 28)
    with base.begin(write=True) as writing:
        for key in range(40000):
            writing.put(b"%08d" % key, os.urandom(500))
def run_lmdb():
    import lmdb
    base = lmdb.open(os.path.abspath("rows.lmdb"), readonly=True, lock=False)
    with base.begin() as reading:
        part("gets", lambda key: reading.get(b"%08d" % key), some(100000, 40000))
def make_small():
    os.mkdir("small")
    for number in range(5000):
        with open(f"small/{number}.bin", "wb") as file:
            file.write(os.urandom(2000))
def run_small():
    paths = [os.path.abspath(f"small/{number}.bin") for number in range(5000)]
    def get(path):
        with open(path, "rb", buffering=0) as file:
            file.read()
    for name in ("first", "again"):
        dice.shuffle(paths)
        part(name, get, paths)
def make_h5py():
    import h5py, numpy
    with h5py.File("chunks.h5", "w") as file:
        file.create_dataset("rows", data=numpy.random.rand(2000, 256), chunks=(1, 256))
def run_h5py():
    import h5py
    rows = h5py.File(os.path.abspath("chunks.h5"))["rows"]
    part("gets", lambda at: rows[at], some(6000, 2000))
globals()["_".join(sys.argv[1:] if sys.argv[1] == "make" else ["run", sys.argv[1]])]()
print(json.dumps(parts))
"""


@dataclass
class Figure:
    """What one thing took in each round, by variant.

    `most` is the bar for the variants `judged`: of a ratio over bare, or of what is added to it.
    """

    name: str
    unit: str  # empty where the ratio is looked at
    most: float | None = None
    over: str = BARE
    digits: int = 0
    judged: tuple[str, ...] = (POSIX,)
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def note(self, variant: str, value: float) -> None:
        self.rounds.setdefault(variant, []).append(value)

    def changes(self, variant: str) -> list[float]:
        """Round by round: over the same round's bare run, or minus it."""
        pairs = zip(self.rounds[variant], self.rounds[self.over], strict=True)
        return [traced - bare if self.unit else traced / bare for traced, bare in pairs]

    def rows(self) -> list[list[str]]:
        return [self._row(variant) for variant in self.rounds if variant != self.over]

    def _row(self, variant: str) -> list[str]:
        found = self.changes(variant)
        digits = self.digits if self.unit else 3
        middle, least, most = (f"{value:.{digits}f}" for value in (median(found), min(found), max(found)))
        levels = [f"{median(self.rounds[of]):.{self.digits}f}" for of in (self.over, variant)]
        return [
            self.name,
            _SHOWN[variant],
            *levels,
            f"{middle} ({least} to {most})",
            self._bar(variant, median(found)),
        ]

    def _bar(self, variant: str, found: float) -> str:
        if self.most is None or variant not in self.judged:
            return ""
        return f"{self.most:g}: {'met' if found <= self.most else 'missed'}"


@dataclass(frozen=True)
class Group:
    """Figures of one kind, or why there are none."""

    title: str
    figures: list[Figure]
    left_out: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        heads = ["", "", "bare", "traced", "change (least to most)", "at most"]
        rows = [row for figure in self.figures for row in figure.rows()]
        return [f"{self.title}:", "", *(table(heads, rows) if rows else []), *self.left_out, ""]


@dataclass(frozen=True)
class Ran:
    printed: str
    errors: str
    cpu_ns: int  # user and system, of it and the children that it waited for
    wall_ns: int


def main() -> None:
    options = _options()
    # An installed package has its bytecode; a checkout that may not write any would be compiled each time.
    compileall.compile_dir(Path(iotrace.__file__).parent, quiet=1)
    about = machine()
    found: dict[str, Group] = {}
    for name in options.only:
        found[name] = _GROUPS[name](options)
        if not options.json:
            print("\n".join(found[name].lines()), flush=True)
    load_after = os.getloadavg()[0]
    if options.json:
        groups = {name: asdict(group) for name, group in found.items()}
        print(json.dumps({"machine": about, "load_average_after": load_after, "groups": groups}, indent=2))
    else:
        print(heading(about, load_after))


def _options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench posix", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="each runs every variant once, shuffled (15)")
    parser.add_argument(
        "--only", action="append", choices=list(_GROUPS), metavar="NAME", help=f"of {', '.join(_GROUPS)}"
    )
    parser.add_argument(
        "--dftracer", action="store_true", help="programs and commands by dftracer, too: slow"
    )
    parser.add_argument("--loops", action="store_true", help="the steps of two workloads, too: minutes")
    parser.add_argument("--seconds", type=float, default=5.0, help="of steps in each run of a loop (5)")
    parser.add_argument("--json", action="store_true", help="print JSON: every round of every variant")
    options = parser.parse_args(words)
    if options.rounds < 1 or not 0 < options.seconds < 3600:
        parser.error("--rounds must be 1 or more, --seconds above 0")
    asked = options.only or [name for name in _GROUPS if name != "loops"]
    options.only = [name for name in _GROUPS if name in asked or (name == "loops" and options.loops)]
    return options


# -- running


def _environment(variant: str, session: Path) -> dict[str, str]:
    if variant != DFTRACER:
        return environment_of(variant, session)
    (session / names.POSIX).mkdir(parents=True)
    bare = environment_of(BARE, session)
    capture = posix.plan(sys.executable, [], DFTRACER)
    return {**bare, **posix.environment(capture, session / names.POSIX, bare)}


def _run(variant: str, command: list[str], directory: Path, has_calls: bool = True) -> Ran:
    """Run it once; SystemExit where it fails, or where a tracer saw none of its calls that it should have."""
    with tempfile.TemporaryDirectory(prefix="iotrace-bench-") as scratch:
        session = Path(scratch) / "session"
        environment = {**_environment(variant, session), "PWD": str(directory), "OMP_NUM_THREADS": "1"}
        before, begin_ns = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic_ns()
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
        wall_ns, after = time.monotonic_ns() - begin_ns, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"tools/bench: {variant}: {command[0]} failed:\n{done.stderr[-2000:]}")
        is_traced = variant in (POSIX, BOTH, DFTRACER) and has_calls
        # A log without any call has some lines.
        if is_traced and not any(path.stat().st_size > 4096 for path in (session / names.POSIX).iterdir()):
            raise SystemExit(f"tools/bench: {variant}: nothing was recorded of {command[0]}")
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(done.stdout, done.stderr, round(1e9 * used_s), wall_ns)


def _variants(options: argparse.Namespace, is_slow: bool = True) -> tuple[list[str], list[str]]:
    """Bare, bare again, recorded; and by dftracer, where that is asked for or not slow. Or why not."""
    variants = [BARE, AGAIN, POSIX]
    if is_slow and not options.dftracer:
        return variants, []
    why_not = posix.plan(sys.executable, [], DFTRACER).why_not
    return (variants, [f"dftracer is left out: {why_not}"]) if why_not else ([*variants, DFTRACER], [])


@contextmanager
def _data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="iotrace-bench-data-") as directory:
        yield Path(directory)


def _compiled(directory: Path) -> list[str]:
    """The command of the compiled posix_calls.c, with its files; empty without a compiler."""
    compiler = shutil.which("cc")
    if not compiler:
        return []
    program, data = directory / _CALLS_PROGRAM, directory / "data.bin"
    subprocess.run([compiler, "-O2", "-o", program, _CALLS_SOURCE], check=True)
    data.write_bytes(os.urandom(1 << 20))
    return [str(program), str(data), os.__file__]


# -- what is measured


def _calls(options: argparse.Namespace) -> Group:
    title = "ns of the thread's CPU time for a call"
    variants, left_out = _variants(options, is_slow=False)
    figures = {name: Figure(shown, "ns", most) for name, (shown, most) in _CALLS.items()}
    with _data() as directory:
        command = _compiled(directory)
        if not command:
            return Group(title, [], ["left out: there is no C compiler (cc)"])
        for order in interleaved(variants, options.rounds):
            for variant in order:
                ran = _run(variant, [*command, str(_LOOPS), str(_CALLS_EACH)], directory)
                for name, each_ns in calls_ns(ran.printed, _CALLS_EACH).items():
                    figures[name].note(variant, each_ns)
                ran = _run(variant, [*command, "1", str(_FIRST_CALLS), "pread_64"], directory)
                figures["first"].note(variant, calls_ns(ran.printed, _FIRST_CALLS)["pread_64"])
    return Group(title, _in_order(figures.values(), variants), left_out)


def calls_ns(printed: str, calls: int) -> dict[str, float]:
    """What one call took, by the lines of posix_calls.c."""
    return {name: int(taken_ns) / calls for name, taken_ns in map(str.split, printed.splitlines())}


def _instructions(options: argparse.Namespace) -> Group:
    """One run each: they do not depend on what else runs."""
    counter, why_not = _counter()
    title = f"user-space instructions, by {counter[0] if counter else 'perf'}"
    if not counter:
        return Group(title, [], [f"left out: {why_not}"])
    variants, left_out = _variants(options, is_slow=False)
    variants.remove(AGAIN)
    start = Figure("start of /bin/true, millions", "M", _MOST_INSTRUCTIONS, digits=2)
    call = Figure("pread of 4 KiB", "instructions")
    with _data() as directory:
        command = _compiled(directory)
        for variant in variants:
            ran = _run(variant, [*counter, "/bin/true"], directory, has_calls=False)
            start.note(variant, counted(ran.errors) / 1e6)
            told = [
                _run(variant, [*counter, *command, "1", str(calls), "pread_4k"], directory).errors
                for calls in (1_000, 11_000)
                if command and variant != DFTRACER  # which is kept out of what valgrind runs
            ]
            if told:
                call.note(variant, (counted(told[1]) - counted(told[0])) / 10_000)
    reasons = [f"by {counter[0]}: {why_not}"] if why_not else []
    return Group(title, [start, *([call] if command else [])], [*left_out, *reasons])


def _counter() -> tuple[list[str], str]:
    """What counts instructions here: perf, else callgrind; and why not perf."""
    why_not = "perf is not installed"
    if shutil.which("perf"):
        command = ["perf", "stat", "-x,", "-e", "instructions:u"]
        told = subprocess.run([*command, "/bin/true"], capture_output=True, text=True).stderr
        if counted(told):
            return command, ""
        why_not = f"perf counts no instructions here: {told.strip()}"
    if shutil.which("valgrind"):
        return ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"], why_not
    return [], why_not


def counted(told: str) -> int:
    """Instructions, by what perf or callgrind says; 0: it does not."""
    found = re.search(r"^(\d+),[^,]*,instructions|Collected : (\d+)", told, re.MULTILINE)
    return int(found[1] or found[2]) if found else 0


def _programs(options: argparse.Namespace) -> Group:
    variants, left_out = _variants(options)
    figures: dict[tuple[str, str], Figure] = {}
    with _data() as directory:
        for program, parts in _PROGRAMS.items():
            why_not = _make(program, directory)
            if why_not:
                left_out.append(f"{program} is left out: {why_not}")
                continue
            for part, (shown, most) in parts.items():
                figures[program, part] = Figure(shown, "", most)
        chosen = list(dict.fromkeys(program for program, _ in figures))
        for turn, order in enumerate(interleaved(variants, options.rounds * len(chosen))):
            program = chosen[turn % len(chosen)]
            for variant in order:
                ran = _run(variant, [sys.executable, "-c", _PROGRAM, program], directory)
                for part, taken_ns in json.loads(ran.printed).items():
                    figures[program, part].note(variant, taken_ns / 1e6)
    return Group("ms of CPU time of a program's reads", _in_order(figures.values(), variants), left_out)


def _make(program: str, directory: Path) -> str:
    """Make its data; or say which module it lacks."""
    command = [sys.executable, "-c", _PROGRAM, "make", program]
    made = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if f"No module named '{_NEEDS.get(program)}'" in made.stderr:
        return f"the module {_NEEDS[program]} is not installed"
    if made.returncode:
        raise SystemExit(f"tools/bench: no data for {program}:\n{made.stderr[-2000:]}")
    return ""


def _start(options: argparse.Namespace) -> Group:
    variants = [BARE, AGAIN, AGENT, POSIX, BOTH]
    more, left_out = _variants(options)
    variants += [variant for variant in more if variant not in variants]
    alone = Figure("python -c pass", "ms", _MOST_START_MS, digits=2, judged=(BOTH,))
    with _data() as directory:
        for order in interleaved(variants, 2 * options.rounds):  # they are short
            for variant in order:
                ran = _run(variant, [sys.executable, "-c", "pass"], directory, has_calls=False)
                alone.note(variant, ran.cpu_ns / 1e6)
    return Group("ms of CPU time of a process", _in_order([alone], variants), left_out)


def _commands(options: argparse.Namespace) -> Group:
    variants, left_out = _variants(options)
    script = f"at=0; while [ $at -lt {_COMMANDS} ]; do /bin/true; at=$((at + 1)); done"
    figure = Figure(f"{_COMMANDS} short commands", "", digits=0)
    with _data() as directory:
        for order in interleaved(variants, options.rounds):
            for variant in order:
                ran = _run(variant, ["/bin/sh", "-c", script], directory, has_calls=False)
                figure.note(variant, ran.wall_ns / 1e6)
    return Group("ms of wall time of a shell script", _in_order([figure], variants), left_out)


def _loops(options: argparse.Namespace) -> Group:
    """The agent is what is compared with: what the recorder adds to it."""
    variants, figures = [AGENT, AGAIN, BOTH], []
    with _data() as directory:
        for name in ("unet3d_hdf5", "volumes_npz"):
            figure = Figure(name, "", _MOST_STEP, over=AGENT, digits=2, judged=(BOTH,))
            cpu = Figure(f"{name}, CPU of the whole program", "", over=AGENT)
            figures += [figure, cpu]
            workload = _WORKLOADS / f"{name}.py"
            step_s = measure(AGENT, command_of(workload, LEFT_OUT + 20), directory).step_s
            assert step_s is not None
            command = command_of(workload, steps_for(step_s, options.seconds))
            for order in interleaved(variants, options.rounds):
                for variant in order:
                    sample = measure(AGENT if variant == AGAIN else variant, command, directory)
                    assert sample.step_s is not None
                    assert sample.cpu_s is not None
                    figure.note(variant, 1000 * sample.step_s)
                    cpu.note(variant, 1000 * sample.cpu_s)
                    print(f"{name} {variant}: {1000 * sample.step_s:.2f} ms a step", file=sys.stderr)
    return Group(
        "ms of wall time of a step; of CPU time; bare: the agent alone",
        [_sorted(figure, variants) for figure in figures],
    )


def _in_order(figures: Any, variants: list[str]) -> list[Figure]:
    return [_sorted(figure, variants) for figure in figures]


def _sorted(figure: Figure, variants: list[str]) -> Figure:
    """With its variants in the order in which they are shown."""
    figure.rounds = {variant: figure.rounds[variant] for variant in variants}
    return figure


_GROUPS: dict[str, Callable[[argparse.Namespace], Group]] = {
    "calls": _calls,
    "instructions": _instructions,
    "programs": _programs,
    "start": _start,
    "commands": _commands,
    "loops": _loops,
}


if __name__ == "__main__":
    main()
