"""A hang is told once, and only where nothing could make a batch any more."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from iotrace.launch.telemetry.hangs import blocked
from iotrace.launch.telemetry.hangs.telling import Progress, find_collective, sentence, waits_for_others
from iotrace.launch.telemetry.hangs.watch import HangWatch
from iotrace.launch.telemetry.tree import Tree
from iotrace.session import names
from iotrace.session.hangs import Hang, differing, ranks_in_words, read_hangs
from tests.support.recorded import RecordedFile

MAIN, WORKER = 100, 101
SECOND = 1_000_000_000


class Machine:
    """Two processes as /proc would show them, and what their agents write."""

    def __init__(self, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000
        self.activity = {MAIN: [0, 0, 0], WORKER: [0, 0, 0]}
        self.looks: dict[int, dict[str, Any]] = {
            MAIN: {"state": "S", "wchan": "do_poll", "call": "poll", "file": None},
            WORKER: {"state": "S", "wchan": "futex_wait_queue", "call": "futex", "file": None},
        }
        self.traced = False
        self.records = {}
        for pid in self.looks:
            directory = session / names.PROCESSES / f"{pid}-1-{os.uname().nodename}"
            directory.mkdir(parents=True)
            self.records[pid] = directory / names.RECORDS
        self.write(WORKER, {"type": "worker", "worker": 0, "count": 1, "mono_ns": 0})
        member = SimpleNamespace(launch=str(session), is_the_same=lambda: True, started_ns=0)
        self.members = {MAIN: member, WORKER: member}
        tree = cast(Tree, SimpleNamespace(members=self.members))
        monkeypatch.setattr(blocked, "read_parent", {MAIN: 1, WORKER: MAIN}.__getitem__)
        monkeypatch.setattr(blocked, "is_traced", lambda _: self.traced)
        monkeypatch.setattr(blocked, "look_at", lambda pid, known: {**self.looks[pid], "pid": pid, **known})
        monkeypatch.setattr(blocked, "activity", lambda pid, _: {(pid, pid): tuple(self.activity[pid])})
        monkeypatch.setattr(blocked, "wanted_cpu_ns", lambda pid: self.activity[pid][0])
        monkeypatch.setattr(blocked, "uses_device", lambda pid: False)
        self.watch = HangWatch(tree)

    def write(self, pid: int, record: dict[str, Any]) -> None:
        with open(self.records[pid], "a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def batches(self, count: int, grad: int = 1) -> None:
        """Let the training process get batches, and the watch look at it, once a second."""
        values = [grad if field == "grad" else 0 for field in names.ROW_FIELDS[names.BATCH_ROW]]
        row = struct.pack(f"<{1 + len(values)}q", names.BATCH_ROW, *values)
        for _ in range(count):
            rows = base64.b64encode(row).decode()
            self.write(MAIN, {"type": "rows", "kind": names.BATCH_ROW, "rows": rows})
            self.seconds(1)

    def seconds(self, count: int) -> list[dict[str, Any]]:
        """Let time pass without a batch; what is told in it."""
        told = []
        for _ in range(count):
            self.now_s += 1
            record = self.watch.check(self.now_s * SECOND)
            told += [record] if record else []
        return told


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_hang_is_told_once_with_what_each_process_is_in(machine: Machine) -> None:
    machine.batches(40)
    assert machine.seconds(29) == []
    (told,) = machine.seconds(100)
    assert told["text"][1:] == [
        f"  training (pid {MAIN}) waits for a message",
        f"  worker 0 (pid {WORKER}) waits for a lock",
    ]
    machine.batches(1)
    assert machine.seconds(200) == []


def test_it_went_on(machine: Machine, tmp_path: Path) -> None:
    machine.batches(40)
    (told,) = machine.seconds(100)
    machine.write(MAIN, {"type": "rows", "kind": names.BATCH_ROW, "rows": "AAAA"})
    (resumed,) = machine.seconds(5)
    assert resumed["type"] == "resumed"
    sampler = tmp_path / names.TELEMETRY / "host-1"
    sampler.mkdir(parents=True)
    (sampler / names.HANGS).write_text(f"{json.dumps(told)}\n{{torn\n{json.dumps(resumed)}\n")
    (read,) = read_hangs(tmp_path)
    assert (read.resumed, read.processes[1].call) == (True, "futex")


@pytest.mark.parametrize("batches", [0, 4])
def test_a_loop_that_has_hardly_begun_is_not_judged(machine: Machine, batches: int) -> None:
    machine.batches(batches)
    assert machine.seconds(300) == []


def test_a_loop_of_long_steps_is_given_20_of_them(machine: Machine) -> None:
    for _ in range(6):
        machine.batches(1)
        assert machine.seconds(9) == []
    assert machine.seconds(190) == []
    assert machine.seconds(100)


@pytest.mark.parametrize(
    ("pid", "look"),
    [
        (WORKER, {"call": "clock_nanosleep"}),  # slow storage, simulated: it will go on by itself
        (MAIN, {"call": "fsync"}),  # a checkpoint
        (MAIN, {"call": "read", "file": "/dev/pts/1", "descriptor": 0}),  # a prompt
        (MAIN, {"state": "T"}),  # Ctrl-Z
        (WORKER, {"call": None, "wchan": None}),  # the kernel hides it
    ],
)
def test_what_may_go_on_by_itself_is_no_hang(machine: Machine, pid: int, look: dict[str, Any]) -> None:
    machine.looks[pid] |= look
    machine.batches(40)
    assert machine.seconds(300) == []


def test_under_a_debugger_and_after_the_last_batch_nothing_is_told(machine: Machine) -> None:
    machine.traced = True
    machine.batches(40)
    assert machine.seconds(300) == []
    machine.traced = False
    machine.write(MAIN, {"type": "iterator_end", "iterator": 0})
    assert machine.seconds(300) == []


@pytest.mark.parametrize(
    ("grows", "by"),
    [(0, 60_000_000), (1, 4096), (2, 6)],  # in 5 s: CPU ns, bytes, wakes (a socket's bytes are not counted)
)
def test_a_slow_but_living_job_is_not_called_hung(machine: Machine, grows: int, by: int) -> None:
    machine.batches(40)
    for _ in range(40):
        machine.activity[WORKER][grows] += by
        assert machine.seconds(5) == []


def test_a_stopped_worker_is_named_first(machine: Machine) -> None:
    machine.looks[WORKER] = {"state": "T", "wchan": "do_signal_stop", "call": None, "file": None}
    frames = ['File "x/torch/utils/data/dataloader.py", line 1 in _get_data']
    machine.looks[MAIN]["stack"] = frames
    assert waits_for_others(machine.looks[MAIN])
    stopped = sentence({**machine.looks[WORKER], "pid": WORKER, "role": "worker 0"})
    assert stopped == f"is stopped: kill -CONT {WORKER} lets it go on"
    machine.batches(40)
    (told,) = machine.seconds(100)
    assert len(told["processes"]) == 2


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    records = tmp_path / names.RECORDS
    records.write_text('{"type":"worker","wor')
    progress = Progress(str(tmp_path), 1)
    progress.look(SECOND)
    assert progress.worker is None
    records.write_text('{"type":"worker","worker":3}\n')
    progress.look(2 * SECOND)
    assert progress.worker == 3


def test_a_process_writes_its_stacks_only_through_the_file_that_was_opened_for_them(tmp_path: Path) -> None:
    (tmp_path / names.STACKS).touch()
    with open(tmp_path / "other", "w") as other:
        assert not blocked.ask_for_stacks(os.getpid(), str(tmp_path), (63, other.fileno()), 0)


OTHER = 102
C10D = 'File "x/torch/distributed/distributed_c10d.py", line 9 in '
OWN = 'File "train.py", line 5 in main'


def ranks(machine: Machine, monkeypatch: pytest.MonkeyPatch, world_size: int = 2) -> None:
    """Let the training process be rank 0 in a collective, and another process rank 1."""
    process = machine.records[MAIN].parent
    for pid, rank in ((MAIN, 0), (OTHER, 1)):
        directory = process.parent / f"{pid}-1-{os.uname().nodename}"
        directory.mkdir(exist_ok=True)
        document = {"role": "main", "rank": rank, "world_size": world_size}
        (directory / names.PROCESS).write_text(json.dumps(document))
        machine.looks[pid] = {"state": "S", "wchan": "futex_wait_queue", "call": "futex", "file": None}
        machine.looks[pid]["stack"] = [f"{C10D}all_reduce" if pid == MAIN else f"{C10D}barrier", OWN]
    machine.records[OTHER] = process.parent / f"{OTHER}-1-{os.uname().nodename}" / names.RECORDS
    machine.activity[OTHER] = [0, 0, 0]
    member = SimpleNamespace(launch=str(process.parent.parent), is_the_same=lambda: True, started_ns=0)
    machine.members |= {OTHER: member}
    monkeypatch.setattr(blocked, "read_parent", {MAIN: 1, WORKER: MAIN, OTHER: 1}.__getitem__)


def test_ranks_hang_together_and_say_in_which_collectives(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(machine, monkeypatch)
    machine.batches(40)
    (told,) = machine.seconds(200)
    assert [about["role"] for about in told["processes"]] == ["rank 0", "worker 0", "rank 1"]
    # No signal is sent to processes that are made up, so what they are in has no stack here.
    assert sentence(machine.looks[MAIN] | {"pid": MAIN, "role": "rank 0"}) == (
        'waits for other ranks in all_reduce, file "train.py", line 5 in main'
    )
    both = [
        (number, "", find_collective({**machine.looks[pid], "role": f"rank {number}"}))
        for number, pid in enumerate((MAIN, OTHER))
    ]
    assert differing(both) == [
        "ranks are not in one collective: rank 0 is in all_reduce, rank 1 is in barrier"
    ]
    assert differing(both[:1]) == []


def test_ranks_are_named_by_host_most_of_them_first() -> None:
    places = [(number, "a" if number < 4 else "b", "all_reduce") for number in range(8)]
    places[5] = 5, "b", ""
    assert differing(places) == [
        "ranks are not in one collective: ranks 0 to 3 (a), 4 (b), 6 to 7 (b) are in all_reduce, "
        "rank 5 (b) is in none"
    ]
    assert ranks_in_words([(3, "")]) == "rank 3"


@pytest.mark.parametrize(("grows", "by"), [(0, 60_000_000), (1, 4096), (None, 0)])
def test_a_rank_that_waits_for_a_living_one_does_not_hang(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, grows: int | None, by: int
) -> None:
    ranks(machine, monkeypatch)
    machine.batches(40)
    for _ in range(40):
        if grows is None:
            machine.looks[OTHER]["call"] = "clock_nanosleep"
        else:
            machine.activity[OTHER][grows] += by
        assert machine.seconds(5) == []


def test_of_ranks_on_other_hosts_nothing_is_known(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks(machine, monkeypatch, world_size=3)
    machine.batches(40)
    (told,) = machine.seconds(300)  # kept for the report, and not told
    assert told["kind"] == "waiting"


def test_what_started_the_ranks_is_none_though_it_has_a_number(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun's number is inherited by torchrun, which sleeps and looks at its ranks."""
    ranks(machine, monkeypatch)
    agent = machine.records[MAIN].parent.parent / f"103-1-{os.uname().nodename}"
    agent.mkdir()
    document = {"role": "main", "rank": 0, "world_size": 2}
    (agent / names.PROCESS).write_text(json.dumps(document))
    machine.members[103] = machine.members[MAIN]
    machine.looks[103] = {"state": "S", "wchan": "x", "call": "clock_nanosleep", "file": None}
    machine.activity[103] = [0, 0, 0]
    monkeypatch.setattr(blocked, "read_parent", {MAIN: 103, WORKER: MAIN, OTHER: 103, 103: 1}.__getitem__)
    machine.batches(40)
    (told,) = machine.seconds(100)
    assert [about["role"] for about in told["processes"]] == ["rank 0", "worker 0", "rank 1"]


def test_a_rank_whose_own_worker_hangs_is_told_beside_ranks_on_other_hosts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(machine, monkeypatch, world_size=3)
    machine.looks[MAIN]["call"] = "poll"
    machine.batches(40)
    (told,) = machine.seconds(100)
    assert told["kind"] == "hung"


def on_host(session: Path, host: str, rank: int, collective: str, kind: str = "waiting") -> Path:
    """Write what the sidecar of a host told of its one rank, of two."""
    frames = [f"{C10D}{collective}", OWN] if collective else [OWN]
    about = {"pid": 100 + rank, "role": f"rank {rank}", "stack": frames, "collective": collective}
    about["text"] = f"waits for other ranks in {collective}" if collective else "waits for a lock"
    record = {"type": "hang", "kind": kind, "mono_ns": 9, "waited_ns": 40 * SECOND, "host": host}
    sampler = session / names.TELEMETRY / f"{host}-1"
    sampler.mkdir(parents=True)
    document = {**record, "world_size": 2, "processes": [about], "text": ["WAITING"]}
    (sampler / names.HANGS).write_text(f"{json.dumps(document)}\n")
    return sampler / names.HANGS


def test_hosts_of_which_all_ranks_wait_hang_together(tmp_path: Path) -> None:
    on_host(tmp_path, "a", 0, "all_reduce")
    on_host(tmp_path, "b", 1, "barrier")
    (hang,) = read_hangs(tmp_path)
    assert hang.kind == "hung"
    assert hang.text == [
        "HUNG: no batch for 40 s on 2 hosts, and no process computes, reads or writes",
        "  rank 0 (pid 100 on a) waits for other ranks in all_reduce",
        "  rank 1 (pid 101 on b) waits for other ranks in barrier",
        "  ranks are not in one collective: rank 0 (a) is in all_reduce, rank 1 (b) is in barrier",
    ]


def test_a_rank_of_another_host_that_was_not_seen_to_wait_is_named(tmp_path: Path) -> None:
    on_host(tmp_path, "a", 0, "all_reduce")
    (hang,) = read_hangs(tmp_path, {1: "b"})
    assert hang.kind == "waiting"
    assert hang.text[0] == "WAITING: no batch for 40 s on 1 host, for rank 1 (b)"
    assert hang.text[-1] == "  rank 1 (b): not seen to wait; look there"


def test_a_rank_that_computes_on_another_host_is_what_the_others_wait_for(tmp_path: Path) -> None:
    on_host(tmp_path, "a", 0, "all_reduce")
    on_host(tmp_path, "b", 1, "", kind="computing")
    (hang,) = read_hangs(tmp_path)
    assert (hang.kind, hang.text[0][:9]) == ("computing", "COMPUTING")


def test_hosts_that_went_on_are_not_joined(tmp_path: Path) -> None:
    file = on_host(tmp_path, "a", 0, "all_reduce")
    file.write_text(file.read_text() + '{"type":"resumed","mono_ns":10}\n')
    on_host(tmp_path, "b", 1, "barrier")
    went_on, waits = read_hangs(tmp_path)
    assert isinstance(went_on, Hang)
    assert (went_on.resumed_ns, waits.kind) == (10, "waiting")


@pytest.mark.parametrize(
    ("call", "frames", "words"),
    [
        ("futex", ['File "multiprocessing/queues.py", line 8 in put'], "waits to put into a full queue"),
        ("poll", ['File "lib/queue.py", line 8 in get'], "waits for an empty queue"),
        ("futex", ['File "x.py", line 8 in put'], "waits for a lock"),
        ("openat", [], "is in openat of /data/a.h5"),
        ("read", [], "waits to read from a socket"),
    ],
)
def test_what_a_process_is_in_has_words(call: str, frames: list[str], words: str) -> None:
    frames = [line.replace("multiprocessing/", "/multiprocessing/") for line in frames]
    file = {"openat": "/data/a.h5", "read": "socket:[114232]"}.get(call)
    about = {"pid": 1, "role": "worker 0", "state": "S", "wchan": "x", "call": call, "file": file}
    assert sentence({**about, "stack": [*frames, OWN]}).startswith(words)


def test_the_path_of_a_call_is_read_where_it_may_be() -> None:
    text = ctypes.create_string_buffer(b"/a/path\0beyond")
    assert blocked._text_at(os.getpid(), ctypes.addressof(text)) == "/a/path"


PREAD, FGETS, OPEN = 17, 21, 0
OWN_FILE = "/data/x.h5"


def in_calls(machine: Machine, session: Path, *calls: tuple[int, int, int, int], start_ns: int = 0) -> None:
    """Let the recorder's file say what the worker's threads are in: thread, call, file, since when."""
    (session / names.POSIX).mkdir(exist_ok=True)
    file = RecordedFile(WORKER, start_ns, 0, os.uname().nodename)
    file.thread(4000)
    file.burst(4000, 1, 1, 3)
    for tid, kind, number, since_s in calls:
        file.name_file(number, OWN_FILE)
        file.thread(tid, kind, number, since_s * SECOND)
    file.write(session / names.POSIX)


def told_of(machine: Machine) -> dict[str, Any]:
    machine.batches(40)
    (told,) = machine.seconds(100)
    about: dict[str, Any] = next(each for each in told["processes"] if each["pid"] == WORKER)
    about["lasted_s"] = told["mono_ns"] // SECOND - 1039
    return about


@pytest.mark.parametrize(
    ("look", "kind", "call"),
    [
        ({"call": "pread64", "wchan": "x", "file": OWN_FILE}, PREAD, "pread64"),
        ({"call": "read", "wchan": "x", "file": OWN_FILE}, FGETS, "read"),
        ({"call": "read", "wchan": "x", "file": None}, FGETS, "read"),
        ({"call": None, "wchan": "fuse_get_req", "file": None}, PREAD, "pread64"),
        ({"call": None, "wchan": None, "file": None}, PREAD, "pread64"),  # nothing of it may be read in /proc
    ],
)
def test_a_call_on_a_file_is_told_with_how_long_it_lasts(
    machine: Machine, tmp_path: Path, look: dict[str, Any], kind: int, call: str
) -> None:
    in_calls(machine, tmp_path, (WORKER, kind, 3, 1039))
    machine.looks[WORKER] |= look
    about = told_of(machine)
    assert (about["call"], about["file"], about["call_since_ns"]) == (call, OWN_FILE, 1039 * SECOND)
    assert about["text"] == f"is in {call} of {OWN_FILE} for {about['lasted_s']} s"


def test_of_an_open_the_kernel_says_the_path_and_the_recorder_since_when(
    machine: Machine, tmp_path: Path
) -> None:
    in_calls(machine, tmp_path, (WORKER, OPEN, 0, 1039))
    machine.looks[WORKER] |= {"call": "openat", "wchan": "wait_for_partner", "file": "pipe"}
    about = told_of(machine)
    stuck = f"is stuck opening pipe for {about['lasted_s']} s"
    assert about["text"] == f"{stuck} (a named pipe that no other process opens)"


@pytest.mark.parametrize(
    "look",
    [
        {"call": "futex"},  # a signal's handler left the call by a jump
        {"call": "pread64", "file": "socket:[1]"},
        {"call": "openat", "file": "/data/other"},
    ],
)
def test_what_the_kernel_shows_counts_where_the_recorder_says_another_call(
    machine: Machine, tmp_path: Path, look: dict[str, Any]
) -> None:
    in_calls(machine, tmp_path, (WORKER, PREAD, 3, 1039))
    machine.looks[WORKER] |= look
    about = told_of(machine)
    assert "call_since_ns" not in about
    assert OWN_FILE not in about["text"]


def test_a_call_that_waits_for_a_lock_below_the_recorder_is_told_with_how_to_go_without_tracing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that intercepts calls on files may hang in its own code: no system call is made."""
    in_calls(machine, tmp_path, (WORKER, PREAD, 3, 1039))
    machine.looks[WORKER] |= {"call": "futex"}
    monkeypatch.setattr(blocked, "_waits_in_recorder", lambda about: about["call"] == "futex")
    machine.batches(40)
    (told,) = machine.seconds(100)
    text = "\n".join(told["text"])
    assert f"is in pread64 of {OWN_FILE} for " in text
    assert "waits there for a lock, not for the file system" in text
    assert "iotrace run --io off" in text


def test_the_file_system_of_a_call_is_told_without_a_question_to_it(machine: Machine) -> None:
    machine.looks[WORKER] |= {"call": "read", "wchan": "x", "file": "/x/a", "file_system": "lustre at /x"}
    about = told_of(machine)
    assert about["text"].startswith("is in read of /x/a on lustre at /x")


def test_the_file_system_of_a_path_is_that_of_the_innermost_mount() -> None:
    of = blocked._find_file_system
    assert of(os.getpid(), "/proc/self/stat") == "proc at /proc"
    root = of(os.getpid(), "/no-such-directory/a")
    assert root is not None
    assert root.endswith(" at /")
    assert of(os.getpid(), "socket:[1]") is None
    assert of(os.getpid(), "pipe:[1]") is None


def test_a_thread_that_the_main_thread_may_wait_for_is_told(machine: Machine, tmp_path: Path) -> None:
    in_calls(machine, tmp_path, (4001, PREAD, 3, 1039), (4002, PREAD, 3, 10**8))
    about = told_of(machine)
    (thread,) = about["threads"]
    assert thread == {"tid": 4001, "call": "pread64", "file": OWN_FILE, "call_since_ns": 1039 * SECOND}
    lasted = f"for {about['lasted_s']} s"
    assert about["text"] == f"waits for a lock; its thread 4001 is in pread64 of {OWN_FILE} {lasted}"


def test_an_earlier_process_of_the_same_number_says_nothing(machine: Machine, tmp_path: Path) -> None:
    in_calls(machine, tmp_path, (WORKER, PREAD, 3, 1039))
    machine.members[WORKER] = SimpleNamespace(**{**vars(machine.members[WORKER]), "started_ns": 900 * SECOND})
    machine.looks[WORKER] |= {"call": "pread64", "file": OWN_FILE}
    assert told_of(machine)["text"] == f"is in pread64 of {OWN_FILE}"


@pytest.mark.parametrize("data", [b"", b"IOTPOSX1", b"IOTPOSX1" + b"\xff" * 4000, bytes(9000)])
def test_a_damaged_file_of_the_recorder_says_nothing(machine: Machine, tmp_path: Path, data: bytes) -> None:
    (tmp_path / names.POSIX).mkdir()
    (tmp_path / names.POSIX / f"{WORKER}-1-{os.uname().nodename}.io").write_bytes(data)
    assert told_of(machine)["text"] == "waits for a lock"
