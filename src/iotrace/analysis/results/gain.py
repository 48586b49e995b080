"""What changes would gain, as replays of the recorded batches predict it."""

from __future__ import annotations

from iotrace.analysis.results.base import ReportPart


class GainRow(ReportPart, frozen=True, kw_only=True):
    """A change, and the step that it would give. `kind` is ``cause``, ``file`` or ``knob``.

    `change` is ``gone``, ``halved`` or the new value of the knob. `interval_ms` is that of the prediction
    (95 %). Where `withheld` says why, nothing is predicted. `fix` names the verdict's fix that is the same.
    """

    id: str
    kind: str
    text: str
    change: str
    predicted_ms_per_step: float | None = None
    interval_ms: list[float] | None = None
    gain_ms_per_step: float | None = None
    speedup: float | None = None
    withheld: str | None = None
    fix: str | None = None
