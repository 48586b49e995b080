# ruff: noqa: E501 (figures and texts side by side)
"""A suggested fix and its patch: on a terminal, in a pull request's summary, as SARIF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotrace.analysis.compare.results import Check
from iotrace.analysis.results import Change, Fix, Report, SessionInfo, Verdict
from iotrace.cli import check, trial
from iotrace.errors import IotraceError
from iotrace.patching import patch as patching, suggest
from iotrace.patching.loader import MadeLoader
from iotrace.patching.patch import Patch, patch_of_fix
from iotrace.patching.suggest import Suggestion, Suggestions
from iotrace.report.suggestion import lines_of_suggestion, markdown_of_suggestion, sarif
from iotrace.session.manifest import Manifest, PosixState
from iotrace.trying.results import Data, Setting, Trial
from tests.support.results import unknown
from tests.support.runs import in_process

DIFF = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x = ```DataLoader(a)\n+\tx = DataLoader(a, in_order=False)\x1b[2J\r\n"


def _fix(code: str, text: str, change: Change | None = None, **known: Any) -> Fix:
    return Fix(
        id=code.lower(), code=code, text=text, change=change, speedup=1.5, gain_ms_per_step=9.0, **known
    )


def _found(folder: Path, *suggested: Suggestion) -> Suggestions:
    verdict = unknown(Verdict, text="NOTHING", fixes=[])
    report = unknown(Report, session=unknown(SessionInfo, path="run"), verdict=verdict)
    made = MadeLoader(site=f"{folder / 'train.py'}:7")
    return Suggestions(report, made, list(suggested))


@pytest.fixture
def three(tmp_path: Path) -> Suggestions:
    (tmp_path / "train.py").write_text("x\n" * 20)
    lines = [(str(tmp_path / "train.py"), 9)]
    return _found(
        tmp_path,
        Suggestion(
            number=1,
            fix=_fix("IO102", "re-chunk a_b.h5", command="h5repack a b"),
            patch=Patch(why_not="it is data"),
        ),
        Suggestion(
            number=2, fix=_fix("IO206", "DataLoader(in_order=False)"), patch=Patch(diff=DIFF, lines=lines)
        ),
        Suggestion(
            number=3, fix=_fix("IO204", "more workers"), patch=Patch(why_not="so", command="--workers 4")
        ),
    )


def _chosen(three: Suggestions) -> Suggestion:
    assert three.first is not None
    return three.first


def test_the_first_fix_that_can_be_made_is_chosen(three: Suggestions) -> None:
    assert _chosen(three).number == 2
    assert _chosen(three._replace(found=three.found[:1])).number == 1
    assert three._replace(found=[]).first is None


def test_lines_say_gain_patch_and_that_it_is_not_measured(three: Suggestions) -> None:
    lines = lines_of_suggestion(_chosen(three), "run")
    assert lines[1] == "Suggested  DataLoader(in_order=False) (at most 1.5x faster)"
    assert lines[2] == "           its gain is not measured: iotrace try run --fix 2"
    assert lines[4:] == [
        "--- a/train.py",
        "+++ b/train.py",
        "@@ -1 +1 @@",
        "-x = ```DataLoader(a)",
        "+\tx = DataLoader(a, in_order=False)\\x1b[2J",
    ]
    lines = lines_of_suggestion(three.found[0], "run")
    assert lines[2:4] == ["           h5repack a b", "           there is no patch: it is data"]
    assert "           in the command: --workers 4" in lines_of_suggestion(three.found[2], "run")


def test_markdown_fences_a_diff_that_holds_a_fence(three: Suggestions) -> None:
    text = markdown_of_suggestion(_chosen(three), "run")
    assert "````diff\n--- a/train.py" in text
    assert text.endswith("\n````")
    assert "- **Gain** at most 1.5x faster; not measured: `iotrace try run --fix 2`" in text
    assert "re-chunk a\\_b.h5" in markdown_of_suggestion(three.found[0], "run")


def test_sarif_names_file_and_line(
    three: Suggestions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(json.dumps(sarif(three)))
    (run,) = found["runs"]
    assert found["version"] == "2.1.0"
    places = [each["locations"][0]["physicalLocation"] for each in run["results"]]
    assert [place["artifactLocation"]["uri"] for place in places] == ["train.py"] * 3
    assert [place["region"]["startLine"] for place in places] == [7, 9, 7]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {
        each["ruleId"] for each in run["results"]
    }
    elsewhere = three._replace(made=MadeLoader(site="/x/site-packages/kit/data.py:3"))
    assert len(sarif(elsewhere)["runs"][0]["results"]) == 1


def test_a_fix_becomes_a_patch_by_its_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "train.py"
    program.write_text("x = DataLoader(d)\n")
    manifest = Manifest(
        format=1,
        iotrace_version="1",
        argv=["python", "train.py"],
        cwd=str(tmp_path),
        host="h",
        started_ns=program.stat().st_mtime_ns + 1,
        cpus=2,
        posix=PosixState(True),
    )
    monkeypatch.setattr(patching, "read_manifest", lambda _: manifest)
    made = MadeLoader(site=f"{program}:1")
    found = patch_of_fix(tmp_path, _fix("IO206", "a", Change(settings={"in_order": "False"})), made)
    assert "+x = DataLoader(d, in_order=False)" in (found.diff or "")
    assert "stores data otherwise" in (
        patch_of_fix(tmp_path, _fix("IO1", "a", Change(stored="chunks")), made).why_not or ""
    )
    assert "set for the command" in (
        patch_of_fix(tmp_path, _fix("IO3", "a", Change(variables={"OMP_NUM_THREADS": "1"})), made).why_not
        or ""
    )
    assert "has to be edited" in (patch_of_fix(tmp_path, _fix("IO4", "a"), made).why_not or "")


def test_a_job_on_github_gets_a_summary(
    three: Suggestions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    result = unknown(
        Check,
        ok=False,
        text="WORSE",
        worse=[],
        untold=[],
        conditions=[],
        warnings=[],
        session="run",
        sessions=["run"],
        baselines=[],
    )
    check._print_suggested(result, three, "text")
    assert capsys.readouterr().out.count("Suggested  ") == 2
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("### ")
    assert summary.index("re-chunk") < summary.index("````diff")
    check._print_suggested(result, three, "json")
    shown = json.loads(capsys.readouterr().out)
    assert [each["number"] for each in shown["suggestions"]] == [1, 2]


def test_the_command_prints_and_writes_the_patch(
    three: Suggestions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixes = [each.fix for each in three.found]
    report = msgspec.structs.replace(three.report, verdict=unknown(Verdict, text="x", fixes=fixes))
    monkeypatch.setattr(suggest, "suggestions", lambda _: three._replace(report=report))
    shown = in_process("patch", str(tmp_path))
    assert (shown.returncode, shown.stdout) == (0, DIFF.replace("\r\n", "\n"))  # as text is read here
    assert "its gain is not measured: iotrace try" in shown.stderr
    target = tmp_path / "fix.diff"
    assert in_process("patch", str(tmp_path), "-o", str(target)).stdout == ""
    assert target.read_bytes() == DIFF.encode()
    none = in_process("patch", str(tmp_path), "--fix", "io102")
    assert none.returncode == 1
    assert "there is no patch for this fix: re-chunk a_b.h5" in none.stderr
    assert "it is data" in none.stderr
    assert in_process("patch", str(tmp_path), "--fix", "9").returncode == 2
    assert json.loads(in_process("patch", str(tmp_path), "--json").stdout)["diff"] == DIFF
    refused = in_process("patch", str(tmp_path), "--apply")
    assert (refused.returncode, refused.stdout) == (1, "")


def test_a_trial_that_proves_a_change_of_data_has_no_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patching, "patch_for", lambda *_: Patch(why_not="none"))
    copy = Data(path="a.h5", new_path="t/a.h5", how="chunks", bytes=1, new_bytes=1)
    none: dict[str, list[Setting]] = {"settings": [], "variables": [], "in_workers": []}
    with pytest.raises(IotraceError, match="the fix is in the data") as error:
        trial._write_patch(tmp_path, unknown(Trial, data=[copy], **none), tmp_path / "a.diff", False)
    assert error.value.remedy == "--apply puts the copy in its place"
    trial._write_patch(tmp_path, unknown(Trial, data=[copy], **none), None, True)  # it is there already
    lines = [(str(tmp_path / "train.py"), 1)]
    monkeypatch.setattr(patching, "patch_for", lambda *_: Patch(diff=DIFF, lines=lines, root=str(tmp_path)))
    trial._write_patch(tmp_path, unknown(Trial, data=[], **none), tmp_path / "fix.diff", False)
    assert (tmp_path / "fix.diff").read_bytes() == DIFF.encode()
