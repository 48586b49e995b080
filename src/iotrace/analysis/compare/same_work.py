"""Whether two sessions did the same work, and what differs where they did not."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile

from msgspec.structs import replace

from iotrace.analysis.compare.basis import Basis, Rank
from iotrace.analysis.results import StageCost

# Of a few files each run reads all; of many each may draw others, from the same directories.
_FEW_FILES = 32
_LONGEST = 60  # characters of a command in a sentence
_SHOWN_BEFORE = 10  # of them, before the first that differs
# Options, of launchers and programs, that say where processes meet, what a run is called and where it writes;
# and the seed: samples come in another order. Their names without dashes and what stands before a point.
_NO_WORK = frozenset(
    (
        *("master_port", "master_addr", "main_process_port", "main_process_ip", "local_addr", "dist_url"),
        *("rdzv_endpoint", "rdzv_id", "rdzv_backend", "rdzv_conf", "init_method"),
        *("output_dir", "output_path", "out_dir", "outdir", "log_dir", "logdir", "logging_dir", "save_dir"),
        *("default_root_dir", "work_dir", "log_file", "run_dir", "results_dir"),
        *("run_name", "run_id", "exp_name", "experiment_name", "job_id", "wandb_name", "wandb_group", "seed"),
    )
)
_PROGRAMS = (".py", ".sh")  # how their files' names end
_DECODE = "decode"
_OF_FILES = (_DECODE, "read")
OTHER_COUNT = 1.1  # times as many steps
_ALIKE = 0.01  # by which the bytes that a sample gets may differ


def differences(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[str]:
    """Yield what makes the work of two sessions different: command, world size, batch size, data."""
    commands = command_of(one.session.argv), command_of(other.session.argv)
    if commands[0] != commands[1] and renamed(one, other, ranks) is None:
        yield f"command: {' / '.join(_where_they_differ(*commands))}"
    sizes = [world_size_of(rank, side) for rank, side in zip(ranks, (one, other), strict=True)]
    if sizes[0] != sizes[1]:
        yield f"world size: {sizes[0]} / {sizes[1]}"
    batches = [batch_size_of(rank) for rank in ranks]
    if None not in batches and batches[0] != batches[1]:
        yield f"batch size: {batches[0]} / {batches[1]}"
    datasets = [rank.primary.dataset if rank.primary else "none" for rank in ranks]
    # Of a pool or a queue it is the function that makes the items, which a fix may rename.
    of_pools = all(rank.primary is not None and rank.primary.pool for rank in ranks)
    if datasets[0] != datasets[1] and all(datasets) and not of_pools:  # unknown where it has no name
        yield f"dataset: {datasets[0]} / {datasets[1]}"
    if replaced(one, other, ranks) is None:
        yield from _data(one, other, ranks)


def renamed(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> tuple[str, str] | None:
    """Name the program of both sides, where it is another file alone, as `train_fixed.py`; else None.

    All else of the command is the same, and the loops' loaders handed over as many batches; without loaders
    the loops made as many steps.
    """
    commands = command_of(one.session.argv), command_of(other.session.argv)
    if len(commands[0]) != len(commands[1]) or not (same_batches(ranks) or _same_steps(ranks)):
        return None
    differing = [pair for pair in zip(*commands, strict=True) if pair[0] != pair[1]]
    if len(differing) != 1 or not all(name.endswith(_PROGRAMS) for name in differing[0]):
        return None
    return differing[0]


def replaced(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> tuple[list[str], list[str]] | None:
    """Name the data that each side reads, where the second reads other files for the same work; else None.

    Data that is re-chunked or compressed anew stands in files of other names: a sample gets as many bytes.
    Data that is stored smaller, too: no file is read in both, and loaders hand over as many batches.
    What another rank reads on the other side is only dealt out anew.
    """
    names = _decoded_alike(one, other, ranks)
    if names is None and same_batches(ranks) and any(_data(one, other, ranks)):
        names = _places(ranks[0]), _places(ranks[1])
    if names is None:
        return None
    files = [_files(rank) for rank in ranks]
    return _with_those_beside(names[0], files[0] - files[1]), _with_those_beside(
        names[1], files[1] - files[0]
    )


def _with_those_beside(names: list[str], files: set[str]) -> list[str]:
    """Add the files that lie beside the named ones and end alike: stages name the costliest of many alone."""
    beside = {(os.path.dirname(name), os.path.splitext(name)[1]) for name in names if not name.endswith("/")}
    more = {file for file in files if (os.path.dirname(file), os.path.splitext(file)[1]) in beside}
    return sorted(more.union(names))


def unlike(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> str | None:
    """Say that nothing shows that both sides train the same, and what would; None where something does.

    One program does, whatever its options; of others a loop as long, data that both read, or a dataset of
    one name.
    """
    programs = [_program(side.session.argv) for side in (one, other)]
    files = [_files(rank) for rank in ranks]
    datasets = [rank.primary.dataset if rank.primary else "" for rank in ranks]
    if (
        programs[0] == programs[1]
        or same_batches(ranks)
        or _same_steps(ranks)
        or files[0] & files[1]
        or datasets[0] == datasets[1] != ""
    ):
        return None
    return (
        f"{' and '.join(programs)} read no file in common, and their loops differ in dataset and length; "
        "compare runs of one program, or of two that read the same data"
    )


def _program(argv: Sequence[str]) -> str:
    """Name the program's file, or its module; of what is neither the command."""
    scripts = [os.path.basename(word) for word in argv if word.endswith(_PROGRAMS)]
    modules = [name for word, name in pairwise(argv) if word in ("-m", "--module")]
    return next(iter([*scripts, *modules[::-1], *map(os.path.basename, argv[:1])]), "")


def other_steps(ranks: tuple[Rank, Rank]) -> str | None:
    """Say that a step of both sides is not the same piece of work, where that is seen; else None.

    Both loops took as many items from queues and pools, and did so in other numbers of steps.
    """
    items = [max((each.batches or 0 for each in rank.loaders if each.pool), default=0) for rank in ranks]
    steps = [rank.account.steps if rank.account is not None else 0 for rank in ranks]
    if not all(items) or not all(steps) or items[0] != items[1] or max(steps) < OTHER_COUNT * min(steps):
        return None
    return f"both took {items[0]} items, so a step of A is other work than a step of B"


def read_bytes(ranks: tuple[Rank, Rank], names: tuple[list[str], list[str]]) -> list[int] | None:
    """Sum up what traced reads of both sides returned of these files; None where that tells no difference."""
    if not same_batches(ranks):
        return None
    found = []
    for rank, own in zip(ranks, names, strict=True):
        below = tuple(f"{name.rstrip('/')}/" for name in own)
        files = [file for file in (rank.io.files if rank.io else ()) if f"{file.path}/".startswith(below)]
        sizes = [file.read_bytes for file in files if file.read_bytes is not None]
        if any(file.maps for file in files) or len(sizes) < sum(file.reads > 0 for file in files):
            return None
        found.append(sum(sizes))
    return found if all(found) else None


def same_batches(ranks: tuple[Rank, Rank]) -> bool:
    """Whether the loops' loaders handed over as many batches."""
    one, other = (rank.primary.batches if rank.primary else None for rank in ranks)
    return one is not None and one == other


def _same_steps(ranks: tuple[Rank, Rank]) -> bool:
    """Whether loops that no loader feeds made as many steps."""
    one, other = (rank.account.steps if rank.account else None for rank in ranks)
    return all(rank.primary is None for rank in ranks) and one is not None and one == other


def _places(rank: Rank) -> list[str]:
    """Name the files that stages read, or their directories."""
    named = {cost.path for cost in rank.stages if cost.stage in _OF_FILES and cost.path}
    files = _files(rank)
    return sorted(named or (files if len(files) == 1 else {f"{os.path.dirname(path)}/" for path in files}))


def _decoded_alike(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> tuple[list[str], list[str]] | None:
    """Name the files that each side decodes, where they are others with as much in them; else None."""
    costs = [[cost for cost in rank.stages if cost.stage == _DECODE and cost.path] for rank in ranks]
    names = [sorted({cost.path or "" for cost in each}) for each in costs]
    of_job = [
        {cost.path for rank in side.ranks for cost in rank.stages if cost.stage == _DECODE}
        for side in (one, other)
    ]
    if not all(names) or of_job[0] & set(names[1]) or of_job[1] & set(names[0]):
        return None
    found = [_bytes_of_sample(each) for each in costs]
    if None in found:
        return None
    (before, error), (after, other_error) = (each or (0.0, 0.0) for each in found)
    is_alike = abs(before - after) <= max(_ALIKE * before, 3 * math.hypot(error, other_error))
    return (names[0], names[1]) if before > 0 and is_alike else None


def under_old_names(ranks: tuple[Rank, Rank], names: Mapping[str, str]) -> tuple[Rank, Rank]:
    """Call replaced files by their `names` before, in the order of both, so that they are compared."""
    old = {after: before for before, after in names.items()}
    one, other = ranks
    if not old:
        return ranks
    stages = [replace(cost, path=old.get(cost.path or "", cost.path)) for cost in other.stages]
    files = [replace(file, path=old.get(file.path, file.path)) for file in other.data_wait.files]
    return one, replace(other, stages=stages, data_wait=replace(other.data_wait, files=files))


def new_names(names: tuple[list[str], list[str]] | None) -> dict[str, str]:
    """Return the replaced files of the first by the ones in their places, in the order of both."""
    if names is None or len(names[0]) != len(names[1]):
        return {}
    return dict(zip(*names, strict=True))


def both_names(before: str, after: str) -> str:
    """Name two files in one, what they have in common once: ``data/{chunks -> whole}/a.h5``."""
    parts = before.split("/"), after.split("/")
    begin = _alike(*parts)
    rest = parts[0][begin:], parts[1][begin:]
    end = _alike(rest[0][::-1], rest[1][::-1])
    if not begin and not end:
        return f"{before} -> {after}"
    middle = " -> ".join("/".join(own[: len(own) - end]) or "." for own in rest)
    return "/".join([*parts[0][:begin], f"{{{middle}}}", *rest[0][len(rest[0]) - end :]])


def _bytes_of_sample(costs: Sequence[StageCost]) -> tuple[float, float] | None:
    """Sum up the bytes that decoding returns for a sample, with the standard error; None: not known."""
    total = variance = 0.0
    for cost in costs:
        if cost.decoded_bytes is None or cost.decoded_bytes_error is None:
            return None
        total += cost.per_sample * cost.decoded_bytes
        variance += (cost.per_sample * cost.decoded_bytes_error) ** 2
    return total, math.sqrt(variance)


def command_of(argv: Sequence[str]) -> list[str]:
    """Return the command without its program's directory, as environments move, and what makes no work."""
    words, found = iter([os.path.basename(argv[0]), *argv[1:]] if argv else []), []
    waiting: str | None = None  # a word that follows an option without a value
    while (word := waiting or next(words, None)) is not None:
        waiting = None
        name, equals, _ = word.partition("=")
        bare = name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if name == "--standalone":  # torchrun chooses a port itself
            continue
        if bare not in _NO_WORK or not (equals or name.startswith("--")):
            found.append(word)
        elif not equals:
            value = next(words, None)
            waiting = value if value is not None and value.startswith("--") else None
    return found


def _where_they_differ(one: list[str], other: list[str]) -> list[str]:
    """Show two commands; of long ones the words that differ, of long words their parts that do."""
    texts = [" ".join(shlex.join(argv).split()) for argv in (one, other)]
    if max(map(len, texts)) <= _LONGEST:
        return texts
    begin = _alike(one, other)
    end = _alike(one[begin:][::-1], other[begin:][::-1])
    differing = [shlex.join(argv[begin : len(argv) - end]) or "nothing" for argv in (one, other)]
    texts = [" ".join(text.split()) for text in differing]
    if max(map(len, texts)) > _LONGEST:
        alike = max(0, _alike(*texts) - _SHOWN_BEFORE)
        texts = [_cut(text[alike:], bool(alike)) for text in texts]
        begin = 0 if alike else begin
    return [f"{'... ' if begin else ''}{text}{' ...' if end else ''}" for text in texts]


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """Count the items with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(text: str, begun: bool) -> str:
    """Mark that a text began before, and cut its end."""
    text = f"...{text}" if begun else text
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def world_size_of(rank: Rank, side: Basis) -> int:
    """How many ranks train."""
    return rank.world_size or len(side.ranks)


def batch_size_of(rank: Rank) -> int | None:
    """How many samples a step takes; None: not known, as where no loader is known to feed the loop."""
    primary = rank.primary
    if rank.data_wait.raw_ms is None:
        return None
    if primary is not None and primary.batch_size is not None:
        return primary.batch_size
    steps = rank.steps
    if not steps.per_second or steps.samples_per_second is None:
        return None
    return round(steps.samples_per_second / steps.per_second)


def _files(rank: Rank) -> set[str]:
    return {file.path for file in rank.io.files if file.reads or file.maps} if rank.io else set()


def _data(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[str]:
    """Say that no rank of the other side reads what these do, and of which rank, where others read alike."""
    sides = (one, other)
    files = [_files(rank) for rank in ranks]
    of_job = [set().union(*map(_files, side.ranks)) for side in sides]
    if not all(files) or of_job[0] & files[1] or of_job[1] & files[0]:
        return
    directories = [{os.path.dirname(path) for path in each} for each in files]
    few = min(map(len, files)) <= _FEW_FILES
    if few or not directories[0] & directories[1]:
        shown = " / ".join(min(each) for each in files)
        whose = f"data of rank {ranks[0].rank}" if of_job[0] & of_job[1] else "data"
        yield f"{whose}: no file was read in both ({shown})"
