"""A training on two hosts whose processes say by the kernel's clock, which both share, when they did what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iotrace.sources.session import Session
from tests.support.runs import in_process

_NAME = re.compile(r"probe-\d+-\d+")

# In each step a region, a range of torch.profiler and a read of the step's own file, one in the other. The
# kernel's clock, which no library shifts, is read around them. SET_AFTER a step the host's clock is set.
TRAINING = """
import ctypes, json, os, struct, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
import iotrace

class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]

kernel, clock_gettime, now = ctypes.CDLL(None).syscall, 228, Time()

def true_ns(clock=0):
    kernel(clock_gettime, clock, ctypes.byref(now))
    return now.s * 10**9 + now.ns

def instant():
    before = time.monotonic_ns()
    true = true_ns(1)
    return time.monotonic_ns() - before, before, true

def probe(name):
    begin = true_ns()
    with iotrace.region(name), torch.profiler.record_function(name):
        file = os.open(name, os.O_RDONLY)
        os.pread(file, 64, 0)
        os.close(file)
    return name, begin, true_ns()

dist.init_process_group("gloo")
rank, steps = dist.get_rank(), int(sys.argv[1])
names = [f"probe-{rank}-{step}" for step in range(steps)]
for name in names:
    with open(name, "wb") as file:
        file.write(bytes(64))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
probes, instants, is_set = [], [], None
for step, batch in enumerate(DataLoader(torch.randn(4 * steps, 64), batch_size=4, num_workers=1)):
    probes.append(probe(names[step]))
    model(batch).sum().backward()
    instants.append(min(instant() for _ in range(10)))
    if os.environ.get("SET_AFTER") == str(step):
        with open(os.environ["HOST_CLOCK"], "r+b") as file:
            mono, rate, real = struct.unpack("3q", file.read())
            file.seek(16)
            is_set = true_ns()
            file.write(struct.pack("q", real + int(os.environ["SET_BY_NS"])))
    time.sleep(0.05)
with open(sys.argv[2], "w") as file:
    json.dump({"probes": probes, "instants": instants, "set_ns": is_set}, file)
dist.destroy_process_group()
"""


@dataclass
class Truth:
    """What the processes of the two hosts said: begin and end of each probe by the kernel's clock, in ns."""

    probes: dict[str, tuple[int, int]]
    instants: list[list[tuple[int, int, int]]]
    set_ns: list[int | None]


def truth_of(directory: Path) -> Truth:
    """Read what the processes of the two hosts wrote."""
    said = [json.loads((directory / f"instants-{number}.json").read_bytes()) for number in range(2)]
    probes = {name: (begin, end) for one in said for name, begin, end in one["probes"]}
    return Truth(probes, [one["instants"] for one in said], [one["set_ns"] for one in said])


def error_ns(session: Session, instants: list[tuple[int, int, int]]) -> int:
    """How far the session's times of the second host are from what the kernel, which both share, says.

    `instants` are readings: how long it took, CLOCK_MONOTONIC of the host, and of the kernel, which is the
    reference's.
    """
    clocks = session.clocks
    (domain,) = set(clocks.of_domain) - {clocks.reference}
    own, reference = clocks.of_domain[domain], clocks.of_domain[clocks.reference]
    return max(
        max(0, abs(own.to_session_ns(seen + took // 2) - reference.to_session_ns(true)) - took)
        for took, seen, true in instants
    )


def merged(directory: Path, *options: str) -> dict[str, Any]:
    """Merge the session of `directory` into ``merged.json`` there; return the summary."""
    words = ["merge", str(directory / "session"), "-o", str(directory / "merged.json"), "--json", *options]
    done = in_process(*words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def placed(directory: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield the probes in ``merged.json``: name, category, begin and end in ns since 1970."""
    document = json.loads((directory / "merged.json").read_bytes())
    base_ns = document["baseTimeNanoseconds"]
    for event in document["traceEvents"]:
        found = _NAME.search(event["name"] + json.dumps(event.get("args", {})))
        if event["ph"] != "X" or found is None:
            continue
        if event["cat"] != "POSIX" or event["name"].startswith("pread"):  # others made the file, before
            start_ns = base_ns + round(event["ts"] * 1000)
            yield found[0], event["cat"], start_ns, start_ns + round(event["dur"] * 1000)
