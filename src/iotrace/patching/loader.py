"""The training loop's loader as it was recorded: the line that makes it, and its settings."""

from __future__ import annotations

import msgspec

from iotrace.analysis.rank import RankAnalysis, SessionAnalysis

# Of DataLoader's arguments those that are recorded with each of its passes.
_RECORDED = {
    "num_workers": "workers",
    "prefetch_factor": "prefetch_factor",
    "in_order": "in_order",
    "persistent_workers": "persistent_workers",
    "pin_memory": "pin_memory",
}


class MadeLoader(msgspec.Struct, frozen=True, kw_only=True):
    """Where a loader is made: ``file:line``, by the library `builder` if not by that line itself.

    `settings` are those that it had, by DataLoader's names. `others` are the lines of other loaders that the
    loop's steps wait for: a setting is set for all of them.
    """

    site: str | None = None
    builder: str | None = None
    settings: dict[str, str] = {}
    others: list[str] = []


def find_loader(rank: RankAnalysis) -> MadeLoader | None:
    """Return the loader that a rank's loop waits for; None where it is no DataLoader."""
    if rank.source is None or rank.source.description.wrapped:
        return None
    about = rank.source.description
    settings = {name: getattr(about, field) for name, field in _RECORDED.items()}
    awaited = set(rank.measured_waits.deliveries["loader"].tolist()) - {rank.source.number}
    others = {
        loader.description.site
        for loader in rank.loaders
        if loader.number in awaited and not loader.description.wrapped
    }
    return MadeLoader(
        site=about.site,
        builder=about.builder,
        settings={name: str(value) for name, value in settings.items() if value is not None},
        others=sorted(filter(None, others - {about.site})),
    )


def made_loader(session: SessionAnalysis) -> MadeLoader | None:
    """Return the loader of a session's training loop: all ranks run one program."""
    return next(filter(None, map(find_loader, session.ranks)), None)
