"""`iotrace ui`: runs of one program over time, what got worse, and baselines: seen, set and checked."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotrace.analysis.compare.basis import basis_of
from iotrace.analysis.compare.comparison import compare
from iotrace.analysis.compare.history import standings
from iotrace.analysis.rules.check import step_slower
from iotrace.analysis.rules.facts.check import CheckFacts
from iotrace.analysis.rules.model import UNKNOWN
from iotrace.session.listing import Headline
from iotrace.sweeps.plan import keep
from iotrace.ui.index import Index
from iotrace.ui.lists import histories
from iotrace.ui.places import BASELINE, Places
from iotrace.ui.tasks import encoded, hash_content
from iotrace.ui.trend import draw_lines
from tests.support.served import served, session, until_done
from tests.unit.test_compare import report
from tests.unit.test_sweep import Machine, swept
from tests.unit.test_ui import NASTY, keys

OURS = {"Origin": "http://127.0.0.1:7333"}
PROGRAM = "/history?program=python+train.py"


def test_a_run_is_judged_by_those_since_the_last_change() -> None:
    runs = [report(seed) for seed in range(3)] + [report(seed, decode=1.6) for seed in (3, 4)] + [report(5)]
    found = list(standings(runs))
    assert [each.kind for each in found] == ["", "", "", "worse", "", "faster"]
    assert "decode" in found[3].text
    assert found[3].against == ["run-0", "run-1", "run-2"]
    assert found[4].against == ["run-3"]
    assert found[3].middle in found[3].against


def test_a_history_says_slower_where_a_comparison_does() -> None:
    """The comparison of the same pair says SLOWER: then only who did it is not clear."""
    facts = CheckFacts(
        step=compare(basis_of(report(0)), basis_of(report(1, decode=1.3))), step_pct=20.0, noise_pct=25.0
    )
    assert facts.step is not None
    slower = msgspec.structs.replace(
        facts.step, verdict="slower", ci95_pct=[18.0, 22.0], step_ms=[100.0, 120.0]
    )
    (found,) = step_slower(msgspec.structs.replace(facts, step=slower))
    assert found.level == UNKNOWN
    assert (
        ": slower, but perhaps not because of the program: runs of one program may differ by 25 % here"
        in found.text
    )
    unsure = msgspec.structs.replace(slower, verdict="unknown")
    (found,) = step_slower(msgspec.structs.replace(facts, step=unsure))
    assert ": not clear, as runs of one program may differ" in found.text


def test_a_failed_run_and_other_work_are_no_regression() -> None:
    failed = report(1, decode=3.0, session={"path": "f", "argv": ["python", "train.py"], "exit_code": 1})
    other = report(2, decode=3.0, session={"path": "o", "argv": ["python", "other.py"], "exit_code": 0})
    found = list(standings([report(0), failed, other, report(3, decode=3.0)]))
    assert [each.kind for each in found] == ["", "", "other-work", "other-work"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four runs of two commits; what their analysis gives is there already."""
    root, own = tmp_path / "runs", tmp_path / "own"
    (own / "reports").mkdir(parents=True)
    root.mkdir()
    for number in range(4):
        slow = 1.0 if number < 2 else 2.0
        rate = 20 / slow
        head = Headline(
            verdict_class="input-bound", why="data/b.h5 is slow", wait_fraction=0.4, steps_per_second=rate
        )
        path = session(
            root / f"run-{number}",
            started_ns=10**18 + number * 86_400 * 10**9,
            verdict="INPUT-BOUND",
            headline=head,
            commit=("a" if number < 2 else "b") * 40,
        )
        plain = report(number, decode=slow)
        plain["session"]["path"] = str(path)
        kept = {"report": plain, "verdict": "INPUT-BOUND", "headline": msgspec.to_builtins(head)}
        (own / "reports" / f"{hash_content([path]).hex()}.json").write_bytes(encoded(kept))
    return root


def shown(client: Any, address: str) -> str:
    """The page when all runs have been compared."""
    for _ in range(60):
        page: str = client.get(address).text
        if "are being compared" not in page:
            return page
    raise AssertionError(page)


def test_history_shows_what_got_worse_by_run_commit_and_day(runs: Path, tmp_path: Path) -> None:
    with served(runs, own=tmp_path / "own") as client:
        assert "python train.py" in client.get("/history").text
        page = shown(client, PROGRAM)
        assert keys(page) == ["run-3", "run-2", "run-1", "run-0"]
        assert page.count("Worse:") == 1
        assert "compare?of=run-0&amp;of=run-2" in page
        assert "1 got worse" in page
        commits = shown(client, f"{PROGRAM}&by=commit")
        assert "b" * 12 in commits
        assert "a" * 12 in commits
        assert "run-2: " in commits
        assert "data/b.h5 is slow" in commits
        assert "2001-09-09" in shown(client, f"{PROGRAM}&by=day")
        listed = client.get("/").text
        # For each run in its column, and below its name on narrow screens.
        assert listed.count('class="l-worse"') == 8
        for wrong in ("/history?program=none", f"{PROGRAM}&by=else"):
            assert client.get(wrong).status_code == 404


def test_baselines_are_seen_and_a_run_is_checked_against_them(runs: Path, tmp_path: Path) -> None:
    (runs / "baselines").mkdir()
    for name, slow in (("good", 1.0), ("slow", 2.0)):
        (runs / "baselines" / f"{name}.json").write_text(json.dumps(report(7, decode=slow)))
    (runs / "else.json").write_text('{"schema_version": 1, "time_s": 0}')
    (runs / "baselines" / "broken.json").write_text('{"schema_version": 1, "session": {')
    found = {place.key for place in Places([runs]).walk() if place.kind == BASELINE}
    assert found == {"baselines/good.json", "baselines/slow.json", "baselines/broken.json"}
    with served(runs, own=tmp_path / "own") as client:
        page = shown(client, PROGRAM)
        assert "baselines/good.json" in page
        assert "broken" not in page
        assert "is no report that this iotrace reads" in client.get("/").text
        (runs / "baselines" / "slow.json").unlink()
        client.get("/")
        checked = until_done(client, "/check?of=run-2")
        assert "WORSE" in checked
        assert "decode" in checked
        assert "against 1 baseline" in checked


def test_a_check_needs_a_baseline_and_a_run_that_ended(runs: Path, tmp_path: Path) -> None:
    session(runs / "live", exit_code=None)
    with served(runs, own=tmp_path / "own") as client:
        for key in ("run-1", "live"):
            assert "Not checked" in client.get(f"/check?of={key}").text
        assert client.get("/check?of=../run").status_code == 404


def test_a_baseline_is_set_by_our_own_page_alone(runs: Path, tmp_path: Path) -> None:
    session(runs / "failed", exit_code=1)
    with served(runs, own=tmp_path / "own") as client:
        assert client.post("/baseline", data={"of": "run-1"}).status_code == 403
        elsewhere = client.post("/baseline", data={"of": "run-1"}, headers={"Origin": "http://x"})
        assert elsewhere.status_code == 403
        assert client.get("/baseline?of=run-1").status_code == 405
        assert client.post("/baseline", data={"of": "../x"}, headers=OURS).status_code == 404
        assert client.post("/baseline", content=b"x" * 100_000, headers=OURS).status_code == 413
        assert "exit code 0" in client.post("/baseline", data={"of": "failed"}, headers=OURS).text
        assert "no measured steps" in client.post("/baseline", data={"of": "run-1"}, headers=OURS).text
    assert not (runs / "baselines").exists()
    with served(runs, own=tmp_path / "own", read_only=True) as client:
        assert client.post("/baseline", data={"of": "run-1"}, headers=OURS).status_code == 404
        assert "/baseline" not in shown(client, PROGRAM)


def test_names_of_strangers_are_text_in_histories(tmp_path: Path) -> None:
    head = Headline(verdict_class="input-bound", why=NASTY, steps_per_second=1.0)
    for number in range(2):
        session(
            tmp_path / "runs" / f"{number}{NASTY.replace('/', '|')}", NASTY, verdict=NASTY, headline=head,
            started_ns=10**18 + number,
        )  # fmt: skip
    with served(tmp_path / "runs", own=tmp_path / "own") as client:
        texts = [client.get("/history").text, client.get("/").text]
        address = re.search(r'href="(/history\?program=[^"]*)"', texts[0])
        assert address is not None
        texts.append(shown(client, html.unescape(address[1])))
        for text in texts:
            assert "<script>alert" not in text
            assert "\u202e" not in text


def test_a_sweeps_runs_are_listed_for_it_and_are_no_history(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    keep(swept(root / "s", Machine()))
    session(root / "s" / "s" / "runs" / "point_workers=1_0" / "session")
    session(root / "trial" / "runs" / "point__1")
    (root / "trial" / "sweep.json").write_text("{}")
    session(root / "alone")
    entries = Index([root]).entries()
    assert {each.key for own in histories(entries).values() for each in own} == {"alone"}
    with served(root, own=tmp_path / "own") as client:
        assert keys(client.get("/?within=s/s").text) == ["s/s/runs/point_workers=1_0/session"]
        assert "within=s/s" in until_done(client, "/run?of=s/s")


def test_runs_that_differ_by_a_port_or_a_seed_are_one_history(tmp_path: Path) -> None:
    """As in comparisons; another learning rate is other work."""
    root = tmp_path / "runs"
    root.mkdir()
    for number, more in enumerate((["--seed", "1"], ["--seed=2"], [])):
        session(root / f"run-{number}", "train.py", "--lr", "1", *more, started_ns=10**18 + number)
    session(root / "other", "train.py", "--lr", "2")
    found = histories(Index([root]).entries())
    assert {work: len(runs) for work, runs in found.items()} == {
        "python train.py --lr 1": 3,
        "python train.py --lr 2": 1,
    }
    with served(root, own=tmp_path / "own") as client:
        page = client.get("/history").text
        assert "has several runs yet" not in page
        assert "program=python+train.py+--lr+1" in page
        assert "--seed=2" in client.get("/").text


def test_lines_need_two_runs_with_figures(runs: Path) -> None:
    found = histories(Index([runs]).entries())["python train.py"]
    assert draw_lines(found[:1], {}, 100, 20) is None
    lines = draw_lines(found, {found[2].place.path: "worse"}, 100, 24)
    assert lines is not None
    assert (len(lines.worse), lines.places["run-0"]) == (1, (8.0, 8.0))
    assert lines.text == "4 runs: from 20 to 10 steps/s, waits from 40 % to 40 %, 1 got worse"
