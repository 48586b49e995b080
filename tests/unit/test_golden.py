"""tools/golden: its comparison finds a planted difference, and masks what it says and nothing else."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.golden_cases import normal
from tools.golden_cases.compare import compare
from tools.golden_cases.damaged import damaged
from tools.golden_cases.differences import multisets, printed
from tools.golden_cases.native import decoded
from tools.golden_cases.session_files import lines_of
from tools.golden_cases.write import MARKER

from tests.support.mutate import KINETO

ROOT = Path(__file__).parent.parent.parent
REPORT = {"ranks": [{"steps": {"count": 12, "mean_ms": 30.25}}], "advice": "use 4 workers, not 2"}


def _results(directory: Path, report: dict[str, Any], events: list[str], stderr: str = "") -> Path:
    """A folder of results with one case."""
    case = directory / "traces" / "one"
    case.mkdir(parents=True)
    (directory / MARKER).touch()
    text = f"$ iotrace report x --json\nexit code 0\n--- stdout\n{json.dumps(report)}\n--- stderr\n{stderr}\n"
    (case / "printed.txt").write_text(text)
    (case / "merged.json.txt").write_text("\n".join(events) + "\n")
    return directory


def _found(first: Path, second: Path, words: bool = True) -> dict[str, list[str]]:
    return dict(compare(first, second, lambda name: True, words))


def test_a_figure_that_changed_is_found_by_its_path(tmp_path: Path) -> None:
    other = json.loads(json.dumps(REPORT))
    other["ranks"][0]["steps"]["mean_ms"] = 30.5
    first, second = _results(tmp_path / "a", REPORT, ["x"]), _results(tmp_path / "b", other, ["x"])
    assert _found(first, second) == {
        "traces/one/printed.txt": ["ranks[0].steps.mean_ms: 30.25 -> 30.5"],
    }


def test_an_event_that_changed_is_found_wherever_it_stands(tmp_path: Path) -> None:
    first = _results(tmp_path / "a", REPORT, ["event 1", "event 2", "event 2"])
    second = _results(tmp_path / "b", REPORT, ["event 2", "event 3", "event 1"])
    (lines,) = _found(first, second).values()
    assert lines == ["lines: 1 of 3 gone, 1 of 3 new", "- event 2", "+ event 3"]
    assert list(multisets(["a", "b"], ["b", "a"])) == []


def test_a_result_that_is_missing_is_a_difference(tmp_path: Path) -> None:
    first, second = _results(tmp_path / "a", REPORT, ["x"]), _results(tmp_path / "b", REPORT, ["x"])
    (second / "traces" / "one" / "merged.json.txt").unlink()
    assert _found(first, second) == {"traces/one/merged.json.txt": [f"only in {first}"]}


def test_exit_codes_and_messages_are_compared() -> None:
    before = "$ iotrace merge x\nexit code 0\n--- stdout\n{}\n--- stderr\nall is well\n"
    after = "$ iotrace merge x\nexit code 3\n--- stdout\n{}\n--- stderr\nlost 3 events\n"
    assert list(printed(before, after)) == [
        "-exit code 0",
        "-all is well",
        "+exit code 3",
        "+lost 3 events",
    ]


def test_without_words_a_sentence_is_compared_by_its_numbers() -> None:
    before = '--- stdout\n{"advice": "use 4 workers, not 2", "cause": "read"}'
    reworded = before.replace("use 4 workers, not 2", "take 4 workers instead of 2")
    text = f"a line\n{before}"
    assert list(printed(text, f"a line\n{reworded}", words=False)) == []
    assert len(list(printed(text, f"a line\n{reworded}"))) == 1
    for planted in (reworded.replace("4", "5"), before.replace('"read"', '"decode"')):
        assert len(list(printed(text, f"a line\n{planted}", words=False))) == 1


def test_masks_hide_directories_and_the_time_of_now_alone(tmp_path: Path) -> None:
    masks = normal.Masks({"work": tmp_path / "made", "recorded": tmp_path})
    text = (
        f'{tmp_path}/made/out.json {tmp_path}/sessions/x "seconds": 0.25, "others_pct": 3.5, "mean_ms": 0.25'
    )
    assert masks.text(text) == (
        '<work>/out.json <recorded>/sessions/x "seconds": <seconds>, "others_pct": <seconds>, "mean_ms": 0.25'
    )
    assert masks.paths('"seconds": 0.25') == '"seconds": 0.25'
    assert (
        masks.text("2.2 MB read, 1 kB written in 0.1 s (23 MB/s)") == "2.2 MB read, 1 kB written in <seconds>"
    )
    traceback = 'Traceback (most recent call last):\n  File "a", line 1, in x\n    x()\nValueError: 7\n'
    assert masks.text(traceback) == "Traceback (most recent call last):\nValueError: 7\n"


def test_events_have_one_order_and_one_spelling_of_numbers() -> None:
    one = b'{"a": 27.0, "traceEvents": [{"ts": 2.50, "ph": "X"}, {"ph": "i", "ts": 1}]}'
    same = b'{"traceEvents": [{"ts": 1.0, "ph": "i"},\n{"ph": "X", "ts": 2.5}], "a": 27}'
    assert normal.events(one) == normal.events(same) == '{"a":27}\n{"ph":"X","ts":2.5}\n{"ph":"i","ts":1}\n'
    assert normal.events(one) != normal.events(one.replace(b"2.50", b"2.51"))
    assert normal.events(b'{"traceEvents": [{"ts": NaN}]}') == '{"ts":NaN}\n'


def test_the_version_is_masked_where_a_merge_states_it() -> None:
    stated = [
        '{"iotrace_merge":{"version":"0.1.0"}}',
        '["metadata", "cr-iotrace_merge", "{\\"version\\":\\"0.1.0\\"}"]',
    ]
    other = [line.replace("0.1.0", "0.2.0") for line in stated]
    assert normal.without_version(stated) == normal.without_version(other)
    assert normal.without_version(['{"args":{"version":"1"}}']) == ['{"args":{"version":"1"}}']


def _session(directory: Path, pid: int, start_ns: int, records: int = 3) -> Path:
    """A session of one process with some batches, a span and a call."""
    process = directory / "processes" / f"{pid}-{start_ns:x}-vm"
    process.mkdir(parents=True)
    (directory / "posix").mkdir()
    (directory / "manifest.json").write_text(json.dumps({"format": 1, "started_ns": start_ns, "cwd": "/x"}))
    (directory / "outcome.json").write_text(json.dumps({"exit_code": 0, "ended_ns": start_ns + 9}))
    identity = {"pid": pid, "role": "main", "rank": None, "incarnation": 0, "clock": [start_ns, 1, 2]}
    (process / "process.json").write_text(json.dumps(identity))
    written: list[dict[str, Any]] = [{"type": "text", "id": pid % 7, "text": "h5py.Dataset.__getitem__"}]
    written += [{"type": "batch", "index": n, "tid": pid, "sent_ns": start_ns + n} for n in range(records)]
    written += [{"type": "tick", "cpu_ns": n} for n in range(pid % 5 + 1)]
    (process / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in written))
    span = struct.pack("<qqqqiiiiiiiiq", start_ns, 7, 5, 4096, pid, pid % 7, -1, 3, 0, 0, 0, 0, 0)
    (process / "spans.bin").write_bytes(span)
    return directory


def test_sessions_of_one_program_differ_by_what_was_planted(tmp_path: Path) -> None:
    one = lines_of(_session(tmp_path / "a", 100, 10**12), str)
    again = lines_of(_session(tmp_path / "b", 203, 5 * 10**13), str)
    planted = lines_of(_session(tmp_path / "c", 100, 10**12, records=4), str)
    assert one == again
    assert [line for line in planted if line not in one] == [
        '1 x main: {"type": "batch", "index": 3, "tid": "int", "sent_ns": "int"}'
    ]
    assert "1 x main: span kind 3 h5py.Dataset.__getitem__ file None bytes 4096 unknown nothing" in one


def test_damaged_traces_are_the_same_each_time() -> None:
    first, second = damaged(), damaged()
    assert len(first) > 150
    assert [make.keywords for make in first.values()] == [make.keywords for make in second.values()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("planted", "code"), [("x", 0), ("y", 1)])
def test_the_command_ends_with_1_where_results_differ(tmp_path: Path, planted: str, code: int) -> None:
    first, second = _results(tmp_path / "a", REPORT, ["x"]), _results(tmp_path / "b", REPORT, [planted])
    done = subprocess.run(
        [ROOT / "tools" / "golden", "compare", first, second],
        env={**os.environ, "GOLDEN_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines()[-1] == ("1 results differ" if code else "no difference")


def test_a_native_trace_is_read_to_the_last_nanosecond(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(KINETO)
    line = [sys.executable, "-m", "iotrace", "merge", "trace.json", "-o", "out.pftrace"]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    lines = [json.loads(line) for line in decoded(tmp_path / "out.pftrace").splitlines()]
    slices = {line[4]: line for line in lines if line[0] == "slice"}
    (start,) = (int(line[1]) for line in lines if line[0] == "start")
    # 1000.125 us after its base.
    assert start + slices["aten::add"][2] == 1_795_000_000_000_000_000 + 1_000_125
    assert slices["aten::add"][3] == 20_500
    assert len([line for line in lines if line[0] == "flow"]) == 1
