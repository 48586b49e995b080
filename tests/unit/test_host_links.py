"""The clocks of two hosts: by made-up exchanges of datagrams, and by real ones through a bad network."""

from __future__ import annotations

import json
import random
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tools.benchmarks.big import write_session

from iotrace.analysis.completeness.session_info import clocks_of as report_clocks
from iotrace.launch.telemetry import Record, clock_exchange
from iotrace.launch.telemetry.clock_exchange import ClockExchange, may_be_of_several_hosts
from iotrace.merge.analysed_input import survey_session
from iotrace.merge.input_files import SESSION, InputFile
from iotrace.session import names
from iotrace.sources.clocks.anchors import AnchorSource, Exchange, link_by_exchanges, relate_clocks
from iotrace.sources.clocks.session_clock import Recording
from iotrace.sources.kineto.profiler_traces import Traced, relate_by_collectives
from iotrace.sources.session import open_session
from tests.support.runs import report_of
from tests.support.waiting import eventually

SECOND = 10**9
EPOCH_NS = 1_795_000_000_123_456_789


class Network:
    """Two steady clocks, `ahead_ns` and `ppm` apart, and two ways that take as long as they like."""

    def __init__(self, ahead_ns: int, ppm: float, seed: int, there_ns: int, back_ns: int) -> None:
        self._ahead_ns, self._ppm = ahead_ns, ppm
        self._random = random.Random(seed)
        self._ways_ns = there_ns, back_ns

    def reference_ns(self, own_ns: int) -> int:
        return own_ns - self._ahead_ns - round(own_ns * self._ppm / 1e6)

    def exchange(self, sent_ns: int) -> Exchange:
        there, back = (20_000 + self._random.randint(0, jitter) for jitter in self._ways_ns)
        received, answered = sent_ns + there, sent_ns + there + 9_000
        return sent_ns, self.reference_ns(received), self.reference_ns(answered), answered + back


@given(
    st.integers(-(10**12), 10**12),
    st.floats(-300, 300),
    st.integers(0, 10**6),
    st.integers(0, 5_000_000),
    st.integers(0, 5_000_000),
    st.lists(st.integers(1, 3_000), min_size=1, max_size=9, unique=True),
)
def test_the_bound_holds_whatever_the_two_ways_take(
    ahead_ns: int, ppm: float, seed: int, there_ns: int, back_ns: int, rounds: list[int]
) -> None:
    network = Network(ahead_ns, ppm, seed, there_ns, back_ns)
    exchanges = [
        network.exchange(at * SECOND + number * 20_000_000) for at in rounds for number in range(seed % 8 + 1)
    ]
    first_ns, last_ns = (min(rounds) - 1) * SECOND, (max(rounds) + 5) * SECOND
    found = link_by_exchanges(exchanges, first_ns, last_ns)
    assert found is not None
    for own_ns in range(first_ns, last_ns, (last_ns - first_ns) // 7):
        assert abs(found.map.map_one(own_ns) - network.reference_ns(own_ns)) <= found.bound_ns + 2


def test_a_quiet_cable_gives_the_drift_and_a_bound_of_half_a_round_trip() -> None:
    network = Network(3_700_000_000, 50, 1, 3_000, 3_000)
    exchanges = [
        network.exchange(at * 10 * SECOND + number * 100_000) for at in range(30) for number in range(8)
    ]
    found = link_by_exchanges(exchanges, 0, 300 * SECOND)
    assert found is not None
    assert found.map.drift_ppb == pytest.approx(-50_000, abs=50)
    assert found.bound_ns < 30_000
    assert (found.exchanges, found.kind) == (240, "measured")


@settings(max_examples=25)
@given(
    st.floats(-100, 100),
    st.integers(30_000_000, 10**10),  # by less, clocks may drift apart between two rounds
    st.booleans(),
    st.integers(1, 9),
    st.integers(0, 5_000_000),
    st.integers(0, 10**6),
)
def test_the_bound_holds_a_step_in_mid_run(
    ppm: float, step_ns: int, back: bool, after_round: int, jitter_ns: int, seed: int
) -> None:
    """A host that was suspended between two rounds: its clock stood still, or the reference's did."""
    before = Network(3_700_000_000, ppm, seed, 3_000, 3_000)
    # The network is slower after the step: the quickest exchanges alone would not know of it.
    after = Network(3_700_000_000 + (-step_ns if back else step_ns), ppm, seed, jitter_ns, jitter_ns)
    stepped_ns = (10 * after_round + 4) * SECOND

    def network(own_ns: int) -> Network:
        return before if own_ns < stepped_ns else after

    exchanges = [
        network(at).exchange(at)
        for at in (10 * second * SECOND + number * 20_000_000 for second in range(12) for number in range(8))
    ]
    found = link_by_exchanges(exchanges, -5 * SECOND, 125 * SECOND)
    assert found is not None
    for own_ns in [*range(-5 * SECOND, 125 * SECOND, 2 * SECOND), stepped_ns - 1]:
        off_ns = abs(found.map.map_one(own_ns) - network(own_ns).reference_ns(own_ns))
        assert off_ns <= found.bound_ns + 2
    assert "stepped by" in found.why


def test_no_exchange_relates_nothing() -> None:
    assert link_by_exchanges([], 0, SECOND) is None
    assert link_by_exchanges([(10, 0, 90, 20)], 0, SECOND) is None  # answered later than it was back


def _source(node: str, ahead_ns: int, pid: int | None = None, mono_ns: int = 0) -> AnchorSource:
    anchors = [(mono_ns + at * SECOND, EPOCH_NS + mono_ns + at * SECOND + ahead_ns, 80) for at in range(3)]
    sampler = "" if pid is not None else f"{node}-f0"
    return AnchorSource(node, node, "boot", anchors, pid, sampler=sampler)


def test_a_process_with_another_clock_than_its_sidecar_has_a_domain_of_its_own() -> None:
    sources = [_source("a", 0, 1), _source("a", 900_000, 2), _source("a", 3 * SECOND, 3), _source("a", 0)]
    clocks = relate_clocks(sources)
    assert [each.domain for each in sources] == ["boot", "boot", "boot@a/3", "boot"]
    assert clocks.reference == "boot"
    assert clocks.links == {}
    # Without a sidecar it may as well be a clock that was set.
    sources = [_source("a", 0, 1), _source("a", 3 * SECOND, 3)]
    relate_clocks(sources)
    assert [each.domain for each in sources] == ["boot", "boot"]


def test_times_of_a_host_whose_clock_was_measured_are_told_by_the_references() -> None:
    network = Network(3_700_000_000, 50, 1, 3_000, 3_000)
    own = _source("b", 3 * SECOND)
    own.reference = "a-f0"
    own.exchanges = [network.exchange(at * SECOND) for at in range(3)]
    clocks = relate_clocks([_source("a", 0, 1), _source("b", 3 * SECOND, 2), _source("a", 0), own])
    clock = clocks.of("b", 2)
    assert clock is not None
    (link,) = clocks.links.values()
    for mono_ns in (0, SECOND, 2 * SECOND):
        true_ns = EPOCH_NS + network.reference_ns(mono_ns)
        assert abs(clock.to_session_ns(mono_ns) - true_ns) <= link.bound_ns
        assert abs(clock.real_to_session_ns(EPOCH_NS + mono_ns + 3 * SECOND) - true_ns) <= link.bound_ns
    assert clocks.of("a", 1).to_session_ns(SECOND) == EPOCH_NS + SECOND  # type: ignore[union-attr]


@contextmanager
def _relay(
    to: tuple[str, int], seed: int, loss: float, there_s: float, back_s: float
) -> Iterator[tuple[str, int]]:
    """Pass datagrams on, but for some, each later by up to so long."""
    chance = random.Random(seed)
    front, behind = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    front.bind(("127.0.0.1", 0))
    behind.connect(to)
    asker: list[tuple[str, int]] = []
    over = threading.Event()

    def passed_on() -> None:
        while not over.is_set():
            for ready in select.select([front, behind], [], [], 0.05)[0]:
                if ready is front:
                    data, sender = front.recvfrom(100)
                    asker[:] = [sender]
                else:
                    data = behind.recv(100)
                if chance.random() < loss:
                    continue
                over.wait(chance.random() * (there_s if ready is front else back_s))
                if ready is front:
                    behind.send(data)
                else:
                    front.sendto(data, asker[0])

    thread = threading.Thread(target=passed_on)
    thread.start()
    try:
        yield front.getsockname()
    finally:
        over.set()
        thread.join()
        front.close()
        behind.close()


@pytest.mark.parametrize(
    ("loss", "there_s", "back_s"),
    [(0.0, 0.0, 0.0), (0.3, 0.005, 0.005), (0.1, 0.005, 0.0), (0.1, 0.0, 0.005)],
)
def test_real_datagrams_through_a_bad_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float, there_s: float, back_s: float
) -> None:
    """Both clocks are this machine's: what is measured between them is the error."""
    monkeypatch.setattr(clock_exchange, "own_addresses", lambda: ["127.0.0.1"])
    monkeypatch.setattr(clock_exchange, "_EARLY_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(clock_exchange, "_WAIT_S", 0.05)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / names.MANIFEST).write_text('{"job": "j"}')
    records: list[Record] = []
    reference = ClockExchange(str(tmp_path), "telemetry/a-f0", records.append)
    other = ClockExchange(str(tmp_path), "telemetry/b-f0", records.append)
    reference.start()
    try:
        eventually(lambda: (tmp_path / names.CLOCK).exists())
        held = json.loads((tmp_path / names.CLOCK).read_text())
        assert (tmp_path / names.CLOCK).stat().st_mode & 0o777 == 0o600
        address = tuple(held["addresses"][0])
        with _relay(address, 7, loss, there_s, back_s) as relay:
            (tmp_path / names.CLOCK).write_text(json.dumps(held | {"addresses": [relay]}))
            other.start()
            eventually(lambda: sum(bool(record.get("exchanges")) for record in records) >= 2)
            other.close()
        _unsigned(address)
    finally:
        reference.close()
    exchanges = [row for record in records for row in record.get("exchanges", [])]  # type: ignore[attr-defined]
    found = link_by_exchanges([tuple(row) for row in exchanges], exchanges[0][0], exchanges[-1][3])
    assert found is not None
    for at_ns in (exchanges[0][0], exchanges[-1][3]):
        assert abs(found.map.shift_at(at_ns)) <= found.bound_ns


def test_real_datagrams_by_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = clock_exchange.bound_to("::1")
    if here is None:
        pytest.skip("no IPv6 here")
    here.close()
    monkeypatch.setattr(clock_exchange, "own_addresses", lambda: ["::1"])
    for variable in ("SLURM_NNODES", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / names.MANIFEST).write_text('{"job": "j"}')
    records: list[Record] = []
    sides = [ClockExchange(str(tmp_path), f"telemetry/{name}-f0", records.append) for name in "ab"]
    sides[0].start()
    try:
        eventually(lambda: (tmp_path / names.CLOCK).exists())
        sides[1].start()
        eventually(lambda: any(record.get("exchanges") for record in records))
    finally:
        for side in reversed(sides):
            side.close()
    assert json.loads((tmp_path / names.CLOCK).read_text())["addresses"][0][0] == "::1"


def test_addresses_of_interfaces_are_those_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "fd000000000000000000000000000002 04 40 00 82     eth0",
        "fd000000000000000000000000000003 04 40 00 82     eth0",  # a second one of eth0
        "fe8000000000000000fc00fffe000001 04 40 20 80     eth0",  # of the link alone
        "fd000000000000000000000000000004 05 40 00 c0      ib0",  # tentative
        "00000000000000000000000000000001 01 80 10 80       lo",
        "fd000000000000000000000000000005 06 40 00 80      ib1",
    ]
    monkeypatch.setattr(clock_exchange, "_of_ipv4", lambda: iter([("eth0", "10.0.0.1")]))
    monkeypatch.setattr(Path, "read_text", lambda path: "\n".join(lines))
    for variable in clock_exchange._CHOICES:
        monkeypatch.delenv(variable, raising=False)
    assert clock_exchange.own_addresses() == ["10.0.0.1", "fd00::2", "fd00::5"]
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib")
    assert clock_exchange.own_addresses() == ["fd00::5"]


def _unsigned(address: tuple[str, int]) -> None:
    """The reference answers nobody without the session's key."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"iotQ", b"iotQ" + bytes(40), bytes(2000)):
            stranger.sendto(data, address)
        stranger.settimeout(0.1)
        with pytest.raises(TimeoutError):
            stranger.recv(100)


def test_no_socket_where_nobody_can_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SLURM_NNODES", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    assert not may_be_of_several_hosts(tmp_path)
    (tmp_path / names.MANIFEST).write_text('{"job": ""}')
    assert not may_be_of_several_hosts(tmp_path)
    (tmp_path / names.MANIFEST).write_text('{"job": "slurm-4711.0"}')
    assert may_be_of_several_hosts(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert not may_be_of_several_hosts(tmp_path)


def _set_back(session: Path, by_ns: int) -> None:
    """Make rank 1 a second host's, whose clock was set back 4.5 s after its start.

    One call is left near that: by its stamp it was before the step, or right behind it.
    """
    set_ns = 4_500_000_000
    (directory,) = session.glob("processes/2000-*")
    identity = json.loads((directory / names.PROCESS).read_text())
    identity |= {"node": "n2", "host": "n2", "boot_id": "another"}
    (directory / names.PROCESS).write_text(json.dumps(identity))
    records = [json.loads(line) for line in (directory / names.RECORDS).read_text().splitlines()]
    for record in records:
        if isinstance(record, dict) and "clock" in record and record["clock"][0] > set_ns:
            record["clock"][1] -= by_ns
    (directory / names.RECORDS).write_text("".join(json.dumps(record) + "\n" for record in records))
    apart_ns = identity["clock"][1] - identity["clock"][0]
    for number, log in enumerate(sorted((session / names.POSIX).iterdir()), 1):
        node = {"name": "HH", "ph": 4, "pid": 1000 * number, "args": {"name": f"n{number}", "value": "h"}}
        lines = [json.dumps(node).replace('"h"', f'"h{number}"')]
        for line in log.read_text().replace('"h"', f'"h{number}"').splitlines():
            call = json.loads(line)
            since_ns = call["ts"] * 1000 - apart_ns - set_ns if number == 2 and "ts" in call else -SECOND
            if -400_000_000 < since_ns < -10_000_000 or 0 < since_ns < 400_000_000:
                continue
            if since_ns > 0:
                call["ts"] -= by_ns // 1000
            lines.append(json.dumps(call))
        log.write_text("\n".join(lines) + "\n")


def test_what_a_clock_that_was_set_leaves_unsure_counts_for_its_own_host(tmp_path: Path) -> None:
    """It widened the bound of each host of the session."""
    write_session(tmp_path / "s", 600, ranks=2, calls=1)
    _set_back(tmp_path / "s", 40_000_000)
    session = open_session(tmp_path / "s")
    assert session.calls.unsure_ns == {"n2": 40_000_000}
    bounds = {(each.source, each.host): each.bound_ns for each in report_clocks(session)}
    assert bounds["dftracer", "n1"] == 1_000
    surveys = [
        survey_session(InputFile(tmp_path / "s", SESSION, rank.name, rank.name)) for rank in session.ranks
    ]
    assert [each.bound_ns for each in surveys] == [10, 40_000_000]


@pytest.mark.parametrize("pid", [2000, 1000])
@pytest.mark.parametrize("boot_id", ["another", "b"])
def test_machines_and_containers_of_one_name(tmp_path: Path, pid: int, boot_id: str) -> None:
    """Two machines have two clocks, which nobody compared; of calls nothing tells whose they are."""
    write_session(tmp_path / "s", 20, ranks=2, calls=1)
    (directory,) = tmp_path.glob("s/processes/2000-*")
    identity = json.loads((directory / names.PROCESS).read_text())
    (directory / names.PROCESS).write_text(json.dumps(identity | {"boot_id": boot_id, "pid": pid}))
    log = tmp_path / "s" / names.POSIX / "io-2000.pfw"
    log.write_text(log.read_text().replace('"pid":2000', f'"pid":{pid}'))
    found = report_of(tmp_path / "s")
    assert [rank["steps"]["begun"] for rank in found["ranks"]] == [20, 20]
    assert {each["kind"] for each in found["clocks"]} == {"exact" if boot_id == "b" else "assumed"}
    lost = [item["what"] for item in found["not_captured"] if item["what"].startswith("POSIX calls of the")]
    if pid == 2000:
        assert [rank["io"]["calls"] for rank in found["ranks"]] == [20, 20]
        assert lost == []
    else:
        assert [rank["io"] for rank in found["ranks"]] == [None, None]
        assert lost == ["POSIX calls of the processes 1000 on n1"]
        assert not found["session"]["complete"]


AHEAD_NS = 3 * SECOND


def _traced(directory: Path, recordings: dict[str, Recording] | None = None) -> list[Traced]:
    """Rank 1 comes late to every other collective; no rank ends one before both have begun it."""
    chance = random.Random(3)
    events: list[list[dict[str, object]]] = [[], []]
    for step in range(6):
        begin_us = 1_000_000 + step * 50_000
        arrived = [begin_us + 1_000 + chance.randrange(9_000) for _ in range(2)]
        for rank, own in enumerate(events):
            left = max(arrived) + 300 + chance.randrange(200)
            for name, start, end in (
                (f"ProfilerStep#{step}", begin_us, begin_us + 50_000),
                ("gloo:all_reduce", arrived[rank], left),
                ("gloo:broadcast", begin_us + 20_000, begin_us + 20_001 + 7_000 * rank),
            ):
                slice_ = {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": end - start}
                own.append(slice_ | {"pid": rank, "tid": 1})
    traced = []
    for rank, own in enumerate(events):
        path = directory / f"torch-{rank}.json"
        base_ns = EPOCH_NS + rank * AHEAD_NS
        path.write_text(json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": own}))
        traced.append(Traced("boot@b" if rank else "boot", [path], base_ns, recordings or {}))
    return traced


def test_collectives_stand_for_datagrams_that_did_not_come_through(tmp_path: Path) -> None:
    clocks = relate_clocks(
        [_source("a", 0, 1), _source("b", AHEAD_NS, 2), _source("a", 0), _source("b", AHEAD_NS)]
    )
    relate_by_collectives(clocks, _traced(tmp_path))
    (link,) = clocks.links.values()
    assert (link.kind, link.exchanges) == ("inferred", 6)
    assert abs(link.map.shift_at(EPOCH_NS) + AHEAD_NS) <= link.bound_ns < 10_000_000


@pytest.mark.parametrize("is_known", [True, False])
def test_collectives_from_before_a_clock_was_set_back_tell_by_when_they_were_recorded(
    tmp_path: Path, is_known: bool
) -> None:
    """By their stamps alone they may be from 7 s later: then nothing is inferred from them."""
    own = [_source("b", AHEAD_NS, 2), _source("b", AHEAD_NS)]
    for source in own:
        source.anchors += [(at * SECOND, EPOCH_NS + at * SECOND + AHEAD_NS - 7 * SECOND, 80) for at in (3, 4)]
    clocks = relate_clocks([_source("a", 0, 1), own[0], _source("a", 0), own[1]])
    recordings = {"torch-1.json": Recording(SECOND, 3 * SECOND // 2)} if is_known else None
    relate_by_collectives(clocks, _traced(tmp_path, recordings))
    if not is_known:
        assert clocks.links == {}
        return
    (link,) = clocks.links.values()
    assert abs(link.map.shift_at(EPOCH_NS) + AHEAD_NS) <= link.bound_ns < 10_000_000


def test_a_machine_of_the_references_name_is_not_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SLURM_NNODES", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / names.MANIFEST).write_text('{"job": "j"}')
    held = {"sampler": "a-f0", "boot_id": "another", "key": "00" * 32, "addresses": []}
    (tmp_path / names.CLOCK).write_text(json.dumps(held))
    records: list[Record] = []
    namesake = ClockExchange(str(tmp_path), "telemetry/a-f0-2", records.append)
    namesake.start()
    try:
        (record, *_) = eventually(lambda: list(records))
    finally:
        namesake.close()
    assert record == {"type": "clock", "reference": "a-f0", "why": "a did not answer at any address"}
    assert json.loads((tmp_path / names.CLOCK).read_text()) == held
