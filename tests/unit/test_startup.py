"""The start-up: imports as Python makes them, noted without a trace; the waterfall of made-up ranges."""

from __future__ import annotations

import importlib
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.agent import patching
from iotrace.agent.dataloader import spawning
from iotrace.agent.recording import import_times
from iotrace.agent.recording.encode import encode
from iotrace.analysis.results import ImportMount, LoadedFile, RankReport, Startup, StartupPart
from iotrace.analysis.startup.imports import (
    IMPORTS,
    STANDARD,
    ImportTable,
    imports_of,
    outer_imports,
    own_cpu_ns,
)
from iotrace.analysis.startup.waterfall import NOT_NAMED, READS, Range, painted
from iotrace.sources.records import Imports
from tests.support.counting import instructions
from tests.support.results import unknown
from tests.support.rules import blamed_by

MODULES = {
    "outer_made/__init__.py": "import inner_made",
    "outer_made/missing.py": "import inner_made.no_such_module",
    "outer_made/relative.py": "from . import no_such_name",
    "outer_made/fails.py": "def fail():\n    raise ValueError('in the module')\nfail()",
    "outer_made/nested.py": "import outer_made.fails",
    "outer_made/syntax.py": "x = = 1",
    "outer_made/warns.py": "import warnings\nfor level in range(1, 9):\n"
    "    warnings.warn(f'{level}', stacklevel=level)",
    "outer_made/deep.py": "import sys\ndepth, frame = 0, sys._getframe()\nwhile frame:\n"
    "    depth, frame = depth + 1, frame.f_back\nprint(depth, file=sys.stderr)",
    "inner_made/__init__.py": "import keyword",
}
# Imports each module, bare or noted, and prints what comes of it.
PROGRAM = """
import sys, traceback, types, warnings
from pathlib import Path
sys.path[:0] = sys.argv[2].split(":")
if sys.argv[1] == "noted":
    from iotrace.agent.recording import import_times
    recorder = types.SimpleNamespace(imports=None)
    recorder.imports = import_times.install()
warnings.simplefilter("always")
class Own:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("own_made"):
            return __import__("importlib.util").util.spec_from_loader(name, Own())
    def create_module(self, spec):
        if spec.name == "own_made_at_once":
            raise ValueError("no module of it")
    def exec_module(self, module):
        raise KeyError(module.__name__)
sys.meta_path.append(Own)
for name in sys.argv[3:]:
    try:
        __import__(name)
    except Exception:
        traceback.print_exc()
if sys.argv[1] == "noted":
    assert len(recorder.imports.record()["names"].split()) > 9
"""


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Path]:
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("outer_made", "inner_made")]:
        del sys.modules[name]


@pytest.fixture
def noted(modules: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A recorder that notes imports, of `modules` too."""
    monkeypatch.syspath_prepend(str(modules))
    recorder: Any = SimpleNamespace(imports=None)
    before = list(patching._undo)
    patching._undo.clear()
    recorder.imports = import_times.install()
    yield recorder
    patching.undo_all()
    patching._undo.extend(before)


def decoded(record: dict[str, Any]) -> Any:
    """What a reader makes of a record, with a clock that shifts by 5 ns."""
    found = msgspec.json.decode(encode(record), type=Imports)
    clock = SimpleNamespace(
        to_session_ns=lambda ns: ns + 5, times_to_session_ns=lambda times: np.array(times) + 5
    )
    return imports_of(SimpleNamespace(of_type=lambda _: [found], clock=clock))  # type: ignore[arg-type]


def test_nested_imports_are_noted_inside_each_other(noted: Any, modules: Path) -> None:
    importlib.import_module("outer_made")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("outer_made.missing")
    record = noted.imports.record()
    names = record["names"].split("\n")
    assert names[-4:] == ["inner_made", "outer_made", "inner_made.no_such_module", "outer_made.missing"]
    table = decoded(record)
    of = {name: table.rows[at] for at, name in enumerate(names)}
    for inner, outer in (("inner_made", "outer_made"), ("inner_made.no_such_module", "outer_made.missing")):
        assert of[outer]["start_ns"] <= of[inner]["start_ns"]
        ends = [each["start_ns"] + each["duration_ns"] for each in (of[inner], of[outer])]
        assert ends[0] <= ends[1]
    assert table.directories["outer_made"] == str(modules)
    assert noted.imports.record() is None  # all were taken out


def test_threads_import_at_once(noted: Any, modules: Path) -> None:
    names = [f"thread_made_{number}" for number in range(8)]
    for name in names:
        (modules / f"{name}.py").write_text("import inner_made")
    importlib.invalidate_caches()
    threads = [threading.Thread(target=importlib.import_module, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = noted.imports.record()
    found = record["names"].split("\n")
    assert set(names) <= set(found)
    tids = dict(zip(found, decoded(record).rows["tid"].tolist(), strict=True))
    assert len({tids[name] for name in names} - {threading.get_native_id()}) > 1
    for name in names:
        del sys.modules[name]


def test_tracebacks_warnings_and_depth_are_as_without(modules: Path) -> None:
    paths = ":".join([str(modules), str(Path(import_times.__file__).parents[3])])
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in MODULES]
    names += ["own_made", "own_made_at_once", "nowhere_made"]
    bare, noted = (
        subprocess.run([sys.executable, "-c", PROGRAM, how, paths, *names], capture_output=True, timeout=300)
        for how in ("bare", "noted")
    )
    assert (noted.stderr, noted.returncode) == (bare.stderr, 0)
    assert bare.stderr.count(b"Traceback") >= 7


def test_a_handler_that_raises_leaves_the_import_system_whole(noted: Any, modules: Path) -> None:
    def late(*_: Any) -> None:
        raise TimeoutError("late")

    (modules / "late_made.py").write_text("import signal\nsignal.raise_signal(signal.SIGUSR1)")
    before = signal.signal(signal.SIGUSR1, late)
    try:
        for _ in range(2):  # a lock that was kept would wait here for ever
            with pytest.raises(TimeoutError):
                importlib.import_module("late_made")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert noted.imports.record()["names"].split("\n").count("late_made") == 2


def test_it_can_be_taken_back_and_stays_off_where_python_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    system: Any = sys.modules["_frozen_importlib"]
    original, before = system._ModuleLockManager, list(patching._undo)
    patching._undo.clear()
    recorder: Any = SimpleNamespace(imports=None)
    recorder.imports = import_times.install()
    assert system._ModuleLockManager is not original
    patching.undo_all()
    assert system._ModuleLockManager is original
    for other in (None, SimpleNamespace, lambda name: None):
        monkeypatch.setattr(system, "_ModuleLockManager", other)
        strange: Any = SimpleNamespace(imports=None)
        strange.imports = import_times.install()
        monkeypatch.undo()
        assert strange.imports is None
    patching._undo.extend(before)


def test_an_import_costs_few_instructions_more_and_the_notes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    system: Any = sys.modules["_frozen_importlib"]
    monkeypatch.setattr(import_times, "_MOST", 3)
    rows: list[Any] = []
    timed = import_times._timed(system._ModuleLockManager, rows)

    def lock(manager: Any) -> None:
        with manager("a_made_name"):
            pass

    lock(system._ModuleLockManager)
    added = instructions(lambda: lock(timed)) - instructions(lambda: lock(system._ModuleLockManager))
    assert 0 < added < 70
    for _ in range(5):
        lock(timed)
    assert len(rows) == 3


def test_what_python_brings_is_one_package_and_damaged_lines_are_left_out() -> None:
    rows = [(10, 5, 7, "json.decoder"), (12, 1, 7, "re"), (20, 9, 8, "made.part"), (30, 2, 8, "made")]
    notes = import_times.Imports([(start, start + ns, 1, tid, name) for start, ns, tid, name in rows], 3)
    assert not notes.long
    record = notes.record()
    assert record is not None
    table = decoded(record)
    assert table.packages == [STANDARD, "made"]
    assert table.package.tolist() == [0, 0, 1, 1]
    assert table.rows["start_ns"].tolist() == [15, 17, 25, 35]
    assert table.begun_ns == 8
    assert decoded({**record, "names": "one"}) is None


def test_each_instant_belongs_to_the_innermost_range() -> None:
    ranges = [
        Range("interpreter", 0, 10),
        Range("import a", 20, 60),
        Range("import b", 30, 40),
        Range("import a", 32, 34),
        Range("step", 70, 500),
        Range("later", 200, 300),
    ]
    assert painted(ranges, 0, 100) == {
        "interpreter": (0, 10),
        NOT_NAMED: (10, 20),
        "import a": (20, 32),
        "import b": (30, 8),
        "step": (70, 30),
    }


def started(imports: float, whole: float, waiting: float | None = None) -> Startup:
    parts = [
        StartupPart(name=IMPORTS, at_seconds=0.1, seconds=imports),
        StartupPart(name=NOT_NAMED, at_seconds=0.2, seconds=whole - imports),
    ]
    return Startup(
        seconds=whole,
        first_step_seconds=whole,
        named_fraction=0.9,
        parts=parts,
        imports_waiting_seconds=waiting,
    )


@pytest.mark.parametrize(
    ("startup", "said", "mended"),
    [
        (started(40, 60, 30), "imports are 40.0 of the 60.0 s to the end of the first step, 30.0", True),
        (
            started(40, 60, 4),
            "imports are 40.0 of the 60.0 s",
            False,
        ),  # they compute: another disk is no help
        (started(40, 60), "imports are 40.0 of the 60.0 s", False),  # what a busy CPU took is not known
        (started(4, 60, 4), "", False),  # the model, the data, or what else: not the imports
        (started(0.5, 0.6, 0.5), "", False),
        (Startup(seconds=9), "", False),
        (None, "", False),
    ],
)
def test_imports_are_named_where_they_are_most_of_the_start(
    startup: Startup | None, said: str, mended: bool
) -> None:
    found = blamed_by("IO404", unknown(RankReport, startup=startup))
    assert len(found) == bool(said)
    for culprit in found:
        assert culprit.text.startswith(said)
        assert bool(culprit.remedy) == mended
        assert not culprit.leads


@pytest.mark.parametrize(
    ("loaded", "built", "remedy"),
    [
        (("pickle.load", 12.0, 0.2), 0.0, "fewer and larger arrays or tensors"),
        (("torch.load", 12.0, 11.0), 0.0, ""),  # it waits for the disk
        (("torch.load", 12.0, None), 0.0, ""),  # nobody knows
        (("pickle.load", 12.0, 0.2), 9.0, "if every run makes the same, store"),  # an index is built, too
        (None, 0.0, "if every run makes the same, store"),
    ],
)
def test_who_loads_a_stored_result_is_not_asked_to_store_it(
    loaded: tuple[str, float, float | None] | None, built: float, remedy: str
) -> None:
    parts = [
        StartupPart(name=READS, at_seconds=1.0, seconds=12.0),
        StartupPart(name="index (train.py)", at_seconds=13.0, seconds=built, sampled=True),
    ]
    stored = loaded and LoadedFile(call=loaded[0], file="a.pkl", seconds=loaded[1], reading_seconds=loaded[2])
    startup = Startup(seconds=22, first_step_seconds=22.0, parts=parts, loaded=stored)
    (culprit,) = blamed_by("IO412", unknown(RankReport, startup=startup))
    assert culprit.remedy.startswith(remedy)
    assert bool(culprit.remedy) == bool(remedy)


@pytest.mark.parametrize(
    ("slept", "named"),
    [({"nfs4 /env": 29.0, "ext4 /": 2.0}, " of nfs4 /env"), ({"nfs4 /a": 5.0, "nfs4 /b": 4.0}, ""), ({}, "")],
)
def test_the_file_system_that_imports_wait_for_is_named(slept: dict[str, float], named: str) -> None:
    mounts = [
        ImportMount(mount=name, seconds=seconds + 1, cpu_seconds=1.0, modules=9, packages=1)
        for name, seconds in slept.items()
    ]
    report = unknown(RankReport, startup=replace(started(40, 60, 30), mounts=mounts))
    (culprit,) = blamed_by("IO404", report)
    assert culprit.text.endswith(f"30.0 of it waiting, as for files{named}")


def test_cpu_time_of_an_import_is_without_those_in_it() -> None:
    # Start, duration, CPU time: one with two inside, one of which has a third; another one behind it.
    rows = np.zeros(5, [("start_ns", "<i8"), ("duration_ns", "<i8"), ("cpu_ns", "<i8"), ("tid", "<i8")])
    made = [(60, 10, 4, 1), (0, 100, 50, 1), (10, 30, 20, 1), (12, 10, 5, 1), (100, 5, 3, 1)]
    for at, row in enumerate(made):
        rows[at] = row
    assert own_cpu_ns(rows).tolist() == [4, 26, 15, 5, 3]
    table = ImportTable(rows, np.zeros(5, np.int64), ["a"], ["a"] * 5, {}, 0)
    assert outer_imports(table, 1, 1000)["start_ns"].tolist() == [0, 100]
    assert outer_imports(table, 1, 100)["start_ns"].tolist() == [0]
    assert len(outer_imports(table, 2, 1000)) == 0


def test_what_is_pickled_for_a_spawned_process_is_measured() -> None:
    written: list[Any] = []

    def dump(thing: bytes, file: io.BytesIO) -> None:
        file.write(thing)

    module = SimpleNamespace(reduction=SimpleNamespace(dump=dump))
    recorder: Any = SimpleNamespace(records=written, over=False)
    before = list(patching._undo)
    spawning.hook_dump(module, recorder)
    spawning.hook_dump(module, recorder)  # the modules of two start methods share the function
    file = io.BytesIO()
    module.reduction.dump(b"12345", file)
    module.reduction.dump(b"678", file)
    with pytest.raises(TypeError):
        module.reduction.dump(1, file)
    assert [record["bytes"] for record in written] == [5, 3]
    while len(patching._undo) > len(before):
        patching._undo.pop()()
    assert module.reduction.dump is dump


def test_the_mount_of_a_package_is_that_of_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made.py").write_text("")
    device = (tmp_path / "made.py").stat().st_dev
    lines = [
        "1 2 0:0 / /proc rw - proc proc rw",
        f"3 2 {os.major(device)}:{os.minor(device)} / /env\\040a rw shared:1 - lustre at:/env rw",
        "damaged",
        "4 2 x:y / /z rw - ext4 /dev/z rw",
    ]
    monkeypatch.setattr(import_times, "_mount_lines", lambda: lines)
    paths = {
        "made": f"{tmp_path}/made.py",
        "zipped": f"{tmp_path}/a.zip/a.py",
        "relative": "a.py",
        "nul": "/\0",
    }
    assert import_times._mounts(paths) == {"made": "lustre /env\\040a"}
    monkeypatch.undo()
    assert any(" - proc " in line for line in import_times._mount_lines())
