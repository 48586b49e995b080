"""Two runs whose steps take other numbers of samples: the second's figures for as many as the first's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from iotrace.analysis.compare.basis import Basis, DataWait, File, Rank
from iotrace.analysis.compare.same_work import batch_size_of, same_batches, world_size_of
from iotrace.analysis.results import Account, StageCost, StepBlocks

_OF_A_BATCH = "collate"


def samples_of_step(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> list[int] | None:
    """Count the samples of a step on all ranks, on both sides; None where that is alike or unknown."""
    batches = [batch_size_of(rank) for rank in ranks]
    worlds = [world_size_of(rank, side) for rank, side in zip(ranks, (one, other), strict=True)]
    sizes = [batch * world for batch, world in zip(batches, worlds, strict=True) if batch]
    return sizes if len(sizes) == len(ranks) and sizes[0] != sizes[1] else None


def for_as_many(rank: Rank, factor: float) -> Rank:
    """Return a rank's figures of a step times `factor`, as if all its steps took so many more samples."""
    if factor == 1:
        return rank

    def times(value: float | None) -> float | None:
        return None if value is None else value * factor

    steps, wait = rank.steps, rank.data_wait
    return replace(
        rank,
        steps=replace(steps, mean_ms=times(steps.mean_ms), thread_cpu_ms=times(steps.thread_cpu_ms)),
        data_wait=DataWait(
            raw_ms=times(wait.raw_ms),
            causes_ms=_each(wait.causes_ms, factor),
            files=[
                File(each.path, each.ms * factor, times(each.read_ms), times(each.decode_ms))
                for each in wait.files
            ],
            without_cpu_ms=None if wait.without_cpu_ms is None else _each(wait.without_cpu_ms, factor),
            making_least_ms=times(wait.making_least_ms),
            taking_least_ms=times(wait.taking_least_ms),
            queueing_ms=times(wait.queueing_ms),
        ),
        account=None if rank.account is None else _account(rank.account, factor),
        loop_code=[replace(each, ms_per_step=each.ms_per_step * factor) for each in rank.loop_code],
        phases_ms={name: times(ms) for name, ms in rank.phases_ms.items()},
        blocks=None if rank.blocks is None else _blocks(rank.blocks, factor),
    )


def of_samples(ranks: tuple[Rank, Rank]) -> tuple[Rank, Rank]:
    """Take what stages cost for a sample also where a dataset gives whole batches (`batch_size=None`).

    A batch of one side has as many samples as one of the other where both handed over as many; else what its
    stages cost is nothing to compare.
    """
    loaders = [rank.primary for rank in ranks]
    if loaders[0] is None or loaders[1] is None:
        return ranks
    sizes = [loader.batch_size for loader in loaders if loader is not None]
    if (sizes[0] is None) == (sizes[1] is None) or _puts_together(ranks[0 if sizes[0] is None else 1]):
        return ranks
    size = sizes[0] or sizes[1] or 1
    one, other = (
        rank
        if own is not None
        else replace(
            rank, stages=[_of_sample(cost, size) for cost in rank.stages] if same_batches(ranks) else []
        )
        for rank, own in zip(ranks, sizes, strict=True)
    )
    return one, other


def _puts_together(rank: Rank) -> bool:
    """Whether samples are put together to batches, as those that a `batch_sampler` chooses are, too."""
    return any(cost.stage == _OF_A_BATCH and cost.per_sample < 1 for cost in rank.stages)


def _of_sample(cost: StageCost, size: int) -> StageCost:
    """What a stage of an item that is a batch of `size` costs for a sample."""
    if cost.stage == _OF_A_BATCH:
        return replace(cost, per_sample=cost.per_sample / size)
    return replace(
        cost,
        mean_ms=cost.mean_ms / size,
        quartile_ms=cost.quartile_ms / size,
        blocks_ms=[each / size for each in cost.blocks_ms],
        decoded_bytes=None if cost.decoded_bytes is None else cost.decoded_bytes / size,
        decoded_bytes_error=None if cost.decoded_bytes_error is None else cost.decoded_bytes_error / size,
    )


def _account(account: Account, factor: float) -> Account:
    return replace(account, steps=max(1, round(account.steps / factor)))


def _blocks(blocks: StepBlocks, factor: float) -> StepBlocks:
    def all_of(parts: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        return {name: [each * factor for each in own] for name, own in parts.items()}

    return replace(
        blocks,
        step_ms=[each * factor for each in blocks.step_ms],
        wait_ms=[each * factor for each in blocks.wait_ms],
        causes_ms=all_of(blocks.causes_ms),
        files_ms=all_of(blocks.files_ms),
        phases_ms=all_of(blocks.phases_ms),
    )


def _each(parts: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: ms * factor for name, ms in parts.items()}
