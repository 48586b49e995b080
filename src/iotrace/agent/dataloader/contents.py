"""What a batch consists of: bytes, tensors, and how far its samples were filled up to one length."""

from __future__ import annotations

from time import monotonic_ns

from iotrace.agent.recording.recorder import Recorder
from iotrace.session.guard import ours
from iotrace.session.names import PADDED_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MOST_PARTS = 512  # of a batch, so that counting its bytes takes no longer than writing its record
_MOST_TENSORS = 8192  # more parts where most are tensors: to hand over one takes a thousand times as long
_MOST_LENGTHS = 4096  # of a batch
_ALL, _EACH = 32, 8  # batches that are looked at: the first ones, then one in so many
_UNKNOWN = (-1, "")


def contents_of(batch: Any) -> tuple[int, int]:
    """Return the bytes of the tensors and arrays in a batch, and the number of tensors.

    The bytes are -1 where the batch has too many parts to look at.
    """
    size_bytes, tensors, looked_at, left = 0, 0, 0, [batch]
    try:
        while left:
            part = left.pop()
            looked_at += 1
            parts = looked_at + len(left)
            if parts > _MOST_TENSORS or looked_at > max(_MOST_PARTS, 4 * tensors):
                return -1, tensors
            if isinstance(part, dict):
                left.extend(part.values())
            elif isinstance(part, (list, tuple)):
                left.extend(part[:_MOST_PARTS])
            elif type(part).__module__ == "torch":
                tensors += 1
                size_bytes += getattr(part, "nbytes", 0)
            elif type(part).__module__ == "numpy":
                size_bytes += getattr(part, "nbytes", 0)
    except ours(Exception):  # of a batch of the program's own kind
        return -1, tensors
    return size_bytes, tensors


class Padding:
    """Records what a collate function fills samples up to, of samples that have lengths."""

    def __init__(self, recorder: Recorder) -> None:
        self._append, self._seen = recorder.records.append, 0

    def note(self, batch: Any, args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, str]:
        """Look at a batch that was made of `args`: its samples. All of them at first, then one in eight."""
        self._seen += 1
        if batch is not None and args and (self._seen <= _ALL or not self._seen % _EACH):
            found = padding_of(args[0], batch)
            if found is not None:
                self._append((PADDED_ROW, monotonic_ns(), *found))
        return _UNKNOWN


def padding_of(samples: Any, batch: Any) -> tuple[int, int, int, int] | None:
    """Return the number of samples, the length that each has in the batch, and the sums of their own ones.

    That is of lengths and of their squares. Known where samples differ in length and most of the batch is one
    tensor or array that is as long as the longest or more; or by an attention mask. Else None.
    """
    if not isinstance(samples, (list, tuple)) or len(samples) < 2:
        return None
    parts = [part for part in _leaves(batch) if len(getattr(part, "shape", ())) >= 2]
    held = _fields(batch)
    mask = held.get("attention_mask") if isinstance(held, dict) else None
    if mask is not None and tuple(mask.shape[:1]) == (len(samples),) and len(mask.shape) == 2:
        lengths = [int(each) for each in (mask != 0).sum(1).tolist()]
        return len(lengths), int(mask.shape[1]), sum(lengths), sum(each * each for each in lengths)
    # A part that has a value for each two samples, such as how alike they are, is filled up to nothing.
    pairs = (len(samples), len(samples))
    parts = [part for part in parts if tuple(part.shape[:2]) != pairs] or parts
    if not parts:
        return None
    most = max(parts, key=_elements)
    if 2 * _elements(most) < sum(map(_elements, parts)):
        return None
    for axes, axis, lengths in _lengths(samples):
        count, longest = len(lengths), max(lengths)
        shape = [int(each) for each in most.shape]
        if len(shape) != 1 + axes:
            continue
        # Samples come first, or behind the length.
        for one, other in ((0, 1 + axis % axes), *(((1, 0),) if not axis else ())):
            filled_up = longest == shape[other] or shape[one] != shape[other]
            if shape[one] == count and longest <= shape[other] <= 2 * longest and filled_up:
                return count, shape[other], sum(lengths), sum(each * each for each in lengths)
    return None


def _lengths(samples: Any) -> Iterator[tuple[int, int, list[int]]]:
    """Yield by field: how many axes samples have, the one that differs in length, and its lengths."""
    first = _fields(samples[0])
    if isinstance(first, dict):
        columns: Any = ([_fields(each)[key] for each in samples] for key in first)
    elif isinstance(first, (list, tuple)) and not all(isinstance(each, int) for each in first):
        columns = zip(*samples, strict=False)
    else:
        columns = (samples,)
    looked_at = 0
    for column in columns:
        looked_at += len(samples)
        if looked_at > _MOST_LENGTHS:
            return
        shapes = [_shape(value) for value in column]
        axes = len(shapes[0])
        if not axes or any(len(shape) != axes for shape in shapes):
            continue
        for axis in (0, -1)[: min(2, axes)]:
            lengths = [shape[axis] for shape in shapes]
            if 0 < min(lengths) < max(lengths):
                yield axes, axis, lengths
                break


def _shape(value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(shape)
    return (len(value),) if isinstance(value, (list, tuple)) else ()


def _fields(held: Any) -> Any:
    """Return the dictionary that a `BatchEncoding` or another mapping of a library holds."""
    inner = getattr(held, "data", None)
    return inner if isinstance(inner, dict) else held


def _elements(part: Any) -> int:
    count = 1
    for each in part.shape:
        count *= int(each)
    return count


def _leaves(batch: Any) -> list[Any]:
    left: list[Any] = [batch]
    found: list[Any] = []
    while left and len(found) + len(left) <= _MOST_PARTS:
        part = _fields(left.pop())
        if isinstance(part, dict):
            left.extend(part.values())
        elif isinstance(part, (list, tuple)):
            left.extend(part[:_MOST_PARTS])
        else:
            found.append(part)
    return found
