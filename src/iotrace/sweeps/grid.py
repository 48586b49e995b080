"""The points of a sweep: lists of values, placeholders in the command, every combination."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from iotrace.errors import UsageError

WORKERS = "workers"
PREFETCH = "prefetch"
IN_ORDER, PERSISTENT, PIN_MEMORY = "in_order", "persistent_workers", "pin_memory"
SHARING = "sharing"  # torch.multiprocessing's sharing strategy
THREADS = "threads"  # of operators, by the environment
CV2_THREADS = "cv2_threads"  # of cv2, by the environment
LOADER_ARGUMENTS = {  # of DataLoader, by the setting
    WORKERS: "num_workers",
    PREFETCH: "prefetch_factor",
    IN_ORDER: "in_order",
    PERSISTENT: "persistent_workers",
    PIN_MEMORY: "pin_memory",
}
POOL_ARGUMENTS = {  # by the class of a pool: how many workers it has
    "ThreadPoolExecutor": "max_workers",
    "ProcessPoolExecutor": "max_workers",
    "Pool": "processes",
    "ThreadPool": "processes",
    "Parallel": "n_jobs",
}
LIBRARY_ARGUMENTS = {"spdl": "concurrency", "torchdata": "num_workers"}  # of their stages: how many workers
WORKER_THREADS = "worker_threads"  # of libraries in each worker: `cv2=1,openblas=1`
CPUS = "cpus"  # that the loop and its workers may use: `0,1`
KEPT_OPEN = "kept_open"  # names of archives, between slashes: each process opens them once
TABLES = "tables"  # what CSV tables are read as: `parquet`
_OF_AGENT = (*LOADER_ARGUMENTS, SHARING, WORKER_THREADS, CPUS, KEPT_OPEN, TABLES)
THREAD_VARIABLES = {THREADS: ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), CV2_THREADS: ("OPENCV_FOR_THREADS_NUM",)}


def parse_axes(workers: str | None, prefetch: str | None, other: Iterable[str]) -> dict[str, list[str]]:
    """Return the values to combine, by name: of ``--workers``, ``--prefetch`` and each ``--set``."""
    axes: dict[str, list[str]] = {}
    if workers is not None:
        axes[WORKERS] = numbers("--workers", workers)
    if prefetch is not None:
        axes[PREFETCH] = numbers("--prefetch", prefetch)
    for text in other:
        name, values = placeholder(text)
        if name in axes:
            raise UsageError(f"--set {name} is given twice", "name each placeholder once")
        axes[name] = values
    return axes


def numbers(option: str, text: str) -> list[str]:
    """The values of ``--workers`` and ``--prefetch``: whole numbers, each once, in the order given."""
    values = [piece.strip() for piece in text.split(",")]
    example = f"for example {option} 1,4,7"
    for value in values:
        if not value.isdigit():
            what = "is empty" if not value else f"holds {value!r}, which is no whole number from 0 up"
            raise UsageError(f"{option} {text!r} {what}", example)
    values = [str(int(value)) for value in values]
    _refuse_twice(option, values)
    return values


def placeholder(text: str) -> tuple[str, list[str]]:
    """``NAME=a,b`` of ``--set``."""
    name, equals, listed = text.partition("=")
    values = listed.split(",")
    if not equals or not name.isidentifier() or not all(values):
        raise UsageError(f"--set {text!r} is not NAME=VALUE[,VALUE]...", "for example --set lr=0.1,0.01")
    _refuse_twice(f"--set {name}", values)
    return name, values


def _refuse_twice(option: str, values: Sequence[str]) -> None:
    twice = {value for value in values if values.count(value) > 1}
    if twice:
        raise UsageError(f"{option} names {', '.join(sorted(twice))} twice", "name each value once")


def points(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination of the axes' values, the first axis varying slowest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def named(params: Mapping[str, str]) -> str:
    """Name a point by its values: ``workers=4 prefetch=2``."""
    return " ".join(f"{name}={value}" for name, value in params.items())


def check_placeholders(command: Sequence[str], axes: Mapping[str, Sequence[str]]) -> None:
    """Refuse an axis of ``--set`` that the command does not hold: every point would be the same."""
    for name in axes:
        if name not in (WORKERS, PREFETCH) and not _holds(command, name):
            raise UsageError(
                f"--set {name}: the command does not hold {{{name}}}",
                f"write {{{name}}} where its value belongs: -- python train.py --{name} {{{name}}}",
            )


def _holds(command: Sequence[str], name: str) -> bool:
    return any(f"{{{name}}}" in word for word in command)


def fill(command: Sequence[str], params: Mapping[str, str]) -> list[str]:
    """The command with its placeholders filled; other braces stay as they are."""
    filled = []
    for word in command:
        for name, value in params.items():
            word = word.replace(f"{{{name}}}", value)
        filled.append(word)
    return filled


def asked_of_agent(command: Sequence[str], params: Mapping[str, str]) -> dict[str, str]:
    """The loader's settings that the command has no placeholder for: the agent sets them."""
    return {name: params[name] for name in _OF_AGENT if name in params and not _holds(command, name)}


def make_environment(command: Sequence[str], params: Mapping[str, str]) -> dict[str, str]:
    """The variables that set numbers of threads, where the command has no placeholder for them."""
    return {
        variable: params[name]
        for name, variables in THREAD_VARIABLES.items()
        if name in params and not _holds(command, name)
        for variable in variables
    }
