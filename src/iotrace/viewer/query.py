"""What stands below the tracks at first sight, as queries: Perfetto shows the rows of one."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 9
_ARGS = ("message", "at", "batch")
# How long each rank waited for its DataLoader, and was in collectives, where ranks wait for each other.
_RANKS = """
with recursive up(leaf, parent, name) as (
  select id, parent_id, name from track
  union all select up.leaf, track.parent_id, track.name from up join track on track.id = up.parent)
select up.name as rank,
  round(sum(iif(slice.name glob '*DataLoader*', dur, 0)) / 1e6, 1) as "waits for its DataLoader, ms",
  round(sum(iif(slice.name glob '*DataLoader*', 0, dur)) / 1e6, 1) as "in collectives, ms"
from slice join up on up.leaf = track_id
where (slice.name glob 'enumerate(DataLoader)*.__next__*' or slice.name glob 'gloo:*'
  or slice.name glob 'nccl*Kernel*') and up.name glob 'rank [0-9]*' and up.name not glob '*·*'
group by up.name order by 2 desc limit 64
"""


def of_failures() -> str:
    """List the timeline's failures; native timelines name arguments otherwise than JSON."""
    known = ", ".join(
        f"coalesce(extract_arg(arg_set_id, 'debug.{arg}'), extract_arg(arg_set_id, 'args.{arg}')) as {arg}"
        for arg in _ARGS
    )
    named = "name glob 'failed: *'"
    return f"select substr(name, 9) as failed, {known} from slice where {named} order by ts limit {_MOST}"


def of_ranks() -> str:
    """Compare the ranks of merged bare traces, the one that waits longest for data first."""
    return " ".join(_RANKS.split())


def of_rows(rows: Sequence[tuple[str, str]]) -> str:
    """Show some rows of two texts; empty where there are none."""
    if not rows:
        return ""
    (label, text), *others = [tuple(map(_quoted, row)) for row in rows]
    found = [f"select {label} as iotrace, {text} as says"]
    return " union all ".join([*found, *(f"select {label}, {text}" for label, text in others)])


def _quoted(text: str) -> str:
    return "'" + text.replace("\0", " ").replace("'", "''") + "'"
