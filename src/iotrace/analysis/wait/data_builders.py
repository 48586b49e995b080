"""Which code that the loop calls now and then builds a loader's data anew, as a dataset that lists its files.

That is what a loader costs, as are its workers: a plot, a checkpoint or an evaluation is not.

Definitions: docs/definitions.md, "loop_code".
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import LoopCode
from iotrace.analysis.wait.loop_code import CodeSamples

_MOST = 0.5  # of the samples of a function
_HOOKS = ("train_dataloader", "val_dataloader")  # by which Lightning asks for loaders


def with_builders(analysis: RankAnalysis, samples: CodeSamples, codes: Sequence[LoopCode]) -> list[LoopCode]:
    """Add which dataset is built by what recurs: in its `__init__`, or as Lightning's hook asks for it."""
    names = {each.description.dataset for each in analysis.loaders if each.description.dataset}
    return [_with(each, samples, names) if each.recurs and not each.within else each for each in codes]


def _with(code: LoopCode, samples: CodeSamples, names: set[str]) -> LoopCode:
    hook = code.function.partition(" (")[0].rpartition(".")[2]
    if code.function not in samples.names or samples.stacks is None:
        return code
    own = samples.of(samples.names.index(code.function))
    stacks = [] if own.stacks is None else own.stacks.each
    for name in sorted(names):
        made = f"{name}.__init__"
        inside = sum(
            any(frame.function.rpartition("<locals>.")[2] == made for frame in each.called) for each in stacks
        )
        if inside and inside >= _MOST * len(stacks):
            return replace(code, builds=name)
    return replace(code, builds="") if hook in _HOOKS else code
