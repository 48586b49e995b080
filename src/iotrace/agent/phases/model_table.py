"""Note the modules that one forward pass of a root goes through: class, parameters, calls, shapes.

It is the program's own pass, its first with grad enabled: a pass of ours would move the random state and the
statistics of BatchNorm. Nothing of the program's is kept: neither module nor tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iotrace.agent.recording.recorder import Recorder
from iotrace.session.guard import ours

_MOST_MODULES = 4096
_MOST_SHAPES = 3  # of the tensors that a call is given, or returns
_MOST_DEPTH = 2  # of lists and dictionaries that hold them


class ModelTable:
    """One pass of one root: `note` each call inside it, then `record`."""

    def __init__(self, recorder: Recorder, torch: Any) -> None:
        self._recorder = recorder
        self._tensor = torch.Tensor
        self._base = torch.nn.Module
        self._calls: dict[
            int, list[Any]
        ] = {}  # by a module's id: how often it was called; shapes of the first

    def note(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note that a call of `module` has returned `result`."""
        try:
            known = self._calls.get(id(module))
            if known is not None:
                known[0] += 1
            elif len(self._calls) < _MOST_MODULES:
                given = self._shapes([*args, *kwargs.values()])
                self._calls[id(module)] = [1, given, self._shapes(result)]
        except ours(Exception) as error:
            self._recorder.absorb(error, "noting the shapes of a module")

    def record(self, root: Any) -> None:
        """Record the modules of `root`, in the order in which it holds them."""
        try:
            seen: set[int] = set()
            rows: list[list[Any]] = []
            left_out = 0
            for name, module in self._base.named_modules(root):
                if len(rows) == _MOST_MODULES:
                    left_out += 1
                    continue
                calls, given, returned = self._calls.get(id(module), (0, None, None))
                rows.append([name, type(module).__name__, calls, given, returned, *_own(module, seen)])
            self._recorder.records.append(
                {"type": "model", "root": type(root).__name__, "modules": rows, "left_out": left_out}
            )
        except ours(Exception) as error:
            self._recorder.absorb(error, "recording the modules of a model")

    def _shapes(self, value: Any, depth: int = 0) -> list[list[int]]:
        """The shapes of the first tensors in `value`."""
        if isinstance(value, self._tensor):
            return [[int(size) for size in value.shape]]
        found: list[list[int]] = []
        if depth < _MOST_DEPTH:
            inside = (
                value.values() if type(value) is dict else value if isinstance(value, (list, tuple)) else ()
            )
            for one in inside:
                if len(found) == _MOST_SHAPES:
                    break
                found += self._shapes(one, depth + 1)
        return found[:_MOST_SHAPES]


def _own(module: Any, seen: set[int]) -> tuple[int | None, int | None, int | None, int | None]:
    """What a module holds itself: parameters, those that learn, their bytes with buffers, those of `weight`.

    What another module has shown before (`seen`) is that one's. None: a lazy module's, not made so far.
    """
    count = learning = size_bytes = 0
    weight = None
    try:
        for name, parameter in module.__dict__["_parameters"].items():
            if parameter is None:
                continue
            numbers = int(parameter.numel())
            if name == "weight":
                weight = numbers
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            count += numbers
            learning += numbers if parameter.requires_grad else 0
            size_bytes += numbers * int(parameter.element_size())
        for buffer in module.__dict__["_buffers"].values():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                size_bytes += int(buffer.numel()) * int(buffer.element_size())
    except ours(Exception):  # of a kind that has no numbers, as an UninitializedParameter
        return None, None, None, weight
    return count, learning, size_bytes, weight
