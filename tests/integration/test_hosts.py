"""Two hosts with clocks of their own: one session, one clock, and how sure that is."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from iotrace.session import names
from iotrace.sources.session import Session, open_session
from tests.support.hosts import FAKETIME, NETWORK6, Host, run_on_two, torchrun, two_hosts, unlike_here
from tests.support.runs import in_process, report_of

# Prints what the program takes for CLOCK_MONOTONIC, and what the kernel says, at the same instants.
PROGRAM = """
import ctypes, json, os, sys, time
import iotrace

class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]

kernel, clock_gettime, here = ctypes.CDLL(None).syscall, 228, Time()

def instant():
    before = time.monotonic_ns()
    kernel(clock_gettime, 1, ctypes.byref(here))
    return time.monotonic_ns() - before, before, here.s * 10**9 + here.ns

found = []
for _ in range(10):
    iotrace.step()
    found.append(min(instant() for _ in range(50)))
    time.sleep(0.1)
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""
# The other host may start late: a host that has gone answers no datagram.
UNTIL_BOTH = """
while not os.path.exists("instants-0.json") or not os.path.exists("instants-1.json"):
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def hosts() -> None:
    why = unlike_here() or ("" if FAKETIME.exists() else "libfaketime is not installed")
    if why:
        pytest.skip(why)


def _error_ns(session: Session, directory: Path) -> int:
    """How far the session's times of the second host are from what the kernel, which both share, says."""
    clocks = session.clocks
    (domain,) = set(clocks.of_domain) - {clocks.reference}
    own, reference = clocks.of_domain[domain], clocks.of_domain[clocks.reference]
    instants = json.loads((directory / "instants-1.json").read_text())
    errors: list[int] = [
        max(0, abs(own.to_session_ns(seen + took // 2) - reference.to_session_ns(true)) - took)
        for took, seen, true in instants
    ]
    return max(errors)


@pytest.mark.parametrize("run", [0, *(pytest.param(run, marks=pytest.mark.slow) for run in range(1, 20))])
def test_the_clock_of_the_second_host_is_measured(tmp_path: Path, hosts: None, run: int) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + UNTIL_BOTH)
    session = run_on_two(tmp_path, ["program.py"])
    (link,) = session.clocks.links.values()
    assert _error_ns(session, tmp_path) < link.bound_ns
    assert link.map.shift_ns == pytest.approx(-3_700_000_000, abs=5_000_000)
    clocks = report_of(tmp_path / "session")["clocks"]
    by_host = {clock["host"]: clock for clock in clocks if clock["source"] == "agent"}
    assert [by_host[name]["kind"] for name in ("alpha", "beta")] == ["exact", "measured"]
    assert by_host["beta"]["bound_ns"] >= link.bound_ns
    _assert_refused_below_the_bounds(session, tmp_path)


def _assert_refused_below_the_bounds(session: Session, directory: Path) -> None:
    """Assert that `--strict-clocks` takes an order that the two clocks tell, and no other."""
    mains = {process.host: process for process in session.processes if process.identity.role == "main"}
    begins_ns = {host: each.identity.clock[1] + 200_000_000 for host, each in mains.items()}

    def summary(end_ns: int | None, *options: str) -> CompletedProcess[str]:
        """Merge a collective that rank 1 begins last, and rank 0 ends, at `end_ns` of the merged clock."""
        for rank, (host, main) in enumerate(sorted(mains.items())):
            start_ns = begins_ns[host] if rank or end_ns is None else end_ns - 3_000_000
            args = {"Collective name": "allreduce", "Seq": 7}
            kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce(x)", "args": args}
            kernel |= {"pid": main.pid, "tid": 7, "ts": start_ns % 10**12 / 1000, "dur": 3_000}
            document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}}
            document |= {"baseTimeNanoseconds": start_ns // 10**12 * 10**12, "traceEvents": [kernel]}
            (directory / "session" / f"kernels-{host}.json").write_text(json.dumps(document))
        words = [str(directory / "session"), "-o", str(directory / "merged.json"), "--json"]
        return in_process("merge", *words, *options)

    done = summary(None)
    sources = [each for each in json.loads(done.stdout)["sources"] if each["kind"] != "session"]
    assert [each["clock"] for each in sources] == ["exact", "measured"]
    bounds_ns = [each["clock_bound_ns"] for each in sources]
    document = json.loads((directory / "merged.json").read_text())
    last = max(event["ts"] for event in document["traceEvents"] if event["name"].startswith("nccl"))
    last_ns = round(last * 1000) + document["baseTimeNanoseconds"]
    told = summary(last_ns + sum(bounds_ns) + 1_000, "--strict-clocks")
    if max(bounds_ns) <= 100_000:
        assert told.returncode == 0, told.stderr
    else:  # on a busy machine
        assert "is known to ± " in told.stderr
    refused = summary(last_ns + sum(bounds_ns) - 1_000, "--strict-clocks")
    assert refused.returncode == 1
    if max(bounds_ns) <= 100_000:
        assert "kernels-alpha.json (rank 0 on alpha) and " in refused.stderr
        assert "allreduce 7 ends in " in refused.stderr


@pytest.mark.slow
def test_hosts_that_ipv6_alone_connects(tmp_path: Path, hosts: None) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + UNTIL_BOTH)
    session = run_on_two(tmp_path, ["program.py"], hosts=lambda: two_hosts(ipv6=True))
    (link,) = session.clocks.links.values()
    assert _error_ns(session, tmp_path) < link.bound_ns < 10_000_000
    addresses = json.loads((tmp_path / "session" / names.CLOCK).read_text())["addresses"]
    assert [host for host, _ in addresses] == [f"{NETWORK6}1"]


TRAINING = """
import sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
for batch in DataLoader(torch.randn(120, 64), batch_size=4, num_workers=1):
    model(batch).sum().backward()
    time.sleep(0.02)
if dist.get_rank():
    exec(open("program.py").read())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_over_both_by_datagrams_and_by_collectives(tmp_path: Path, hosts: None) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "train.py").write_text(TRAINING)
    words = torchrun("train.py", port=29411)
    session = run_on_two(tmp_path, words, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="cable")
    (link,) = session.clocks.links.values()
    assert link.kind == "measured"
    assert _error_ns(session, tmp_path) < link.bound_ns
    for records in tmp_path.glob("session/telemetry/*/records.jsonl"):
        kept = [line for line in records.read_text().splitlines(True) if '"type":"clock"' not in line]
        records.write_text("".join(kept))
    session = open_session(tmp_path / "session")
    (link,) = session.clocks.links.values()
    assert link.kind == "inferred"
    assert _error_ns(session, tmp_path) < link.bound_ns


def _cut(hosts: tuple[Host, Host]) -> None:
    hosts[1].call("ip", "link", "set", "cable", "down")


@pytest.mark.slow
def test_without_a_network_the_clock_is_assumed(tmp_path: Path, hosts: None) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    session = run_on_two(tmp_path, ["program.py"], prepare=_cut)
    assert session.clocks.links == {}
    clocks = report_of(tmp_path / "session")["clocks"]
    assert {(clock["host"], clock["kind"], clock["bound_ns"] is None) for clock in clocks} == {
        ("alpha", "exact", False),
        ("beta", "assumed", True),
    }
    assert {clock["why"] for clock in clocks} == {None, "alpha did not answer at 10.213.7.1"}
