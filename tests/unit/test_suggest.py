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
from iotrace.patching.data import DataChange
from iotrace.patching.loader import MadeLoader
from iotrace.patching.patch import Patch, patch_of_fix
from iotrace.patching.suggest import Suggestion, Suggestions
from iotrace.report.suggestion import lines_of_suggestion, markdown_of_suggestion, sarif
from iotrace.session.manifest import Manifest, PosixState
from iotrace.trying import patched
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
            number=2,
            fix=_fix("IO206", "DataLoader(in_order=False)", Change(settings={"in_order": "False"})),
            patch=Patch(diff=DIFF, lines=lines),
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
    assert lines[4:] == [  # iotrace try would refuse it
        "           its gain is not measured: make the change by hand, run it again, then iotrace compare run NEW"
    ]
    assert "           in the command: --workers 4" in lines_of_suggestion(three.found[2], "run")


def test_markdown_fences_a_diff_that_holds_a_fence(three: Suggestions) -> None:
    text = markdown_of_suggestion(_chosen(three), "run")
    assert "````diff\n--- a/train.py" in text
    assert text.endswith("\n````")
    assert "- **Gain** at most 1.5x faster; not measured: `iotrace try run --fix 2`" in text
    by_hand = "not measured: make the change by hand, run it again, then `iotrace compare run NEW`"
    assert by_hand in markdown_of_suggestion(three.found[0], "run")
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
    assert "iotrace try makes a copy" in (
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
    assert "this fix has no patch: re-chunk a_b.h5" in none.stderr
    assert "it is data" in none.stderr
    beyond = in_process("patch", str(tmp_path), "--fix", "9")
    assert beyond.returncode == 2
    assert [line.strip() for line in beyond.stderr.splitlines()[1:]] == [
        f"--fix {number}: {fix.text} [{fix.code or fix.id}]" for number, fix in enumerate(fixes, 1)
    ]
    assert json.loads(in_process("patch", str(tmp_path), "--json").stdout)["diff"] == DIFF
    refused = in_process("patch", str(tmp_path), "--apply")
    assert (refused.returncode, refused.stdout) == (1, "")


def test_where_no_fix_has_a_patch_each_says_why(
    three: Suggestions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [msgspec.structs.replace(each, patch=Patch(why_not="it is data")) for each in three.found]
    verdict = unknown(Verdict, text="x", fixes=[each.fix for each in found])
    report = msgspec.structs.replace(three.report, verdict=verdict)
    monkeypatch.setattr(suggest, "suggestions", lambda _: three._replace(report=report, found=found))
    done = in_process("patch", str(tmp_path))
    assert done.returncode == 1
    first, *rest = done.stderr.splitlines()
    assert first == "iotrace: no fix of the report has a patch"
    assert len(rest) == len(found)
    assert all(line.startswith(f"  --fix {at}: ") for at, line in enumerate(rest, 1))
    assert all(line.endswith("it is data") for line in rest)


def _files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def _trial(folder: Path, *names: str) -> Trial:
    """A trial that copied these files of ``data``; the program names that directory alone."""
    _files(
        folder, "data/a.h5", "data/sub/b.h5", "data/s.zarr/.zgroup", *(f"trial/data/{name}" for name in names)
    )
    data = [
        Data(
            path=str(folder / "data" / name),
            new_path=str(folder / "trial/data" / name),
            how="chunks",
            bytes=1,
            new_bytes=1,
        )
        for name in names
    ]
    none: dict[str, list[Setting]] = {"settings": [], "variables": [], "in_workers": []}
    return unknown(Trial, data=data, path="trial", **none)


def test_the_copies_and_links_to_the_rest_stand_for_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[DataChange] = []
    answers = [Patch(why_not="named nowhere"), Patch(diff=DIFF)]
    monkeypatch.setattr(
        patched, "patch_for", lambda *given: (asked.append(given[2]), answers[len(asked) - 1])[1]
    )
    made = patched.patch_of_trial(tmp_path, _trial(tmp_path, "a.h5"), [], [])
    assert made.diff == DIFF
    folder, place = tmp_path / "data", tmp_path / "trial/data"
    assert asked[1].moved == (str(folder), str(place))
    assert (place / "sub/b.h5").read_text() == "data/sub/b.h5"
    assert (place / "a.h5").read_text() == "trial/data/a.h5"
    assert (place / "s.zarr").is_symlink()
    assert not (place / "sub").is_symlink()  # a program that walks follows no links to directories


@pytest.mark.parametrize("why", ["no literal", "the program writes", "are below"])
def test_without_a_patch_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(patched, "patch_for", lambda *_: Patch(why_not="no literal says it"))
    found, written = _trial(tmp_path, "a.h5", "sub/b.h5"), []
    if why == "the program writes":
        written = [str(tmp_path / "data/log")]
    elif why == "are below":
        found = _trial(tmp_path / "data", "a.h5", "sub/b.h5")
        found = msgspec.structs.replace(
            found,
            data=[
                msgspec.structs.replace(each, path=each.path.replace("data/data", "data"))
                for each in found.data
            ],
        )
        _files(tmp_path, "data/a.h5", "data/sub/b.h5")
    assert why in (patched.patch_of_trial(tmp_path, found, [], written).why_not or "")
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


def test_a_proven_patch_is_written_or_it_is_said_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, found = tmp_path / "fix.diff", _trial(tmp_path, "a.h5")
    with pytest.raises(IotraceError, match="there is no patch: so") as error:
        trial._carry_out(Patch(why_not="so"), found, target, False)
    assert "puts the copy in its place" in (error.value.remedy or "")
    made = Patch(diff=DIFF, lines=[(str(tmp_path / "train.py"), 1)], root=str(tmp_path), command="--data=x")
    trial._carry_out(made, found, target, False)
    assert target.read_bytes() == DIFF.encode()
    said = capsys.readouterr().err
    assert "the rest is in the command: --data=x" in said
    assert "reads the copy in trial: keep that directory" in said
    with pytest.raises(IotraceError, match="not in a git tree"):
        trial._carry_out(made, found, None, True)
    trial._carry_out(Patch(why_not="the command sets it", command="--data=x"), found, target, False)
    assert "no file has to change: give the command --data=x" in capsys.readouterr().err
