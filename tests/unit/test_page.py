"""The page of a report, a sweep, a comparison: well-formed, whole, in the words of the first screen."""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.page.costs import costs_of, io_tree
from iotrace.analysis.page.series import MOST_STEPS, binned, ready_queue, steps_around
from iotrace.analysis.page.sides import SideSteps, SlowMark
from iotrace.analysis.results import (
    FileCost,
    FileIo,
    Io,
    RankReport,
    Recommendation,
    Report,
    SessionInfo,
    WorstBatch,
)
from iotrace.analysis.results.top import BatchWindow, RankColumns, SampledSeries
from iotrace.analysis.wait.waits import CAUSES
from iotrace.errors import IotraceError
from iotrace.report.blocks import Field, Table
from iotrace.report.comparison import comparison_document
from iotrace.report.markdown import document_markdown, report_markdown, sweep_markdown
from iotrace.report.page import render
from iotrace.report.page.charts import squarify
from iotrace.report.page.render import as_columns, at_slashes, unbroken, write_page
from iotrace.report.page.report import report_page
from iotrace.report.page.results import comparison_page, sweep_page, tune_page
from iotrace.report.page.sections import files_table, shown_table
from iotrace.report.screen_ranks import advice_rows
from iotrace.session.manifest import NotCaptured
from iotrace.sweeps.plan import keep, kept
from tests.support.pages import Page
from tests.support.results import unknown
from tests.support.tables import deliveries_of
from tests.unit.test_compare import compared, report as plain_report
from tests.unit.test_screen import rank, report, screen
from tests.unit.test_sweep import Machine, swept
from tests.unit.test_tune import Machine as Tuned, tuned

NASTY = 'data/<script>alert("1")</script>&\x1b[31m\u202e.h5'


def cost(path: str, read_ms: float, decode_ms: float, transform_ms: float = 0.0) -> FileCost:
    return FileCost(
        path=path, ms=read_ms + decode_ms, read_ms=read_ms, decode_ms=decode_ms, transform_ms=transform_ms
    )


def io(path: str, **known: Any) -> FileIo:
    given = {"opens": 1, "maps": 0, "reads": 4, "read_bytes": 1 << 20, "read_ms_total": 2.0, "writes": 0}
    return unknown(
        FileIo,
        **{"path": path, **given, "write_bytes": 0, "metadata_ms_total": 0.1, "by_worker": {}, **known},
    )


def waiting(number: int = 0, path: str = "data/case_02.h5") -> RankReport:
    """A rank whose wait is explained by files."""
    found = rank(number)
    worst = WorstBatch(
        batch=27, epoch=1, wait_ms=190.0, delay_ms=0.1, worker=1, pid=4711, cause="decode", files=[path]
    )
    wait = replace(found.data_wait, files=[cost(path, 1.4, 54.4), cost("b", 0.0, 0.3)], worst_batches=[worst])
    return replace(found, data_wait=wait)


def columns(steps: int = 40, path: str = "data/case_02.h5") -> RankColumns:
    lengths = [100.0 + number % 7 for number in range(steps)]
    waits = [40.0 + number % 5 for number in range(steps)]
    causes = {"decode": [wait - 1 for wait in waits], "read": [1.0] * steps}
    count = 20
    starts = [100.0 * number for number in range(count)]
    window = BatchWindow(
        first_step=3,
        steps=count,
        length_ms=2000.0,
        step_starts_ms=starts,
        batch=list(range(count)),
        epoch=[0] * count,
        worker=[number % 2 for number in range(count)],
        taken_ms=[start - 80 for start in starts],
        prepared_ms=[start + 30 for start in starts],
        asked_ms=starts,
        delivered_ms=[start + 40 for start in starts],
        computed_ms=[*[start + 100 for start in starts[:-1]], None],
        cause=["decode"] * count,
        made_of=["decode"] * count,
        file=[path] * count,
        worst=10,
        ready_at_ms=[0.0, 30.0],
        ready=[0, 1],
    )
    series = SampledSeries(
        name="CPU, this job", unit="%", time_s=[0.0, 1.0, 2.0], value=[3.0, 5.0, 4.0], peak=5.0, most=100.0
    )
    return RankColumns(
        rank=0,
        incarnation=0,
        steps=binned(
            np.array(lengths),
            np.array(waits),
            {cause: np.array(own) for cause, own in causes.items()},
            np.arange(steps) > 2,
        ),
        window=window,
        series=[series],
    )


TEXT_ON_PAGE = ("ink", "dim", "link", "bad", "warn", "good", *render.PATTERNS)
MARKS_ON_PAGE = ("rest", "plain", *render.PATTERNS)


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours ``#rrggbb``, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Pages of every kind, each with names that would break out of it."""
    about = unknown(
        SessionInfo, path=f"/s/{NASTY}", argv=["python", NASTY], ended=True, state="ended", failures=[]
    )
    missing = [NotCaptured("POSIX calls", NASTY, "install dftracer")]
    nasty = report(waiting(path=NASTY), session=about, not_captured=missing)
    sweep = swept(tmp_path_factory.mktemp("sweep"), Machine())
    first, *others = sweep.points
    sweep = replace(sweep, path=NASTY, points=[replace(first, sessions=["a"]), *others])
    searched = tuned(Tuned(), tmp_path_factory.mktemp("tune") / "t")
    slower = plain_report(1, decode=1.5, session={"path": NASTY, "argv": ["python", "train.py"]})
    return {
        "report": Page(report_page(nasty, columns(path=NASTY))),
        "sweep": Page(sweep_page(sweep, {"a": columns(path=NASTY)})),
        "tune": Page(tune_page(replace(searched, path=NASTY, argv=["python", NASTY]), {})),
        "compare": Page(comparison_page(compared(plain_report(), slower), [side(), side(7, NASTY)])),
        "poor": Page(report_page(report(), None)),
    }


def side(steps: int = 40, file: str | None = None) -> SideSteps:
    found = columns(steps).steps
    assert found is not None
    return SideSteps(found, [SlowMark(place=5, step=5, ms=105.0, cause="decode", file=file)])


def test_steps_of_two_runs_stand_one_above_the_other_on_one_scale() -> None:
    slower = plain_report(1, decode=1.5, session={"path": "/b", "argv": ["python", "train.py"]})
    result = compared(plain_report(), slower)
    found = comparison_page(result, [side(), side(20)], ["/timeline?of=a", "/timeline?of=b"])
    strips = re.findall(r'viewBox="0 0 (\d+) 1000"', found)
    assert strips == ["40", "40"]  # step 7 above step 7, though one run was shorter
    marks = re.findall(r'<text x="([\d.]+)%" y="-3"', found)
    assert marks == ["13.75", "13.75"]
    assert 'href="/timeline?of=b&amp;around=5">step 5: 105.0\u00a0ms, wait for decode' in found
    assert "Step by step" not in comparison_page(result, [side(), None])
    assert "Step by step" not in comparison_page(result)


@pytest.fixture(params=["report", "sweep", "tune", "compare", "poor"])
def page(request: pytest.FixtureRequest, pages: dict[str, Page]) -> Page:
    return pages[request.param]


def test_pages_are_well_formed(page: Page) -> None:
    assert page.faults == []
    assert len(set(page.ids)) == len(page.ids)
    assert page.source.startswith("<!doctype html>")


def test_pages_refer_to_themselves_alone(page: Page) -> None:
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    style = page.source.split("<style>")[1].split("</style>")[0]
    assert "@import" not in style
    assert "url(" not in style
    assert all(found.startswith("#") for found in re.findall(r"url\(([^)]*)\)", page.source))
    assert not re.search(r"(?i)https?:", page.source)
    assert "default-src &#39;none&#39;" in page.source or "default-src 'none'" in page.source


def test_only_the_script_of_ours_may_run(page: Page) -> None:
    assert len(page.scripts) == 2
    assert len(page.scripts[1].encode()) <= 15_000
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.source


def test_names_break_out_of_nothing(page: Page) -> None:
    assert "<script>alert" not in page.source
    assert "\x1b" not in page.source
    assert "\u202e" not in page.source
    if "alert" in page.scripts[0]:
        assert "data/<script>alert(" in page.text


def test_what_is_not_known_has_no_section(pages: dict[str, Page]) -> None:
    everything = pages["report"].sections
    order = ["strip", "where", "worst", "gantt", "waterfall", "machine", "missing", "about"]
    assert [name for name in everything if name in order] == order
    assert pages["poor"].sections == ["about"]
    unmeasured = replace(waiting(), data_wait=replace(waiting().data_wait, raw_ms=None))
    page = Page(report_page(report(unmeasured)))
    assert "where" not in page.sections
    assert "wait, ms" not in page.text


def test_each_worst_batch_has_the_command_that_opens_it() -> None:
    page = Page(report_page(report(waiting())))
    assert "iotrace open /data/session --batch 27" in page.text
    assert "iotrace open /data/session" in page.words.split("worst wait")[0]


def test_an_unknown_wait_is_drawn_as_no_wait() -> None:
    steps = binned(np.array([100.0, 110.0]), None, {}, np.ones(2, np.bool_))
    why = "nothing tells what the loop takes its batches from"
    lost = rank(steps=replace(rank().steps, unknown_why=why))
    page = Page(
        report_page(report(lost), RankColumns(rank=0, incarnation=0, steps=steps, window=None, series=[]))
    )
    assert f"How much of it waited for data is unknown: {why}." in page.words
    assert "its wait is unknown" in page.words


def test_the_words_are_those_of_the_first_screen() -> None:
    """Every line of the screen, but for what folding splits, stands on the page."""
    found = report(waiting())
    page = Page(report_page(found, columns()))
    lines = " ".join(" ".join(screen(found, 400)).split())
    for wanted in (
        found.verdict.text,
        found.verdict.why,
        *(fix.text.strip() for fix in found.verdict.fixes[:3]),
    ):
        assert wanted is not None
        assert " ".join(wanted.split()) in page.words
    for part in (
        "at most 1.7x faster",
        "32 steps, tracing <= 0.5 %",
        "decode 54.7 · transport 3.4 · read 1.4",
        "data/case_02.h5 55.8 ms a step (decode 54.4, read 1.4)",
        "start-up 4.2 s",
    ):
        assert part in lines
        assert part in page.words


def test_the_size_is_bounded() -> None:
    thousand = report_page(report(waiting()), columns(1000))
    assert len(thousand) < 500_000
    assert thousand.count("<path") < 200
    assert len(report_page(report(waiting()), columns(50_000))) < 500_000
    files = [io(f"/data/{number % 40}/{number}.h5", group="/data/") for number in range(5000)]
    read = unknown(Io, coverage=0.99, calls=9, bytes=9, ms_total=9.0, files=files, processes=[])
    many = [replace(waiting(number), io=read) for number in range(8)]
    assert len(report_page(report(*many), columns(1000))) < 1_500_000


def test_the_json_inside_is_by_columns() -> None:
    found = Page(report_page(report(waiting(), waiting(1)), columns())).data
    assert found["report"]["ranks"]["rank"] == [0, 1]
    assert len(found["columns"]["steps"]["step_ms"]) == 40
    assert as_columns([{"a": 1}, {"a": 2, "b": [{"c": None}]}]) == {"a": [1, 2], "b": [None, {"c": [None]}]}


def test_the_late_rank_is_named_beside_its_colour() -> None:
    late = replace(report().verdict, kind="rank-late", banner="RANK LATE", rank=1)
    page = Page(report_page(report(*(rank(number) for number in range(8)), verdict=late)))
    assert "1 ◀ late" in page.words
    assert page.source.index("1 <b") < page.source.index('class="nowrap">0')


def test_ranks_stand_before_what_is_of_one_rank() -> None:
    page = Page(report_page(report(waiting(), waiting(1)), columns()))
    assert page.sections.index("ranks") < page.sections.index("strip")


def test_a_loop_without_workers_has_no_ready_queue() -> None:
    found = columns()
    assert found.window is not None
    alone = replace(found.window, worker=[None] * found.window.steps)
    page = Page(report_page(report(waiting()), replace(found, window=alone)))
    assert "The loop around the longest wait" in page.text
    assert "top: " not in page.source[page.source.index('id="gantt"') : page.source.index('id="waterfall"')]


def test_small_figures_have_the_decimals_that_tell_them_apart() -> None:
    found = waiting()
    small = replace(
        found.data_wait, raw_ms=0.2, files=[cost("a", 0.0, 0.031)], causes_ms={"decode": 0.16, "read": 0.04}
    )
    page = Page(report_page(report(replace(found, data_wait=small)), columns()))
    assert ">0.160<" in page.source
    assert ">0.0310<" in page.source


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(IotraceError, match="cannot write"):
        write_page("<p>", tmp_path / "no" / "page.html")
    write_page("<p>\udcff", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "<p>?"


@pytest.mark.parametrize("theme", [render.LIGHT, render.DARK], ids=["light", "dark"])
def test_contrast_is_that_of_wcag_aa(theme: dict[str, str]) -> None:
    for ground in ("bg", "panel"):
        assert {
            name: contrast(theme[name], theme[ground])
            for name in TEXT_ON_PAGE
            if contrast(theme[name], theme[ground]) < 4.5
        } == {}
        assert all(contrast(theme[name], theme[ground]) >= 3 for name in MARKS_ON_PAGE)
    assert contrast(theme["ink"], theme["heat"]) >= 4.5
    assert contrast("#000000", "#ffffff") == 21
    # No meaning stands in a colour alone.
    assert set(render.PATTERNS) == set(CAUSES)
    assert len(set(render.PATTERNS.values())) == len(CAUSES)


def test_areas_fill_the_rectangle_in_proportion() -> None:
    areas = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0]
    found = squarify(areas, (0.0, 0.0, 6.0, 4.0))
    assert [width * height for _, _, width, height in found] == pytest.approx(areas)
    for (x, y, width, height), (left, top, wide, high) in combinations(found, 2):
        apart = x + width <= left + 1e-9 or left + wide <= x + 1e-9
        assert apart or y + height <= top + 1e-9 or top + high <= y + 1e-9
    assert all(x + width <= 6 + 1e-9 and y + height <= 4 + 1e-9 for x, y, width, height in found)
    assert squarify([], (0.0, 0.0, 1.0, 1.0)) == []


def test_bins_keep_the_longest_step() -> None:
    lengths = [10.0] * 5003
    lengths[1234] = 900.0
    found = binned(np.array(lengths), np.ones(5003), {"read": np.ones(5003)}, np.ones(5003, np.bool_))
    assert len(found.step_ms) == len(found.causes_ms["read"]) <= MOST_STEPS
    place = next(number for number, step in enumerate(found.longest) if step == 1234)
    assert found.longest_ms[place] == 900.0
    assert found.step_ms[place] == pytest.approx(
        (9 * 10 + 900) / 10 if found.bin == 10 else found.step_ms[place]
    )
    assert sum(found.step_ms[:-1]) * found.bin + found.step_ms[-1] * (5003 % found.bin or found.bin) == (
        pytest.approx(sum(lengths))
    )
    few = binned(np.array([1.0, 2.0]), None, {}, np.array([False, True]))
    assert (few.bin, few.step_ms, few.wait_ms, few.measured) == (1, [1.0, 2.0], None, [False, True])


def test_batches_that_lie_ready_are_counted() -> None:
    def batch(prepared_ns: int | None, delivered_ns: int) -> Delivery:
        return Delivery(0, 0, 0, 0, 0, delivered_ns - 1, delivered_ns, prepared_ns=prepared_ns)

    own = [batch(1, 5), batch(12, 14), batch(13, 20), batch(2, 30)]
    assert ready_queue(deliveries_of(own), 10, 25) == ([10, 10, 12, 13, 14, 20], [0, 1, 2, 3, 2, 1])
    assert ready_queue(deliveries_of([*own, batch(None, 40)]), 10, 25) == ([], [])


def test_the_window_lies_around_the_worst_step() -> None:
    assert steps_around(100, 50) == range(40, 60)
    assert steps_around(100, 99) == range(80, 100)
    assert steps_around(7, 3) == range(7)


def test_a_files_wait_is_the_sum_of_its_parts() -> None:
    files = [cost("d/read", 2.0, 3.0), cost("d/transformed", 0.0, 0.0, 21.4)]
    found = files_table(rank(data_wait=replace(rank().data_wait, files=files), io=None))
    assert found is not None
    assert [(row["path"], row["ms"]) for row in found["rows"]] == [("d/transformed", 21.4), ("d/read", 5.0)]


def test_bytes_of_files_are_a_bound_where_the_kernel_counted_more() -> None:
    waits = replace(rank().data_wait, files=[cost("d/read", 2.0, 3.0)])
    for coverage, in_part in ((0.5, True), (1.0, False)):
        io = Io(
            coverage=1.0,
            data_coverage=coverage,
            unseen_because="memory maps",
            calls=1,
            bytes=1,
            ms_total=1.0,
            files=[],
            processes=[],
        )
        found = files_table(rank(data_wait=waits, io=io))
        assert found is not None
        assert found["in_part"] is in_part


def test_advice_to_several_ranks_stands_once() -> None:
    def advice(text: str, number: int | None) -> Recommendation:
        return Recommendation(
            id="a", severity="info", text=text, evidence={}, gain_ms_per_step=None, rank=number
        )

    told = [*(advice("launch less", number) for number in range(8)), advice("crop first", 3)]
    told += [advice("sit", 5), advice("sit", 1), advice("all", None)]
    assert advice_rows(told, several=True) == [
        ("ranks 0 to 7", "launch less"),
        ("rank 3", "crop first"),
        ("ranks 1, 5", "sit"),
        ("", "all"),
    ]
    assert advice_rows(told[:1], several=False) == [("", "launch less")]
    assert advice_rows([replace(told[0], code="IO604")], several=False) == [("", "launch less [IO604]")]


def test_costs_sum_to_the_wait() -> None:
    wait = replace(
        rank().data_wait,
        raw_ms=59.5,
        causes_ms={"decode": 54.7, "read": 1.4, "transport": 3.0, "transform": 0.4},
        files=[cost("d/a", 1.0, 54.0, 0.3), *(cost(f"d/{number}", 0.01, 0.01) for number in range(9))],
    )
    found = costs_of(rank(data_wait=wait, file_groups=[]))
    assert sum(one.ms for one in found) == pytest.approx(59.5)
    assert (found[0].path, found[0].cause, found[0].group) == ("d/a", "decode", "d")
    assert {one.path for one in found if one.cause == "read"} == {"10 files", None}
    assert costs_of(rank(data_wait=replace(wait, raw_ms=None))) == []


def test_directories_sum_up_their_files() -> None:
    files = [io("/d/a/x"), io("/d/a/y", read_bytes=None), io("/d/z"), *(io(f"/d/b/{n}") for n in range(5))]
    tree = io_tree(files, most=3)
    assert (tree.name, tree.files, tree.reads, tree.read_bytes) == ("/d/", 8, 32, None)
    by_name = {node.name: node for node in tree.within}
    assert by_name["b/"].read_bytes == 5 << 20
    assert [node.name for node in by_name["b/"].within][-1] == "2 more files"
    assert by_name["a/"].read_bytes is None


def test_markdown_keeps_names_as_they_are() -> None:
    found: Report = report(waiting(path="data/case_02|x.h5"))
    text = report_markdown(found)
    assert text.startswith("### ❌ INPUT-BOUND: 44 % of each step waits for data")
    assert "- **Why**: data/case\\_02.h5 is slow to decode" in text
    assert "| 27 | 190.0 | decode | data/case\\_02\\|x.h5 | worker 1 | 1 |" in text
    assert all(row.count(" | ") == 6 for row in text.splitlines() if row.startswith("| 27"))


def test_a_search_shows_the_change_and_predicted_beside_measured(tmp_path: Path) -> None:
    result = tuned(Tuned(slower=0.1), tmp_path / "t")
    assert result.best is not None
    assert result.baseline is not None
    page = Page(tune_page(result, {}))
    assert " ".join(result.best.apply[0].split()) in page.words
    predicted = [row for row in result.runs if row.predicted_per_second]
    assert predicted
    for row in predicted:
        assert row.predicted_per_second
        assert result.baseline.per_second
        assert f"{row.predicted_per_second / result.baseline.per_second:.2f}x" in page.words
    for item in result.no_effect:
        assert item.knob in page.words
    assert Page(tune_page(replace(result, best=None, runs=[], complete=False), {})).faults == []


def test_a_result_is_kept_and_read_again(tmp_path: Path) -> None:
    assert kept(tmp_path) is None
    for found in (tuned(Tuned(), tmp_path / "t"), swept(tmp_path / "s", Machine())):
        keep(found)
        assert kept(Path(found.path)) == found


def test_a_sweep_and_a_comparison_as_markdown(tmp_path: Path) -> None:
    found = swept(tmp_path, Machine())
    text = sweep_markdown(found)
    assert text.splitlines()[0].endswith(found.verdict.text.removeprefix("BEST").lstrip())
    assert text.count("\n| ") == 1 + len(found.points)
    text = document_markdown(comparison_document(compared(plain_report(), plain_report(1, decode=1.5))))
    assert text.startswith("### ❌ SLOWER")
    assert "| decode |" in text


def test_a_view_on_the_page_begins_with_what_names_a_row() -> None:
    rows = [NotCaptured(why="r", what="w" * 500), NotCaptured(why="s", what="v")]
    fields = [Field("why", "reason"), Field("what", "name", is_text=True)]
    found = shown_table(Table(title="t", rows=rows, fields=fields), 1, names_first=True)
    assert [field.heading for field in found["fields"]] == ["name", "reason"]
    (name, _), (reason, _) = found["rows"][0]
    assert len(name) < 200
    assert "…" in name
    assert (reason, found["more"]) == ("r", 1)


def test_a_figure_stays_on_the_line_of_its_unit() -> None:
    assert unbroken("used 95 % of 2 CPUs; 71.1 ± 10.5 ms a step") == (
        "used 95\u00a0% of 2 CPUs; 71.1\u00a0±\u00a010.5\u00a0ms a step"
    )
    assert unbroken("steps 3 to 9; run 2 --batch 7") == "steps 3 to 9; run 2 --batch 7"


def test_a_path_breaks_after_a_slash_and_stays_escaped() -> None:
    assert at_slashes("a/<b>/c") == "a/<wbr>&lt;b&gt;/<wbr>c"
