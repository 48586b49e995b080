"""What tracing costs: every workload under `iotrace run` over bare, and the small figures behind it."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.benchmarks.machine import machine
from tools.benchmarks.micro import micro
from tools.benchmarks.statistics import Spread, ratios, spread
from tools.benchmarks.variants import AGENT, BARE, BOTH, POSIX, RUN, Sample, interleaved, measure

import iotrace

_WORKLOADS = Path(__file__).parent.parent.parent / "workloads"
# By file: words before it, and its arguments. What is not listed gets the last row's arguments.
_BEFORE = {"ddp_slow_rank.py": ["-m", "torch.distributed.run", "--nproc-per-node", "2"]}
_ARGUMENTS = {
    "gpt_memmap.py": ["--steps", "150"],
    "stream_iterable.py": [],
    "": ["--steps", "100"],
}
_interrupted: list[str] = []
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
    try:
        for order in interleaved(variants, 2 * pairs):
            for variant in order:
                samples[variant].append(measure(variant, command, directory))
                print(f"{workload.stem} {variant}: {samples[variant][-1].wall_s:.2f} s", file=sys.stderr)
    except KeyboardInterrupt:  # what whole passes there are is shown
        whole = min(map(len, samples.values()))
        if not whole:
            raise
        samples = {variant: of_variant[:whole] for variant, of_variant in samples.items()}
        _interrupted.append(workload.stem)
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
    parser.add_argument(
        "--pairs", type=int, help="of passes, one forwards and one backwards (default 5, with --quick 1)"
    )
    parser.add_argument("--quick", action="store_true", help="bare and traced alone, few steps")
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
    pairs = options.pairs if options.pairs is not None else 1 if options.quick else 5
    if pairs < 1:
        parser.error("--pairs must be 1 or more")
    # An installed package has its bytecode; a checkout that may not write any would be compiled each time.
    compileall.compile_dir(Path(iotrace.__file__).parent, quiet=1)
    variants = [BARE, RUN] if options.quick else [BARE, AGENT, POSIX, BOTH, RUN]
    directory = options.directory or Path(tempfile.gettempdir()) / "iotrace-bench-data"
    directory.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was measured is shown
    result: dict[str, Any] = {"machine": machine(), "variants": variants, "workloads": {}, "micro": None}
    if not options.no_workloads:
        for workload in chosen:
            result["workloads"][workload.stem] = compare(workload, variants, pairs, options.quick, directory)
            if _interrupted:
                break
    if not options.no_micro and not _interrupted:
        result["micro"] = micro(2 if options.quick else 6)
    result["load_average_after"] = os.getloadavg()[0]
    print(json.dumps(result, indent=2, default=_plain) if options.json else show(result))


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return value.plain()
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    main()
