"""The U-Net on HDF5 volumes: what was read equals strace's count, what was trained is what was recorded."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.errors import UsageError
from iotrace.sources.session import open_session
from iotrace.timeline.build import build
from iotrace.viewer.view import view_of_session
from tests.support.chrome_timeline import write_chrome
from tests.support.perfetto import ERRORS, query, track_paths
from tests.support.runs import UNET, Run, environment, in_process, launcher, run_traced

STEPS = 6


def _strace_reads(directory: Path) -> Counter[tuple[str, str]]:
    """Successful read calls by process and volume, as strace saw them (one log per process)."""
    line = re.compile(r"^(?:read|pread64|readv|preadv)\(\d+<([^>]*)>.*= \d+$")
    found: Counter[tuple[str, str]] = Counter()
    for log in directory.glob("log.*"):
        for text in log.read_text(errors="replace").splitlines():
            match = line.match(text)
            if match and Path(match[1]).name.startswith("case_"):
                found[(log.suffix[1:], Path(match[1]).name)] += 1
    return found


def _volumes(directory: Path, spelling: str) -> str:
    """The volumes' directory in one spelling."""
    data = directory / "data" / "unet3d"
    if spelling == "relative":
        return "data/unet3d"
    if spelling == "absolute":
        return str(data)
    link = directory / "linked"
    if not link.exists():
        link.symlink_to(data)
    return str(link)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (apt install strace)")
@pytest.mark.parametrize(
    ("workers", "start_method", "spelling"),
    [
        (2, "fork", "symlink"),
        pytest.param(2, "spawn", "relative", marks=pytest.mark.slow),
        pytest.param(0, "fork", "absolute", marks=pytest.mark.slow),
        pytest.param(2, "fork", "relative", marks=pytest.mark.slow),
        pytest.param(2, "spawn", "absolute", marks=pytest.mark.slow),
        pytest.param(0, "fork", "relative", marks=pytest.mark.slow),
        pytest.param(0, "spawn", "symlink", marks=pytest.mark.slow),
    ],
)
def test_read_calls_equal_straces(
    unet_directory: Path, tmp_path: Path, workers: int, start_method: str, spelling: str
) -> None:
    line, session = launcher(unet_directory, [], ["-q", "--torch-steps", "off"])
    python = line.pop()
    tracer = ["strace", "-ff", "-y", "-qq", "--seccomp-bpf", "-e", "trace=read,pread64,readv,preadv"]
    tracer += ["-o", str(tmp_path / "log")]
    program = [python, UNET, "--workers", str(workers), "--steps", str(STEPS)]
    options = ["--start-method", start_method, "--data", _volumes(unet_directory, spelling)]
    done = subprocess.run(
        [*line, *tracer, *program, *options],
        cwd=unet_directory,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    rank = Run(done.returncode, done.stdout, done.stderr, session).report()["ranks"][0]
    recorded = {
        (pid, Path(file["path"]).name): reads
        for file in rank["io"]["files"]
        if Path(file["path"]).name.startswith("case_")
        for pid, reads in file["by_worker"].items()
    }
    expected = _strace_reads(tmp_path)
    assert expected
    assert recorded == dict(expected)
    assert sum(loader["batches"] for loader in rank["loaders"]) == STEPS
    # However it was spelled, a volume is one file with one name.
    assert {Path(path).parent for path in (f["path"] for f in rank["io"]["files"]) if "case_" in path} == {
        Path("data/unet3d")
    }


def test_the_report_names_the_file_and_the_cause(unet_run: Run) -> None:
    wait = unet_run.report()["ranks"][0]["data_wait"]
    assert max(wait["causes_ms"], key=wait["causes_ms"].get) == "decode"
    assert wait["files"][0]["path"] == "data/unet3d/case_02.h5"
    assert "data/unet3d/case_02.h5" in unet_run.stderr
    assert sum(wait["causes_ms"].values()) == pytest.approx(wait["raw_ms"], abs=1e-6)
    assert sum(file["ms"] for file in wait["files"]) <= wait["raw_ms"]


def test_nearly_all_bytes_of_the_kernels_account_were_seen(unet_run: Run) -> None:
    io = unet_run.report()["ranks"][0]["io"]
    assert 0.95 <= io["coverage"] <= 1.0
    workers = [row for row in io["processes"] if row["role"] == "forked"]
    assert len(workers) == 2
    assert all(0.8 <= row["coverage"] <= 1.0 for row in workers)


def test_the_program_prints_what_it_prints_without_iotrace(unet_run: Run) -> None:
    assert re.fullmatch(r"step 10 loss \d\.\d{4}\ntrained 16 steps in [\d.]+ s\n", unet_run.stdout)


def test_every_step_and_stage_is_accounted_for(unet_run: Run) -> None:
    rank = unet_run.report()["ranks"][0]
    steps = rank["steps"]
    assert steps["begun"] == 16
    assert steps["count"] + sum(steps["excluded"].values()) == 15  # the last one has no known end
    (loader,) = rank["loaders"]
    assert (loader["kind"], loader["primary"], loader["batches"], loader["workers"]) == (
        "training",
        True,
        16,
        2,
    )
    assert loader["start_method"] == "fork"
    assert loader["production_ms"] > 0
    assert loader["delay_ms"] >= 0
    assert steps["samples_per_second"] == pytest.approx(2 * steps["per_second"])


def test_perfetto_imports_every_slice_and_arrow(unet_run: Run, tmp_path: Path) -> None:
    """From the timeline of the run as from the one in Chrome's format."""
    path = tmp_path / "rank0.json.gz"
    write_chrome(build(SessionAnalysis(open_session(unet_run.session)).ranks[0], []), path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    put_in = Counter(event["name"] for event in events if event["ph"] == "X")
    arrows = sum(event["ph"] in "tf" for event in events)
    durations = {event["name"]: 0 for event in events if event["ph"] == "X"}
    for event in events:
        if event["ph"] == "X":
            durations[event["name"]] += round(event["dur"] * 1000)
    counters = sum(event["ph"] == "C" for event in events)
    written = unet_run.session / "out" / "timeline.pftrace"
    for trace in (path, written):
        errors, slices, flows, values = query(
            trace,
            ERRORS,
            "select name, count(*), sum(dur) from slice group by name",
            "select count(*) from flow",
            "select count(*) from counter",
        )
        assert errors == []
        assert {name: count for name, count, _ in slices} == dict(put_in)
        assert {name: total for name, _, total in slices} == durations
        assert flows == [[arrows]]
        assert arrows >= 2 * 16
        assert values == [[counters]]
    parts = [path.split(" / ")[1:3] for path in track_paths(written)]
    groups = [" / ".join(re.sub(r" \(.*", "", part) for part in each) for each in parts]
    main = next(path for path in track_paths(written) if path.endswith("torch.profiler / torch"))
    # Imports are nested so deep that they would hide the workers: they stand shut.
    assert any(path.endswith(" / start-up / start-up") for path in track_paths(written))
    assert main.split(" / ")[1] == "rank 0"
    assert list(dict.fromkeys(groups)) == [
        "",
        "rank 0",
        "rank 0 / main",
        "rank 0 / worker 0",
        "rank 0 / worker 1",
        "counters",
        "counters / rank 0 · main",
        f"counters / host {os.uname().nodename}",
        "counters / rank 0 · worker 0",
        "counters / rank 0 · worker 1",
    ]


def test_open_selects_the_longest_wait_of_the_timeline(unet_run: Run) -> None:
    analysis = SessionAnalysis(open_session(unet_run.session))
    (rank,) = analysis.ranks
    longest = max(rank.measured_waits, key=lambda wait: wait.delivery.wait_ns)
    view = view_of_session(analysis)
    assert view.selected_ns is not None
    assert view.shown_ns is not None
    start_ns, duration_ns = view.selected_ns
    found, bounds = query(
        unet_run.session / "out" / "timeline.pftrace",
        f"select category, name from slice where ts = {start_ns} and dur = {duration_ns}",
        f"select start_ts <= {view.shown_ns[0]} and {view.shown_ns[1]} <= end_ts from trace_bounds",
    )
    assert bounds == [[1]]
    ((category, name),) = found
    assert category == "data wait"
    assert name.startswith(f"wait {longest.delivery.index} · {longest.cause}")
    assert re.search(view.expanded, f"worker 1 (host) · pid {longest.delivery.pid}")
    # Of one rank, Perfetto opens the group of the selected wait itself: pinned, the track would stand twice.
    assert not any(re.search(pattern, "data wait") for pattern in view.pinned)
    batch = view_of_session(analysis, batch=longest.delivery.index)
    assert batch.what.startswith(f"batch {longest.delivery.index}, ")
    assert view_of_session(analysis, "3").what == "step 3"
    for wrong, remedy in (({"batch": 10**6}, "batches 0 to"), ({"around": "failure"}, "--around worst")):
        with pytest.raises(UsageError) as raised:
            view_of_session(analysis, **wrong)
        assert remedy in str(raised.value.remedy)


def test_a_merge_keeps_what_lies_around_the_longest_wait(unet_run: Run, tmp_path: Path) -> None:
    (rank,) = SessionAnalysis(open_session(unet_run.session)).ranks
    longest = max(rank.measured_waits, key=lambda wait: wait.delivery.wait_ns).delivery
    path = tmp_path / "part.pftrace"
    done = in_process("merge", str(unet_run.session), "--around", "worst", "-o", str(path))
    assert done.returncode == 0, done.stderr
    found, all_steps = query(
        path,
        f"select name from slice where ts = {longest.wait_start_ns} and dur = {longest.wait_ns}",
        "select count(*) from slice where category = 'step' and name glob 'step *'",
    )
    assert found[0][0].startswith(f"wait {longest.index} · ")
    assert 3 <= all_steps[0][0] <= len(rank.loop.steps)
    refused = in_process("merge", str(path), "--around", "worst", "-o", str(tmp_path / "no.json"))
    assert (refused.returncode, "needs a session" in refused.stderr) == (2, True)


def test_waits_and_reads_are_named_by_cause_and_file(unet_run: Run) -> None:
    """Also the start-up is one slice, and no track is called by a number of a lane."""
    waits, reads, first, tracks = query(
        unet_run.session / "out" / "timeline.pftrace",
        "select name, extract_arg(arg_set_id, 'debug.cause'), extract_arg(arg_set_id, 'debug.file') "
        "from slice where category = 'data wait'",
        "select distinct name from slice where category = 'read path' and name glob '*h5py*'",
        "select s.name from slice s join track t on t.id = s.track_id "
        "where t.name = 'steps' order by ts limit 1",
        "select distinct name from track",
    )
    for name, cause, file in waits:
        expected = [cause] if file is None else [cause, file.rpartition("/")[2]]
        if cause == "transform" and (file is None or file.endswith(" files")):
            expected = [cause, "Volumes.__getitem__"]  # no file stands out: the code does
        assert name.split(" · ")[1:] == expected
    assert any(file is not None for _, _, file in waits)
    assert all(re.fullmatch(r"case_\d+\.h5 · h5py\.Dataset\.__getitem__", name) for (name,) in reads)
    assert first == [["start-up"]]
    assert not [name for (name,) in tracks if not name or re.search(r" \+\d+( \d+)?$", name)]


def test_arrows_lead_from_the_read_over_the_batch_to_the_wait(unet_run: Run) -> None:
    path = unet_run.session / "out" / "timeline.pftrace"
    (rows,) = query(
        path,
        """select distinct o.category, i.category from flow
           join slice o on o.id = flow.slice_out join slice i on i.id = flow.slice_in""",
    )
    # Beside them torch's own lead from forward to backward operators.
    # A flow ends in the wait, or where the batch arrives within it.
    # A read outside h5py, of a module say, may be a batch's costliest.
    found = {tuple(row) for row in rows}
    always = {("operator", "operator"), ("read path", "ready"), ("ready", "transport")}
    assert always <= found <= {*always, ("POSIX", "ready"), ("ready", "data wait")}


def test_the_costly_reads_lie_inside_their_getitem(unet_run: Run) -> None:
    path = unet_run.session / "out" / "timeline.pftrace"
    (rows,) = query(
        path,
        """select parent.name, count(*) from slice join slice parent on slice.parent_id = parent.id
           where slice.name glob '* · h5py.Dataset.__getitem__' group by parent.name""",
    )
    assert rows == [["Volumes.__getitem__", 16 * 2 * 2]]


def test_io_narrows_what_is_traced(unet_directory: Path) -> None:
    program = [UNET, "--workers", "0", "--steps", "4"]
    options = ["-q", "--torch-steps", "off", "--io", "data/unet3d/case_01.h5"]
    run = run_traced(unet_directory, program, options)
    files = run.report()["ranks"][0]["io"]["files"]
    assert [file["path"] for file in files] == ["data/unet3d/case_01.h5"]
