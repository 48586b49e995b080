"""The tables of docs/overhead.md, for 80 columns."""

from __future__ import annotations

from typing import Any

from tools.benchmarks.compare import Compared
from tools.benchmarks.statistics import Spread
from tools.benchmarks.variants import AGAIN, AGENT, BARE, BOTH, MEANINGS, NO_WINDOW, POSIX, RUN

_NOTE = """\
time: of the whole program over bare. step: the same of its steps past the
20th, which are behind the loader's start and the window of torch.profiler.
apart: seconds added to all but these steps. Median of the passes ± half the
distance of their quartiles (of their extremes, with fewer than four)."""


def heading(about: dict[str, Any], load_after: float) -> str:
    """What it was measured on, and how busy that was."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    return (
        f"{about['date']}, {about['cores']} cores of {about['cpu']},\nLinux {about['kernel']}, "
        f"Python {about['python']},\n{versions};\nload average {about['load_average']:.1f} before, "
        f"{load_after:.1f} after"
    )


def workloads(compared: dict[str, Compared]) -> list[str]:
    """All workloads at a glance, then each with its sources apart."""
    lines = []
    for variant in (AGAIN, NO_WINDOW, RUN):
        rows = [
            [name, found.bare_s.shown(2), *_ratios(found, variant)]
            for name, found in compared.items()
            if variant in found.added
        ]
        if rows:
            lines += [f"{MEANINGS[variant]}:", ""]
            lines += [*table(["workload", "bare s", "time", "step", "apart s"], rows), ""]
    for name, found in compared.items():
        if found.added.keys() <= {AGAIN, NO_WINDOW, RUN}:
            continue
        step = Spread(*(1000 * value for value in found.bare_step_s.plain().values()))
        lines += [f"{name}: {found.steps} steps of {step.shown(1)} ms, in {found.bare_s.shown(2)} s bare", ""]
        rows = [
            [variant, *_ratios(found, variant), added.cpu.shown() if added.cpu else ""]
            for variant, added in found.added.items()
        ]
        lines += [*table(["", "time", "step", "apart s", "CPU"], rows), ""]
    for name, found in compared.items():
        full = found.added.get(RUN)
        if full is not None and full.window_s is not None and full.launcher_s is not None:
            lines.append(
                f"{name}: the window's own calls {1000 * full.window_s.median:.0f} ms; before the command "
                f"and for\nthe report {full.launcher_s.shown(2)} s"
            )
    shown = dict.fromkeys(variant for found in compared.values() for variant in found.added)
    return [*lines, "", *(f"{variant}: {MEANINGS[variant]}" for variant in shown), "", _NOTE]


_PHASES = {
    "root": "the call of a root",
    "backward": "a backward pass",
    "optimizer": "an optimizer's step",
    "forward": "62 modules in a root that is known",
}


def small(found: dict[str, Any]) -> list[str]:
    """What a process, a call, a span, a batch and a region cost, and the sidecar."""
    rows = []
    for program, start in found["process_cpu_ms"].items():
        shown = program if program.startswith("python") else f"python -c '{program}'"
        for variant in (AGENT, POSIX, BOTH):
            rows.append(_change(f"`{shown}`, {variant}", start[BARE], start[variant], "ms", 1))
    for name, cost in found["posix_call_us"].items():
        rows.append(_change(f"{name}, posix", cost[BARE], cost[POSIX], "us"))
        rows.append(_change(f"{name}, both", cost[BARE], cost[BOTH], "us"))
    rows.append(["a span", "", "", f"{found['span_us']:.2f} us"])
    rows.append(["a batch of one sample, no workers", "", "", f"{found['batch_us']:.1f} us"])
    step = found["step_us"]
    for name, shown in _PHASES.items():
        rows.append(_change(shown, step[name], step[f"{name}, hooked"], "us"))
    rows.append(_change("62 modules, searched for roots", step["forward"], step["forward, searched"], "us"))
    rows.append(["an empty region", "", "", f"{found['region_us']:.2f} us"])
    item = found["item_us"]
    rows.append(["an item of a queue, put and taken", "", "", f"{item['put'] + item['get']:.1f} us"])
    sidecar = found["sidecar"]
    rows.append(["the sidecar's start, beside it", "", "", f"{sidecar['start_ms']:.1f} ms"])
    rows.append(
        [f"the sidecar, {sidecar['processes']} processes, of a core", "", "", f"{sidecar['core_pct']:.2f} %"]
    )
    return table(["cost of", "bare", "traced", "added"], rows)


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Markdown, its columns aligned for a terminal."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * max(3, width) for width in widths], *rows]
    return [
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    ]


def _ratios(found: Compared, variant: str) -> list[str]:
    added = found.added[variant]
    return [added.wall.shown(), added.step.shown(), added.apart_s.shown(2)]


def _change(name: str, bare: float, traced: float, unit: str, digits: int = 2) -> list[str]:
    return [
        name,
        f"{bare:.{digits}f} {unit}",
        f"{traced:.{digits}f} {unit}",
        f"{traced - bare:.{digits}f} {unit}",
    ]
