"""What may be a part of a wait that nobody sees: a file that is decoded in vain."""

from __future__ import annotations

from iotrace.analysis.results import Fix, RankReport
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.units import size

_AGAIN = 4  # times what is used
_DECODED_BY_MS = 500e3  # bytes, about


def suspect_of(rank: RankReport) -> tuple[str | None, Fix | None]:
    """Name the file that is decoded many times for what is used, though nobody knows what the loop waits for.

    Its decoding has to take a part of the loop that would be worth a fix, as quick as decoders are.
    """
    loop_ms = 0.0 if rank.account is None else rank.account.loop_ns / 1e6
    found = [
        (array, group)
        for group in rank.file_groups
        for array in (group.amplification.arrays if group.amplification is not None else ())
        if array.command and array.decoded_at_least_bytes >= _AGAIN * array.used_bytes > 0
    ]
    array, group = max(found, key=lambda pair: pair[0].decoded_at_least_bytes, default=(None, None))
    if array is None or group is None:
        return None, None
    decoding_ms = array.decoded_at_least_bytes / _DECODED_BY_MS
    if not loop_ms or 100 * decoding_ms < MODERATELY_PERCENT * loop_ms:
        return None, None
    times = array.decoded_at_least_bytes / array.used_bytes
    text = f"{array.path} is decoded {times:.0f} times for what is used of it"
    text += f" ({size(array.decoded_at_least_bytes)} for {size(array.used_bytes)})"
    text += ": that may be a part of the wait"
    name = array.path.rpartition("/")[2]
    shape = "x".join(map(str, array.suggested_chunk or ()))
    remedy = f"perhaps: store {name} in chunks of {shape}, as it is read"
    return text, Fix(id="decode-bound", text=remedy, code="IO102", command=array.command)
