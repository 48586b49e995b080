"""What it takes at the least to take batches from their workers, where that is work of the loader.

However many batches lie ready, this is no want of a CPU: arrays and Python objects come pickled through a
pipe, and are made anew; tensors lie in shared memory, but each asks its worker for a file descriptor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from iotrace.analysis.host.disturbance import may_be_all_of_wait
from iotrace.analysis.loop.loaders import ready_batches, tensors_of
from iotrace.analysis.results import DataWait, Io, RankReport
from iotrace.analysis.wait.data_wait import KEPT_UP_PERCENT, bound_fraction, handed_over, verdict

if TYPE_CHECKING:
    from iotrace.analysis.loop.deliveries import LoaderRun
    from iotrace.analysis.rank import RankAnalysis

LARGE_BYTES = 1 << 20  # of a batch
_FASTEST = 2 << 30  # bytes a second, through a pipe and unpickled: 2 to 4 times as fast as was seen
_MOSTLY = 0.5  # of what its arrays and tensors hold
MANY_TENSORS = 32
_TENSOR_MS = 0.05  # of CPU for each, a third of what was seen


def piped_bytes(io: Io | None, batches: int) -> float | None:
    """What the process that trains read in the measured steps, but by no call on a file, for each batch."""
    account = io.processes if io else []
    main = next((each for each in account if each.role == "main"), None)
    if main is None or main.steps_kernel_bytes is None or not batches:
        return None
    return max(0, main.steps_kernel_bytes - (main.steps_traced_bytes or 0)) / batches


def with_taking(wait: DataWait, analysis: RankAnalysis, io: Io | None) -> DataWait:
    """Add what taking one loader's batches takes at the least, if large ones are pickled, or many tensors."""
    run, steps = analysis.source, len(analysis.kept)
    if run is None or not run.description.workers or run.description.wrapped or len(wait.by_loader) != 1:
        return wait
    batches = len(analysis.measured_waits)
    piped, tensors = _pickled_bytes(run, io, batches), tensors_of(run.deliveries) or 0.0
    each_ms = 1e3 * piped / _FASTEST + (_TENSOR_MS * tensors if tensors >= MANY_TENSORS else 0.0)
    if not each_ms:
        return wait
    least_ms = each_ms * batches / steps
    return replace(wait, taking_least_ms=min(least_ms, wait.causes_ms.get("transport", 0.0)))


def _pickled_bytes(run: LoaderRun, io: Io | None, batches: int) -> float:
    """What of a batch comes pickled; 0 where it is little, or most of it is tensors."""
    sizes = run.deliveries["size_bytes"][run.deliveries.known("size_bytes")]
    held = float(sizes.mean()) if len(sizes) else 0.0
    piped = piped_bytes(io, batches) or 0.0
    return piped if piped >= max(LARGE_BYTES, _MOSTLY * held) else 0.0


def judged(report: RankReport, analysis: RankAnalysis) -> RankReport:
    """Judge its wait once all is known that tells whose it is: what others took, and how batches come."""
    wait, source = report.data_wait, analysis.source
    fraction = bound_fraction(wait)
    if fraction is None or source is None or wait.verdict is None:
        return report
    others = report.system.host is not None and may_be_all_of_wait(report, KEPT_UP_PERCENT)
    ready = ready_batches(source).in_turn
    found = verdict(fraction, ready, handed_over(wait), others_may_make_it=others)
    return replace(report, data_wait=replace(wait, verdict=found))
