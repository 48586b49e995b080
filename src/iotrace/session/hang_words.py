"""Say in which collectives ranks of a job are that does not go on; used by samplers and by readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

HUNG, COMPUTING, WAITING = "hung", "computing", "waiting"


def banner(kind: str, since: str, awaited: str) -> str:
    """Say what a hang of a `kind` is; one that is ``waiting`` is for what is `awaited`."""
    return {
        HUNG: f"HUNG: {since}, and no process computes, reads or writes",
        COMPUTING: f"COMPUTING WITHOUT A STEP: {since}, in one place of the program",
        WAITING: f"WAITING: {since}, for {awaited}",
    }[kind]


def differing(places: Sequence[tuple[int, str, str]]) -> list[str]:
    """Say in which collectives ranks are, where these are not the same, or some rank is in none.

    `places`: number, host where it is to be named, and collective (empty: none) of each rank whose stack is
    known. What most of them are in comes first.
    """
    by_name: dict[str, list[tuple[int, str]]] = {}
    for number, host, name in sorted(places):
        by_name.setdefault(name, []).append((number, host))
    if len(by_name) < 2:
        return []
    rows = [
        f"{ranks_in_words(own)} {'is' if len(own) == 1 else 'are'} in {name or 'none'}"
        for name, own in sorted(by_name.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    ]
    return [f"ranks are not in one collective: {', '.join(rows)}"]


def ranks_in_words(ranks: Iterable[tuple[int, str]]) -> str:
    """Name ranks by number and host: ``rank 3 (node2)``, ``ranks 0 to 3 (node1), 8``."""
    runs: list[tuple[int, int, str]] = []
    for number, host in sorted(set(ranks)):
        if runs and runs[-1][1:] == (number - 1, host):
            runs[-1] = runs[-1][0], number, host
        else:
            runs.append((number, number, host))
    parts = [
        (f"{first}" if first == last else f"{first} to {last}") + (f" ({host})" if host else "")
        for first, last, host in runs
    ]
    several = len(runs) > 1 or any(first != last for first, last, _ in runs)
    return f"rank{'s' if several else ''} {', '.join(parts)}"
