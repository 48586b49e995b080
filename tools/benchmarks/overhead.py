"""What tracing costs: every workload under `iotrace run` over bare, and the small figures behind it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.benchmarks.machine import machine
from tools.benchmarks.micro import micro
from tools.benchmarks.statistics import Spread, ratios, spread
from tools.benchmarks.variants import AGENT, BARE, BOTH, POSIX, RUN, Sample, interleaved, measure

_WORKLOADS = Path(__file__).parent.parent.parent / "workloads"
# By file: words before it, and its arguments. What is not listed gets the last row's arguments.
_BEFORE = {"ddp_slow_rank.py": ["-m", "torch.distributed.run", "--nproc-per-node", "2"]}
_ARGUMENTS = {
    "gpt_memmap.py": ["--steps", "150"],
    "stream_iterable.py": [],
    "": ["--steps", "100"],
}
_QUICK = {"": ["--steps", "20"], "stream_iterable.py": []}


def command_of(workload: Path, quick: bool) -> list[str]:
    """How this workload is started."""
    table = _QUICK if quick else _ARGUMENTS
    arguments = table.get(workload.name, table[""])
    return [sys.executable, *_BEFORE.get(workload.name, []), str(workload), *arguments]


def compare(workload: Path, variants: list[str], pairs: int, quick: bool, directory: Path) -> dict[str, Any]:
    """Ratios over bare of one workload: `pairs` forwards and as many backwards."""
    command = command_of(workload, quick)
    measure(BARE, command, directory)  # makes the data, and fills the page cache
    samples: dict[str, list[Sample]] = {variant: [] for variant in variants}
    for order in interleaved(variants, 2 * pairs):
        for variant in order:
            print(f"  {workload.stem} {variant} ...", end="\r", file=sys.stderr)
            samples[variant].append(measure(variant, command, directory))
    print(" " * 40, end="\r", file=sys.stderr)
    bare = [sample.wall_s for sample in samples[BARE]]
    bare_cpu = [sample.cpu_s or 0.0 for sample in samples[BARE]]
    found: dict[str, Any] = {"command": command[1:], "bare_s": spread(bare), "wall": {}, "cpu": {}}
    for variant in variants[1:]:
        found["wall"][variant] = ratios([sample.wall_s for sample in samples[variant]], bare)
        used = [sample.cpu_s for sample in samples[variant] if sample.cpu_s is not None]
        if used:
            found["cpu"][variant] = ratios(used, bare_cpu)
    found["report_s"] = spread([sample.report_s or 0.0 for sample in samples[RUN]])
    return found


def show(result: dict[str, Any]) -> str:
    """The tables of docs/overhead.md."""
    about = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    lines = [
        f"{about['date']}, {about['cores']} cores of {about['cpu']}, Linux {about['kernel']}, "
        f"Python {about['python']}, {versions}; load average {about['load_average']:.1f} before, "
        f"{result['load_average_after']:.1f} after",
        "",
    ]
    if result["workloads"]:
        shown = [variant for variant in (RUN, BOTH, AGENT, POSIX) if variant in result["variants"]]
        with_cpu = [variant for variant in shown if variant != RUN]
        heads = ["workload", "bare s", *(f"{name} / bare" for name in shown)]
        heads += [*(f"{name} / bare, CPU" for name in with_cpu), "report s"]
        lines += [_row(heads), _row(["---"] * len(heads))]
        for name, found in result["workloads"].items():
            cells = [name, found["bare_s"].shown(2)]
            cells += [found["wall"][variant].shown() for variant in shown]
            cells += [found["cpu"][variant].shown() for variant in with_cpu]
            lines.append(_row([*cells, found["report_s"].shown(2)]))
        lines += ["", "Median [quartiles] of the passes' ratios; the scatter of bare is the noise.", ""]
    small = result["micro"]
    if small:
        start = small["process_start_cpu_ms"]
        lines += [_row(["cost of", "bare", "traced", "added"]), _row(["---"] * 4)]
        for variant in (AGENT, POSIX, BOTH):
            lines.append(_change(f"`python -c pass`, {variant} (CPU)", start[BARE], start[variant], "ms"))
        for name, cost in small["posix_call_us"].items():
            lines.append(_change(f"{name}, POSIX tracer", cost[BARE], cost[POSIX], "us"))
            lines.append(_change(f"{name}, both", cost[BARE], cost[BOTH], "us"))
        lines.append(_row(["a span", "", "", f"{small['span_us']:.2f} us"]))
        lines.append(_row(["a batch of one sample, without workers", "", "", f"{small['batch_us']:.1f} us"]))
        region = small["region_us"]
        lines.append(
            _row(
                [
                    "an empty region",
                    "",
                    "",
                    "not there yet: skipped" if region is None else f"{region:.2f} us",
                ]
            )
        )
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _change(name: str, bare: float, traced: float, unit: str) -> str:
    return _row([name, f"{bare:.2f} {unit}", f"{traced:.2f} {unit}", f"{traced - bare:.2f} {unit}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench overhead", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="names in workloads/; default: all")
    parser.add_argument("--pairs", type=int, default=5, help="of runs, forwards and backwards (default 5)")
    parser.add_argument("--quick", action="store_true", help="one pair of bare and traced, few steps")
    parser.add_argument("--no-micro", action="store_true", help="leave out the small figures")
    parser.add_argument("--no-workloads", action="store_true", help="the small figures alone")
    parser.add_argument("--directory", type=Path, help="where the workloads' data is kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    chosen = sorted(
        path for path in _WORKLOADS.glob("*.py") if path.stem in (options.workloads or [path.stem])
    )
    if not chosen:
        parser.error(f"no such workload; there are: {', '.join(p.stem for p in _WORKLOADS.glob('*.py'))}")
    if options.pairs < 1:
        parser.error("--pairs must be 1 or more")
    variants = [BARE, RUN] if options.quick else [BARE, AGENT, POSIX, BOTH, RUN]
    directory = options.directory or Path(tempfile.gettempdir()) / "iotrace-bench-data"
    directory.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": machine(), "variants": variants, "workloads": {}, "micro": None}
    if not options.no_workloads:
        for workload in chosen:
            pairs = 1 if options.quick else options.pairs
            result["workloads"][workload.stem] = compare(workload, variants, pairs, options.quick, directory)
    if not options.no_micro:
        result["micro"] = micro(2 if options.quick else 6)
    result["load_average_after"] = os.getloadavg()[0]
    print(json.dumps(result, indent=2, default=_plain) if options.json else show(result))


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return value.plain()
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    main()
