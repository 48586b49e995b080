"""All checks at once, each in a thread of its own: one that hangs (a dead mount) is told, not waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from iotrace.doctor.results import Check, unknown

# What one look may take; `iotrace doctor` is to answer within 5 s.
PATIENCE_SECONDS = 4.2

_REPORT = "look whether /proc and /sys are whole here; if they are, please report this"
_ASK_BY_HAND = "a mount or a driver may not answer: try df, or nvidia-smi"

Named = tuple[str, Callable[[], "Check | list[Check]"]]


def run_checks(checks: Sequence[Named], seconds: float = PATIENCE_SECONDS) -> list[Check]:
    """The results of `checks`, in their order, within about `seconds`.

    A check that raises or does not return in time is ``unknown``, with the reason.
    """
    deadline = time.monotonic() + seconds
    found: dict[int, list[Check]] = {}

    def one(place: int, identity: str, check: Callable[[], Check | list[Check]]) -> None:
        try:
            result = check()
            found[place] = result if isinstance(result, list) else [result]
        except Exception as error:  # whatever is odd about this machine, the other checks count
            found[place] = [
                unknown(identity, "the check failed", f"{type(error).__name__}: {error}", _REPORT)
            ]

    # Daemons: a thread that is stuck in the kernel must not keep the command from ending.
    threads = [
        threading.Thread(target=one, args=(place, identity, check), daemon=True)
        for place, (identity, check) in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"it did not end within {seconds:.1f} s"
    return [
        result
        for place, (identity, _) in enumerate(checks)
        for result in found.get(place, [unknown(identity, "no answer", late, _ASK_BY_HAND)])
    ]
