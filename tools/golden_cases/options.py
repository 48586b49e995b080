"""Cases of several inputs, of every option, and of wrong usage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.golden_cases.cases import ONE, Case
from tools.golden_cases.recording import Recorded

_GLOO = ("gloo_rank0.json.gz", "gloo_rank1.json.gz")
_MADE = ("made_rank0.json", "made_rank1.json")
_COMPARED = (
    "resnet50_num_workers_0.pt.trace.json.gz",
    "mi210_gpu_only.json.gz",
    "nccl_2ranks_rank0.json.gz",
    "recsys_8ranks_rank3.json.gz",
    *_GLOO,
)


def options(recorded: Recorded) -> Iterator[Case]:
    """Every case, in order."""
    there = {path.name: path for path in recorded.of("traces")}
    sessions = recorded.path / "sessions"
    yield from _reports(there)
    yield from _merges({name: str(path) for name, path in there.items()}, sessions)
    yield from _usage(recorded.path)


def _reports(traces: dict[str, Path]) -> Iterator[Case]:
    for pair in (_GLOO, _MADE):
        paths = tuple(str(traces[name]) for name in pair)
        name = f"options/report_{pair[0].partition('_')[0]}"
        yield Case(f"{name}_pair", ("report", *paths, "--json"))
        yield Case(f"{name}_pair_text", ("report", *paths))
        given = tuple((traces[name], name) for name in pair)
        yield Case(f"{name}_relative", ("report", *pair, "--json"), (), given)
        yield Case(f"{name}_one_relative", ("report", pair[0], paths[1], "--json"), (), given)
    yield Case("options/report_gap", ("report", str(traces[_MADE[0]]), "--kernel-gap-us", "3", "--json"))
    for name in _COMPARED:
        for tool in ("tb", "hta"):
            if name in traces:
                compat = ("report", str(traces[name]), "--compat", tool)
                yield Case(f"options/compat_{tool}_{name}", (*compat, "--json"))
    yield Case("options/compat_text", ("report", str(traces[_GLOO[0]]), "--compat", "tb"))


def _merges(traces: dict[str, str], sessions: Path) -> Iterator[Case]:
    made, gloo = tuple(traces[name] for name in _MADE), tuple(traces[name] for name in _GLOO)
    own = str(sessions / "own_profiler")
    chosen = {
        "pair": made,
        "pair_processes": (*made, "--processes", "2"),
        "gloo": gloo,
        "all_real": (*gloo, *made, traces["mi210_gpu_only.json.gz"], "--align", "start"),
        "steps": (*made, "--steps", "2:4"),
        "steps_open": (own, "--steps", ":5"),
        "time": (*gloo, "--time", "0.05:0.12"),
        "time_session": (str(sessions / "regions"), "--time", "0.5:1.5"),
        "ranks": (*made, "--ranks", "1"),
        "drop": (*made, "--drop", "cpu_op", "--drop", "ac2g"),
        "drop_session": (str(sessions / "stream_iterable"), "--drop", "posix"),
        "per_rank": (*made, "--per-rank"),
        "align": (made[0], str(sessions / "regions"), "--align", "start"),
        "strict": (*made, "--strict-clocks"),
        "two_sessions": (own, str(sessions / "regions")),
        "session_and_log": (str(sessions / "marks"), str(sessions / "stream_iterable" / "posix")),
        "inputs": ("--inputs", str(sessions / "killed_program"), str(sessions / "elastic")),
    }
    for name, arguments in chosen.items():
        one = () if "--processes" in arguments else ("--processes", "1")
        for kind in ("json.gz", "pftrace"):
            line = ("merge", *arguments, "-o", f"merged.{kind}", "--json", *one)
            yield Case(f"options/merge_{name}_{kind.partition('.')[0]}", line)
    damaged = str(sessions.parent / "damaged")
    yield Case("options/merge_damaged_logs", ("merge", f"{damaged}/*.pfw", "-o", "merged.json", *ONE))
    yield Case("options/merge_damaged", ("merge", damaged, "-o", "merged.json", *ONE))
    yield Case("options/merge_text", ("merge", *made, "-o", "merged.pftrace.gz", "--processes", "1"))
    yield Case("options/merge_default", ("merge", *gloo, "--processes", "1"), fresh=True)


def _usage(recorded: Path) -> Iterator[Case]:
    session = str(recorded / "sessions" / "images")
    lines = {
        "none": (),
        "unknown": ("frobnicate",),
        "version": ("--version",),
        "report_nothing": ("report",),
        "report_missing": ("report", "missing"),
        "report_no_session": ("report", str(recorded / "sessions")),
        "report_two": ("report", session, str(recorded / "traces" / _MADE[0])),
        "report_compat_session": ("report", session, "--compat", "tb"),
        "merge_nothing": ("merge",),
        "merge_missing": ("merge", "missing.json", "-o", "out.json"),
        "merge_suffix": ("merge", session, "-o", "out.txt"),
        "merge_time": ("merge", session, "--time", "5:1"),
        "merge_steps": ("merge", session, "--steps", "900:901"),
        "merge_ranks": ("merge", session, "--ranks", "a-b"),
        "merge_align": ("merge", session, "--align", "end"),
        "merge_drop_all": ("merge", session, "--ranks", "7"),
        "export_missing": ("export", "missing", "--format", "dftracer", "-o", "out.pfw"),
        "export_format": ("export", session, "--format", "x", "-o", "out.pfw"),
        "run_nothing": ("run",),
        "run_missing": ("run", "-o", "session", "--", "no-such-program"),
        "run_torch_steps": ("run", "--torch-steps", "1:x", "--", "true"),
        "sweep_nothing": ("sweep",),
        "sweep_no_axis": ("sweep", "--", "true"),
        "sweep_prefetch": ("sweep", "--prefetch", "0", "--", "true"),
        "sweep_resume": ("sweep", "--resume", "-o", "missing", "--workers", "1", "--", "true"),
        "sweep_placeholder": ("sweep", "--set", "x=1,2", "--", "true"),
    }
    for name, line in lines.items():
        yield Case(f"usage/{name}", line)
    for subject in ("report", "sweep", "merge", "doctor"):
        yield Case(f"usage/schema_{subject}", ("schema", subject), fresh=subject == "report")
    yield Case("usage/fresh_report", ("report", session, "--json"), fresh=True)
