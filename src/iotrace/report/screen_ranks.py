"""A row a rank: who waits for data, who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from iotrace.analysis.results import Lockstep, RankReport, Recommendation, Report, commands_of
from iotrace.analysis.rules.job import FED_BY_ANOTHER, UNEVEN_STEPS
from iotrace.report.blocks import Block, Grid, Paragraph
from iotrace.report.printing import middle_cut
from iotrace.units import counted, if_known, one_decimal, percent

MOST_RANKS = 15  # of more only the latest are shown, how the others are distributed, and a line a host
_LATEST = 10
_MOST_HOSTS = 10
_MOST_NAMED = 8  # ranks of one advice
_COMMAND_WIDTH = 28
_NARROW = 76  # columns, below which neither hosts nor computing are shown
_OWN = ("step ms", "data ms", "data")
_COMPUTE = "compute"
_LEAST_EVALUATED = 0.005  # of a step: what evaluations take to be in it
_BESIDE_THE_TABLE = (UNEVEN_STEPS, FED_BY_ANOTHER)
_COMPARED = ("for others", _COMPUTE, "late in")


def advice_rows(advice: Sequence[Recommendation], several: bool) -> list[tuple[str, str]]:
    """List advice as its ranks, its text and code; what several ranks are told stands once."""
    ranks: dict[str, list[int]] = {}
    for item in advice:
        own = ranks.setdefault(advice_text(item), [])
        if item.rank is not None and item.rank not in own:
            own.append(item.rank)
    return [(_named(sorted(own)) if several else "", text) for text, own in ranks.items()]


def advice_text(item: Recommendation) -> str:
    """The sentence of advice, with the code of its rule."""
    return f"{item.text} [{item.code}]" if item.code else item.text


def _named(ranks: list[int]) -> str:
    if not ranks:
        return ""
    first, last = ranks[0], ranks[-1]
    if len(ranks) == 1:
        return f"rank {first}"
    if len(ranks) > 2 and last - first == len(ranks) - 1:
        return f"ranks {first} to {last}"
    return (
        f"ranks {', '.join(map(str, ranks[:_MOST_NAMED]))}{' and more' if len(ranks) > _MOST_NAMED else ''}"
    )


def ranks_parts(report: Report, width: int) -> list[Sequence[Block]]:
    """Show the ranks, those first that the others wait for, or else that wait longest for data."""
    imbalance, late = report.imbalance, report.verdict.rank
    ranks = latest_first(report)
    several = len(ranks) > MOST_RANKS
    shown = ranks[: _LATEST if several else None]
    number = "process" if any(rank.pid is not None for rank in ranks) else "rank"
    wide = width >= _NARROW
    hosts = ["host"] if wide and any(rank.host for rank in ranks) else []
    commands = commands_of(ranks)
    named = ["command"] if commands and wide else []
    headings: tuple[str, ...] = _OWN if imbalance is None else _OWN + _COMPARED
    found = _compared(report)
    if imbalance is None and found is not None:
        headings = (*_OWN, _COMPARED[0])
    shown_headings = [heading for heading in headings if wide or heading != _COMPUTE]
    rows = []
    for rank in shown:
        by_turns = found is not None and found.late_rank is None
        is_late = rank.rank == late and rank.incarnation == report.last_start and not by_turns
        mark = "late" if report.verdict.kind == "rank-late" and is_late else ""
        restart = f", restart {rank.incarnation}" if rank.incarnation else ""
        figures = dict(zip(headings, _row(rank, report), strict=False))
        own = [middle_cut(commands.get(_number(rank), ""), _COMMAND_WIDTH) for _ in named]
        cells = [f"{_number(rank)}{restart}", *own, *(rank.host or "" for _ in hosts)]
        rows.append([mark, *cells, *(figures[each] for each in shown_headings)])
    if several:
        steps, waits = _known(ranks)
        for what, share in (("least", 0), (f"median of {len(ranks)}", 50), ("95 % below", 95), ("most", 100)):
            cells = [f"{np.percentile(each, share):.1f}" if each else "?" for each in (steps, waits)]
            rows.append(
                ["", *("" for _ in (*named, *hosts)), what, *cells, *[""] * (len(shown_headings) - 2)]
            )
    evaluating = [each for each in shown if _whole_ms(each, report) != each.steps.mean_ms]
    legend = "step: with evaluations; " if evaluating else ""
    legend += "data: own waits for data"
    if found is not None:
        whom = "late ones" if found.late_rank is None else f"rank {found.late_rank}"
        legend += f"; for others: waits for {whom}, in {counted(found.steps, 'step')}"
    if imbalance is not None:
        profiled = counted(max((each.steps for each in imbalance.ranks), default=0), "profiled step")
        if found is None:
            legend += f"; for others (waits in collectives){' and compute' if wide else ''}: in {profiled}"
        elif wide:
            legend += f"; compute: in {profiled}"
        late_steps = None if found is None else found.late_steps
        of = "all collectives" if late_steps is None else counted(late_steps, "late step")
        legend += f"; late in: arrived last, of {of}"
        legend += "" if imbalance.withheld is None else "; ?: the clocks do not tell"
    named_first = ["", number, *named, *hosts]
    texts = [at for at, each in enumerate(named_first) if each in ("", "command", "host")]
    tones: dict[tuple[int, int | None], str] = {(at, 0): "bad" for at in range(len(rows))}
    beside = [each for each in report.culprits if not each.leads and each.code in _BESIDE_THE_TABLE]
    blocks: list[Block] = [
        Grid([*named_first, *shown_headings], rows, texts, tones=tones),
        Paragraph(legend, tone="dim"),
        *(Paragraph(culprit.text) for culprit in beside),
    ]
    return [blocks, *([found_hosts] if several and (found_hosts := _hosts(ranks)) else [])]


def latest_first(report: Report) -> list[RankReport]:
    """Order the ranks: those first that the others wait for, then those that wait longest for data."""
    late = report.imbalance.stragglers if report.imbalance is not None else []
    waited_for = {one.rank: one.waited_for_ms for one in late}
    return sorted(
        report.ranks,
        key=lambda rank: (
            rank.incarnation != report.last_start,
            -waited_for.get(rank.rank, 0.0),
            -(rank.data_wait.raw_wait_fraction or 0.0),
            rank.rank,
        ),
    )


def _known(ranks: Sequence[RankReport]) -> tuple[list[float], list[float]]:
    """Steps and waits of the ranks, means in ms, where they are known."""
    steps = [rank.steps.mean_ms for rank in ranks if rank.steps.mean_ms is not None]
    return steps, [rank.data_wait.raw_ms for rank in ranks if rank.data_wait.raw_ms is not None]


def _hosts(ranks: Sequence[RankReport]) -> list[Block]:
    """Show a row a host, that of the latest rank first; nothing of one host."""
    by_host: dict[str, list[RankReport]] = defaultdict(list)
    for rank in ranks:
        by_host[rank.host or "?"].append(rank)
    if len(by_host) < 2:
        return []
    rows = []
    for host, own in list(by_host.items())[:_MOST_HOSTS]:
        steps, waits = _known(own)
        means = [f"{np.mean(each):.1f}" if each else "?" for each in (steps, waits)]
        worst = max(own, key=lambda rank: rank.data_wait.raw_ms or 0.0)
        most = if_known(worst.data_wait.raw_ms, one_decimal, "?")
        rows.append([host, str(len(own)), *means, most, str(_number(worst))])
    more = len(by_host) - _MOST_HOSTS
    return [
        Grid(["host", "ranks", "step ms", "data ms", "most", "of rank"], rows),
        *([Paragraph(f"{more} more hosts; all ranks: --view ranks")] if more > 0 else []),
        Paragraph("step, data: means over the host's ranks; most: the longest data wait", tone="dim"),
    ]


def _number(rank: RankReport) -> int:
    return rank.rank if rank.pid is None else rank.pid


def _whole_ms(rank: RankReport, report: Report) -> float | None:
    """What a step of a rank takes with its evaluations, where the loops were compared: as long on all."""
    loops = report.lockstep
    if loops is None or rank.incarnation != report.last_start:
        return rank.steps.mean_ms
    own = next((each for each in loops.ranks if each.rank == rank.rank), None)
    mean_ms = rank.steps.mean_ms
    if own is None or mean_ms is None or not own.parts_ms.get("evaluation"):
        return mean_ms
    return own.step_ms if own.step_ms >= (1 + _LEAST_EVALUATED) * mean_ms else mean_ms


def _row(rank: RankReport, report: Report) -> Sequence[str]:
    imbalance, raw_ms, share = report.imbalance, rank.data_wait.raw_ms, rank.data_wait.raw_wait_fraction
    step_ms = _whole_ms(rank, report)
    if share is not None and raw_ms is not None and step_ms and step_ms != rank.steps.mean_ms:
        share = raw_ms / step_ms
    row = [
        if_known(step_ms, one_decimal, "?"),
        if_known(raw_ms, one_decimal, "?"),
        if_known(share, percent, "?"),
    ]
    if imbalance is None:
        return [*row, _waited(rank, report)]
    own, straggler = imbalance.of(rank.rank, rank.incarnation)
    matched, last_in = imbalance.collectives.matched, straggler.last_to_arrive if straggler else 0
    if own is None or not own.step_ms:
        return [*row, "?", "?", "?"]
    by_collectives = "?" if imbalance.withheld or not matched else percent(last_in / matched)
    return [
        *row,
        _waited(rank, report),
        percent(own.compute_ms / own.step_ms),
        if_known(late_in(rank, report), percent, by_collectives),
    ]


def waits_for_late(rank: RankReport, report: Report) -> float | None:
    """Return the share of its steps that a rank waits for late ones: of all steps, else of the profiled.

    None of the late rank itself, and where nothing is known.
    """
    loops = _compared(report)
    if loops is not None and rank.incarnation == report.last_start:
        own = next((each for each in loops.ranks if each.rank == rank.rank), None)
        return None if own is None or own.waits_ms is None or not own.step_ms else own.waits_ms / own.step_ms
    profiled = None if report.imbalance is None else report.imbalance.of(rank.rank, rank.incarnation)[0]
    if profiled is None or profiled.communication_wait_ms is None or not profiled.step_ms:
        return None
    return profiled.communication_wait_ms / profiled.step_ms


def late_in(rank: RankReport, report: Report) -> float | None:
    """Return the share of the late steps in which a rank came last, where all steps were timed."""
    loops = _compared(report)
    if loops is None or not loops.late_steps or rank.incarnation != report.last_start:
        return None
    own = next((each for each in loops.ranks if each.rank == rank.rank), None)
    return None if own is None or own.late_steps is None else own.late_steps / loops.late_steps


def _compared(report: Report) -> Lockstep | None:
    """Return the loops beside each other, where they tell how long ranks wait."""
    loops = report.lockstep
    return loops if loops is not None and any(each.waits_ms for each in loops.ranks) else None


def _waited(rank: RankReport, report: Report) -> str:
    loops = report.lockstep
    is_late = loops is not None and loops.late_rank == rank.rank and rank.incarnation == report.last_start
    return if_known(waits_for_late(rank, report), percent, "-" if is_late else "?")
