"""What inputs may be, hold and lie beside: outputs of before, odd names, several documents, times below 0."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from iotrace.cli.parameters import ranks_option
from iotrace.errors import IotraceError, UsageError
from iotrace.merge.input_files import expand
from iotrace.merge.plan import Options
from iotrace.merge.run import merge
from tests.support.perfetto import query
from tests.support.waiting import eventually

BASE_US = 1_795_000_000_000_000
ONE = Options(processes=1)


def _slice(start_us: float, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 77, "tid": 77, "ts": start_us, "dur": 5, "name": name, **more}


def _write(path: Path, events: list[dict[str, Any]], **beside: Any) -> str:
    path.write_text(json.dumps({"traceEvents": events, **beside}))
    return str(path)


def _merged(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Where times begin, and the slices."""
    document = json.loads(path.read_bytes())
    return document["baseTimeNanoseconds"], [e for e in document["traceEvents"] if e["ph"] == "X"]


def test_an_output_by_rank_is_never_an_input(tmp_path: Path) -> None:
    inputs = [
        _write(tmp_path / f"m-rank{rank}.json", [_slice(BASE_US)], distributedInfo={"rank": rank})
        for rank in range(2)
    ]
    before = [Path(path).read_bytes() for path in inputs]
    with pytest.raises(IotraceError, match=r"m-rank0\.json is one of the inputs"):
        merge(inputs, tmp_path / "m.json", Options(per_rank=True))
    assert [Path(path).read_bytes() for path in inputs] == before
    for _ in range(2):  # the second time, the first one's outputs lie there
        summary = merge([str(tmp_path)], tmp_path / "n.json", Options(per_rank=True))
        assert summary.counts["slices"].read == 2


def test_a_merged_file_merged_again_keeps_its_time(tmp_path: Path) -> None:
    sources = [
        _write(
            tmp_path / f"{rank}.json",
            [_slice(1000.5)],
            baseTimeNanoseconds=BASE_US * 1000 + rank * 10**12,
            distributedInfo={"rank": rank},
        )
        for rank in range(2)
    ]
    merge(sources, tmp_path / "once.json", ONE)
    summary = merge([str(tmp_path / "once.json")], tmp_path / "twice.json", ONE)
    assert summary.sources[0].rank is None
    (base, once), (base_again, twice) = (_merged(tmp_path / f"{name}.json") for name in ("once", "twice"))
    assert base == base_again
    assert [item["ts"] for item in once] == [item["ts"] for item in twice]


def test_times_below_zero_keep_their_distances(tmp_path: Path) -> None:
    source = _write(tmp_path / "a.json", [_slice(at) for at in (-1000, -400, 0, 500)])
    assert merge([source], tmp_path / "out.json", ONE).problems == []
    _, slices = _merged(tmp_path / "out.json")
    first = slices[0]["ts"]
    assert [item["ts"] - first for item in slices] == [0, 600, 1000, 1500]


@pytest.mark.parametrize("kind", ["json", "pftrace"])
def test_a_time_below_zero_that_was_not_foreseen_is_shown_at_the_start(tmp_path: Path, kind: str) -> None:
    filler = {"text": "y" * 4000}
    events = [_slice(1000 + place, args=filler) for place in range(800)]
    events.insert(400, _slice(-5, "early"))
    source = _write(tmp_path / "a.json", events)
    summary = merge([source], tmp_path / f"out.{kind}", ONE)
    assert summary.problems == ["a.json: times below 0 or a day before the others', shown at the start (1)"]
    (first,) = query(tmp_path / f"out.{kind}", "select ts, dur, name from slice order by ts limit 1")
    assert first == [[0, 5000, "early"]]


def test_time_counts_from_the_first_event_wherever_it_stands(tmp_path: Path) -> None:
    filler = {"text": "y" * 4000}
    threads = [
        _slice(BASE_US + (0 if thread == 1 else 100e6) + place * 1000, f"{thread}", args=filler)
        for thread in range(3)
        for place in range(400)
    ]
    source = _write(tmp_path / "a.json", threads)
    merge([source], tmp_path / "out.json", Options(seconds=(0, 1)))
    assert {item["name"] for item in _merged(tmp_path / "out.json")[1]} == {"1"}


def test_a_process_of_another_day_is_another_process(tmp_path: Path) -> None:
    log = tmp_path / "a.pfw"
    line = '{"id":%d,"name":"read","cat":"POSIX","pid":4242,"tid":4242,"ts":%d,"dur":5,"ph":1,"args":{}}\n'
    log.write_text("".join(line % (place, BASE_US + place) for place in range(1, 5)))
    for hours, clock in ((20, "assumed"), (0.5, "exact")):
        own = [_slice(BASE_US + hours * 3600e6, pid=4242, tid=4242)]
        trace = _write(tmp_path / "t.json", own, schemaVersion=1)
        summary = merge([str(log), trace], tmp_path / "out.json", ONE)
        assert [source.clock for source in summary.sources] == ["exact", clock]


@pytest.mark.parametrize(
    ("text", "slices", "problem"),
    [
        ('[{a}]\n[{b},{c}]', 3, ""),
        ('{"traceEvents":[{a}],"k":1}{"m":2,"traceEvents":[{b},{c}]}', 3, ""),
        ('{"traceEvents":[{a}],"k":1,"traceEvents":[{b}]}', 2, ""),
        ('[{a},{b}] and more', 2, "the last 8 bytes, behind its array, were left out"),
        ('\ufeff{"k":1,"traceEvents":[{a}]}', 1, ""),
    ],
)  # fmt: skip
def test_several_documents_in_one_file(tmp_path: Path, text: str, slices: int, problem: str) -> None:
    for name in "abc":
        text = text.replace(f"{{{name}}}", json.dumps(_slice(BASE_US, name)))
    plain, packed = tmp_path / "a.json", tmp_path / "b.json.gz"
    plain.write_text(text)
    packed.write_bytes(
        gzip.compress(text[: len(text) // 2].encode()) + gzip.compress(text[len(text) // 2 :].encode())
    )
    for source in (plain, packed):
        summary = merge([str(source)], tmp_path / "out.json", ONE)
        assert summary.counts["slices"].written == slices
        assert [line.partition(": ")[2] for line in summary.problems] == [problem] * bool(problem)


def test_a_damaged_gzip_stream_gives_what_it_holds(tmp_path: Path) -> None:
    events = [_slice(BASE_US + place, f"{place * 7919 % 10007}") for place in range(5000)]
    packed = bytearray(gzip.compress(json.dumps(events).encode()))
    packed[-6] ^= 0xFF  # its checksum
    (tmp_path / "a.json.gz").write_bytes(packed)
    summary = merge([str(tmp_path / "a.json.gz")], tmp_path / "out.json", ONE)
    assert summary.counts["slices"].written == 5000
    assert "is damaged near byte" in summary.problems[0]


@pytest.mark.parametrize("kind", ["json", "pftrace"])
def test_halves_of_characters_and_nuls_are_shown(tmp_path: Path, kind: str) -> None:
    odd = "/data/\udcff.bin"
    events = [
        {"ph": "M", "pid": 77, "tid": 77, "name": "process_name", "args": {"name": odd}},
        _slice(BASE_US, odd, cat=odd, args={odd: odd}),
        _slice(BASE_US + 10, "x", tid=odd, bind_id=odd, odd_key={odd: "\ud800"}),
        _slice(BASE_US + 20, "y", pid="a\0b", tid="\0"),
    ]
    source = tmp_path / "a.json"
    source.write_text(json.dumps(events).replace("\\u0000", "\0"))
    summary = merge([str(source)], tmp_path / f"out.{kind}", ONE)
    assert summary.counts["slices"].written == 3
    assert b"/data/\\" in (tmp_path / f"out.{kind}").read_bytes()


def test_names_that_lead_nowhere_are_told(tmp_path: Path) -> None:
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "inside").mkdir()
    _write(tmp_path / "inside" / "pagerank3.json", [_slice(BASE_US)])
    for name in ("loop.json", "loop*.json", "x" * 300):
        with pytest.raises(IotraceError):
            merge([str(tmp_path / name)], tmp_path / "out.json")
    with pytest.raises(IotraceError, match="cannot be written"):
        merge([str(tmp_path / "inside")], tmp_path / ("x" * 300 + ".json"))
    (tmp_path / "text.json").write_text("[]", encoding="utf-16")
    with pytest.raises(IotraceError, match="UTF-16"):
        merge([str(tmp_path / "text.json")], tmp_path / "out.json")
    # A pattern may match a directory; what cannot be read in one is a loss.
    (tmp_path / "inside" / "loop.json").symlink_to(tmp_path / "loop.json")
    summary = merge([f"{tmp_path}/ins*"], tmp_path / "out.json")
    assert (summary.sources[0].rank, len(summary.problems)) == (None, 1)


def test_a_directory_gives_its_sessions_whole_and_its_traces(tmp_path: Path) -> None:
    for name in ("runs/a", "runs/b"):
        (tmp_path / name / "posix").mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
        (tmp_path / name / "posix" / "io.pfw").write_text("")
    (tmp_path / "trace.json").write_text("{}")
    found = expand([str(tmp_path)], [])
    assert [path.relative_to(tmp_path).as_posix() for path, _ in found] == ["runs/a", "runs/b", "trace.json"]


def test_wrong_ranks_are_wrong_usage() -> None:
    assert ranks_option("0,2-3") == {0, 2, 3}
    for ranks in ("²", "3-1", "1-"):
        with pytest.raises(UsageError, match="--ranks takes numbers and ranges"):
            ranks_option(ranks)


def test_a_merge_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    events = ",\n".join(json.dumps(_slice(BASE_US + place)) for place in range(60_000))
    inputs = [tmp_path / f"{number}.json" for number in range(8)]
    for number, path in enumerate(inputs):
        path.write_text(f'{{"n":{number},"traceEvents":[{events}]}}')
    line = [
        sys.executable,
        "-m",
        "iotrace",
        "merge",
        *map(str, inputs),
        "--processes",
        "2",
        "-o",
        "out.pftrace",
    ]
    merging = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob(".out*.partial/part-*")):
        assert merging.poll() is None
        time.sleep(0.01)
    workers = _children(merging.pid)
    assert workers
    merging.send_signal(signal.SIGTERM)
    assert merging.wait(30) == -signal.SIGTERM
    eventually(lambda: not any(map(_lives, workers)))
    assert sorted(os.listdir(tmp_path)) == [path.name for path in inputs]


def _children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
