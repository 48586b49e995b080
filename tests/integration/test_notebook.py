"""`iotrace.load`, `%%iotrace` in a notebook, and the callback of Hugging Face's Trainer."""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import nbformat
import pytest
from msgspec.structs import replace
from nbclient import NotebookClient

import iotrace
from iotrace.analysis.results import RankReport, Report
from iotrace.errors import IotraceError, SessionError, UsageError
from tests.support.runs import in_process

LOOP = """
def source():
    for number in range(12):
        time.sleep(0.01)
        yield number
for item in iotrace.batches(source()):
    iotrace.step()
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session of a loop that waits for what iotrace.batches wraps."""
    directory = tmp_path_factory.mktemp("load")
    script = f"import iotrace, time\nwith iotrace.profile('session', report=False):\n    exec({LOOP!r})\n"
    subprocess.run([sys.executable, "-c", script], cwd=directory, check=True, timeout=120)
    return directory / "session"


def test_a_loaded_report_is_what_the_command_prints(session: Path) -> None:
    report = iotrace.load(session)
    assert isinstance(report, Report)
    rank: RankReport = report.ranks[0]
    assert rank.steps.begun == 12
    assert report.verdict.text in repr(report)
    printed = in_process("report", "session", cwd=session.parent).stdout
    assert str(report).splitlines()[:4] == printed.splitlines()[:4]
    assert iotrace.load(str(session)).verdict == report.verdict


def test_a_notebook_shows_verdict_why_fixes_trust_and_ranks(session: Path) -> None:
    report = iotrace.load(session)
    html = report._repr_html_()
    assert "<script" not in html
    for text in (report.verdict.why, report.verdict.trust.level, "data wait"):
        assert text is not None
        assert escape(text) in html
    hostile = "<script>alert(1)</script>&"
    fixes = [replace(fix, text=hostile) for fix in report.verdict.fixes]
    trust = replace(report.verdict.trust, reasons=[hostile])
    changed = {"text": hostile, "why": hostile, "until": hostile, "fixes": fixes, "trust": trust}
    about = replace(report.session, path=hostile)
    html = replace(report, verdict=replace(report.verdict, **changed), session=about)._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;&amp;") == 5 + len(fixes)


def test_many_ranks_are_summed_up(session: Path) -> None:
    report = iotrace.load(session)
    ranks = [replace(report.ranks[0], rank=number) for number in range(40)]
    html = replace(report, ranks=ranks)._repr_html_()
    assert html.count("<tr><td>") == 16
    assert "24 more ranks" in html


def test_what_cannot_be_loaded_is_an_error_with_a_remedy(tmp_path: Path, session: Path) -> None:
    with pytest.raises(SessionError, match="does not exist") as caught:
        iotrace.load(tmp_path / "none")
    assert caught.value.remedy
    with pytest.raises(UsageError, match="one session"):
        iotrace.load([session, session.parent])
    with pytest.raises(UsageError, match="nothing to load"):
        iotrace.load([])
    (tmp_path / "a.json").write_text("text")
    with pytest.raises(IotraceError):
        iotrace.load(tmp_path / "a.json")


CELLS = {
    "begin": "%load_ext iotrace\nimport iotrace, time",
    "loop": f"%%iotrace -o session\n{LOOP}\nanswer = 6 * 7\nanswer",
    "next": "answer + 1",
    "wrong": "%%iotrace --bogus\n1",
    "taken": "%%iotrace -o other\n1",
    "fails": "%%iotrace -o failed\nnumber = 1\nraise ValueError('own')",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the cells of a notebook showed."""
    directory = tmp_path_factory.mktemp("notebook")
    (directory / "other").mkdir()
    (directory / "other" / "file").touch()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS.values()])
    client = NotebookClient(
        notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": directory}}
    )
    client.execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def test_a_cell_is_profiled_and_its_report_shown(outputs: dict[str, list[dict[str, Any]]]) -> None:
    assert outputs["begin"] == []
    report, value = outputs["loop"]
    assert report["output_type"] == "display_data"
    assert "of each step waits for data" in report["data"]["text/html"]
    assert report["data"]["text/plain"].startswith("INPUT-BOUND")
    assert value["data"]["text/plain"] == "42"
    assert outputs["next"][0]["data"]["text/plain"] == "43"  # the cell's names are the notebook's


def test_a_cell_that_raises_fails_as_without_the_magic(outputs: dict[str, list[dict[str, Any]]]) -> None:
    report, error = outputs["fails"]
    assert report["output_type"] == "display_data"
    assert (error["output_type"], error["ename"], error["evalue"]) == ("error", "ValueError", "own")
    assert "notebook.py" not in "".join(error["traceback"])


@pytest.mark.parametrize(("cell", "said"), [("wrong", "what is --bogus?"), ("taken", "is not a session")])
def test_wrong_usage_in_a_cell_is_a_sentence(
    outputs: dict[str, list[dict[str, Any]]], cell: str, said: str
) -> None:
    (shown,) = outputs[cell]
    assert shown["output_type"] == "stream"
    assert said in shown["text"]
    assert "Traceback" not in shown["text"]


# Trainer calls every event of its callbacks, with these arguments.
TRAINER = f"""
import sys, types
class TrainerCallback:
    def on_train_begin(self, args, state, control, **kwargs): pass
    def on_train_end(self, args, state, control, **kwargs): pass
    def on_step_begin(self, args, state, control, **kwargs): pass
sys.modules["transformers"] = types.SimpleNamespace(TrainerCallback=TrainerCallback)

import copy, iotrace, time
from iotrace.transformers import IotraceCallback

def train(callback, rank=0, world_size=1, fails=False):
    args = types.SimpleNamespace(process_index=rank, world_size=world_size)
    callback.on_train_begin(args, None, None, model=None)
    exec({LOOP!r}, {{**globals(), "time": time}})
    callback.on_step_begin(args, None, None)
    if fails:
        return
    callback.on_train_end(args, None, None, model=None)

callback = IotraceCallback("fit", report=False)
assert isinstance(callback, TrainerCallback)
train(callback)
train(callback, rank=1, world_size=2)
train(callback, fails=True)
train(copy.deepcopy(callback), fails=True)
"""


def test_the_callback_makes_a_session_of_each_training(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", TRAINER], cwd=tmp_path, check=True, timeout=120)
    found = {path.name: iotrace.load(path) for path in tmp_path.iterdir()}
    assert {name: report.ranks[0].steps.begun for name, report in found.items()} == {
        "fit": 12,
        "fit-rank1": 12,
        "fit-2": 24,  # the copy's training is a region of it, until the program's end
    }
    assert all(report.session.complete for report in found.values())


def test_the_callback_does_nothing_under_the_launcher(tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "iotrace",
        "run",
        "-q",
        "-o",
        "session",
        "--",
        sys.executable,
        "-c",
        TRAINER,
    ]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=120)
    assert [path.name for path in tmp_path.iterdir()] == ["session"]
    assert iotrace.load(tmp_path / "session").ranks[0].steps.begun == 48


def test_without_transformers_the_callback_says_so(tmp_path: Path) -> None:
    script = "import sys; sys.modules['transformers'] = None; import iotrace.transformers"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert "ImportError: IotraceCallback needs transformers: pip install transformers" in done.stderr
