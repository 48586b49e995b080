"""Damaged traces: what can be read is merged and the loss told; else a sentence, no output, no traceback."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from iotrace.errors import IotraceError
from iotrace.merge.plan import Options
from iotrace.merge.run import merge
from iotrace.timeline.writers import chrome_json
from tests.support.mutate import ARRAY, DFTRACER, KINETO, mutated


def _events(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_bytes())["traceEvents"]
    return [event for event in events if event["ph"] != "M"]


def test_mutated_inputs(tmp_path: Path, mutations: int) -> None:
    """`--mutations N` makes a longer run of it."""
    merged = refused = 0
    source = tmp_path / "trace.json"
    for seed in range(mutations):
        source.write_bytes(mutated(seed))
        output = tmp_path / ("out.json" if seed % 2 else "out.pftrace")
        try:
            summary = merge([str(source)], output, Options(processes=1))
        except IotraceError:
            refused += 1
            assert not output.exists(), seed
        else:
            merged += 1
            counts = summary.counts.values()
            assert all(count.read == count.written + count.selected_away for count in counts), seed
            if output.suffix == ".json":
                written = sum(count.written for count in counts)
                assert written == len(_events(output)), seed
            output.unlink()
        assert sorted(item.name for item in tmp_path.iterdir()) == ["trace.json"], seed
    assert merged > mutations / 3
    assert refused > 0


def _merge(tmp_path: Path, data: bytes, name: str = "trace.json") -> tuple[Any, list[dict[str, Any]]]:
    (tmp_path / name).write_bytes(data)
    output = tmp_path / "out.json"
    summary = merge([str(tmp_path / name)], output, Options(processes=1))
    return summary, _events(output)


def _trace(*events: str) -> bytes:
    return ('{"traceEvents":[' + ",".join(events) + "]}").encode()


_SOUND = '{"ph":"X","pid":1,"tid":1,"ts":1795000000000000,"dur":5,"name":"sound"}'


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ('{"ph":"X","tid":1,"ts":1795000000000001,"dur":5,"name":"no pid"}', {"dur": 5.0}),
        ('{"ph":"X","pid":5000000000,"tid":1,"ts":1795000000000001,"dur":5,"name":"large"}', {"dur": 5.0}),
        ('{"ph":"X","pid":1,"tid":9,"ts":"1795000000000001","dur":"5","name":"text"}', {"dur": 5.0}),
        ('{"ph":"X","pid":1,"tid":9,"ts":1795000000000001,"dur":-5,"name":"negative"}', {"dur": 0.0}),
        ('{"ph":"X","pid":1,"tid":9,"ts":1795000000000001,"dur":NaN,"name":"nan"}', {"dur": 0.0}),
        ('{"ph":"X","pid":1,"tid":9,"ts":1795000000000001,"dur":1,"new":[1],"name":"key"}', {"new": [1]}),
        (
            '{"ph":"X","pid":1,"tid":9,"ts":1795000000000001,"dur":1,"name":"inf","args":{"a":1e400}}',
            {"args": {"a": "1E+400"}},
        ),
        ('{"ph":"X","pid":1,"tid":9,"ts":1795000000000001,"dur":1,"name":"a\tb"}', {"name": "a b"}),
    ],
)
def test_odd_events_are_kept(tmp_path: Path, event: str, expected: dict[str, Any]) -> None:
    summary, events = _merge(tmp_path, _trace(_SOUND, event, _SOUND))
    assert summary.counts["slices"].written == 3
    found = next(item for item in events if item["name"] != "sound")
    assert {key: found[key] for key in expected} == expected
    assert all(0 < item["pid"] < 1 << 31 for item in events)


def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    broken = '{"ph":"X","pid":1,"tid":1,"ts":179500000000,"dur":}'
    summary, events = _merge(tmp_path, _trace(_SOUND, broken, _SOUND))
    assert len(events) == 2
    assert summary.sources[0].lost_events == 1
    assert any("1 event could not be read, the first near byte" in line for line in summary.problems)


def test_invalid_utf8_is_shown_as_its_bytes(tmp_path: Path) -> None:
    _, events = _merge(tmp_path, _trace(_SOUND.replace("sound", "XX"), _SOUND).replace(b"XX", b"\xff\xfe"))
    assert {event["name"] for event in events} == {"\\xff\\xfe", "sound"}


def test_a_log_of_names_alone_and_a_category_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.pfw").write_bytes(DFTRACER.splitlines()[0])
    (tmp_path / "b.json").write_bytes(KINETO)
    inputs = [str(tmp_path / name) for name in ("a.pfw", "b.json")]
    summary = merge(inputs, tmp_path / "out.json", Options(dropped=frozenset({"kernel"})))
    assert summary.counts["slices"].written == 2
    assert summary.problems == []


def test_truncated_json_and_gzip_give_their_whole_events(tmp_path: Path) -> None:
    cut = KINETO[: KINETO.index(b'"ph": "C"') + 20]
    summary, events = _merge(tmp_path, cut)
    assert len(events) == 5
    assert any("breaks off" in line for line in summary.problems)
    large = _trace(*[_SOUND.replace("sound", f"event {number}") for number in range(20_000)])
    packed = gzip.compress(large)
    summary, events = _merge(tmp_path, packed[: len(packed) // 2], "cut.json.gz")
    assert 5_000 < len(events) < 20_000
    assert any("gzip stream breaks off" in line for line in summary.problems)


def test_a_dftracer_log_cut_in_a_line_tells_the_line(tmp_path: Path) -> None:
    summary, events = _merge(tmp_path, DFTRACER[:-30], "trace.pfw")
    assert [event["name"] for event in events] == ["pread64"]
    assert summary.problems == ["trace.pfw: 1 line could not be read, the first is line 4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"hello\n", "no trace"),
        (b'{"a": 1}', "no trace"),
        (b"[]", "no events"),
        (b'{"traceEvents": []}', "no events"),
        (gzip.compress(b"hello", mtime=0), "no trace"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(IotraceError, match=message):
        _merge(tmp_path, content)
    assert [item.name for item in tmp_path.iterdir()] == ["trace.json"]


def test_an_empty_log_is_no_loss(tmp_path: Path) -> None:
    """dftracer leaves them where a process forked and executed another program."""
    (tmp_path / "empty-fork.pfw").touch()
    (tmp_path / "trace.pfw").write_bytes(DFTRACER)
    summary = merge([str(tmp_path / "*.pfw")], tmp_path / "out.json", Options(processes=1))
    assert summary.problems == []
    assert summary.notes == ["empty-fork.pfw: it is empty"]


def test_deep_nesting(tmp_path: Path) -> None:
    deep = _SOUND[:-1] + ',"args":' + '{"a":' * 50_000 + "1" + "}" * 50_001
    summary, events = _merge(tmp_path, _trace(_SOUND, deep, _SOUND))
    assert len(events) >= 2
    assert summary.problems


def test_an_output_that_is_an_input_or_a_device_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_bytes(ARRAY)
    with pytest.raises(IotraceError, match="one of the inputs"):
        merge([str(source)], source)
    os.link(source, tmp_path / "link.json")
    with pytest.raises(IotraceError, match="one of the inputs"):
        merge([str(source)], tmp_path / "link.json")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(IotraceError, match="no regular file"):
        merge([str(source)], tmp_path / "pipe.json")
    assert source.read_bytes() == ARRAY


def test_no_space_leaves_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "trace.json").write_bytes(ARRAY)
    monkeypatch.setattr(chrome_json, "join", full)
    with pytest.raises(IotraceError, match="No space left"):
        merge([str(tmp_path / "trace.json")], tmp_path / "out.json")
    assert [item.name for item in tmp_path.iterdir()] == ["trace.json"]
