"""Pages of real sessions and traces, as the commands write them; in Chromium where that is asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from iotrace.analysis.traces import analyse_traces
from iotrace.report.page.report import report_page
from tests.support.chromium import Chromium
from tests.support.kineto import kernel, operator, step, trace_of
from tests.support.pages import Page
from tests.support.runs import Run, in_process

GLOO = [str(Path(__file__).parent.parent / "data" / f"gloo_rank{rank}.json.gz") for rank in (0, 1)]


@pytest.fixture(scope="module")
def written(unet_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the U-Net's session."""
    path = tmp_path_factory.mktemp("page") / "unet.html"
    done = in_process("report", str(unet_run.session), "--html", str(path))
    assert done.returncode == 0, done.stderr
    assert f"iotrace: wrote {path}" in done.stderr
    assert done.stdout.startswith(Page(path.read_text()).data["report"]["verdict"]["banner"])
    return path


def test_the_page_of_a_session_names_culprit_and_batches(written: Path) -> None:
    page = Page(written.read_text())
    assert page.faults == []
    for section in ("strip", "where", "worst", "gantt", "waterfall", "machine", "io", "about"):
        assert section in page.sections
    found = page.data["columns"]
    assert found["steps"]["steps"] == len(found["steps"]["step_ms"])
    assert len(found["window"]["batch"]) <= 20
    waits = found["steps"]["wait_ms"]
    assert [sum(parts) for parts in zip(*found["steps"]["causes_ms"].values(), strict=True)] == pytest.approx(
        waits, abs=0.01
    )
    assert "data/unet3d/case_02.h5" in page.text


def test_the_page_of_two_traces_compares_their_ranks(tmp_path: Path) -> None:
    done = in_process("report", *GLOO, "--html", str(tmp_path / "p.html"), "--format", "md")
    assert done.returncode == 0, done.stderr
    page = Page((tmp_path / "p.html").read_text())
    assert page.faults == []
    assert {"ranks", "parts", "missing"} <= set(page.sections)
    assert "strip" not in page.sections
    assert done.stdout.startswith("### ")


def test_the_page_of_a_comparison(unet_run: Run, tmp_path: Path) -> None:
    own, kept = str(unet_run.session), tmp_path / "before.json"
    kept.write_text(in_process("report", own, "--json").stdout)
    done = in_process("compare", str(kept), own, "--html", str(tmp_path / "p.html"), "--format", "md")
    assert done.returncode == 0, done.stderr
    assert Page((tmp_path / "p.html").read_text()).sections[0] == "parts"
    refused = in_process("compare", str(kept), own, "--html", str(tmp_path / "no" / "p.html"))
    assert (refused.returncode, "cannot write" in refused.stderr) == (1, True)


def device_page() -> str:
    events = [step(1, 0, 1000), operator("aten::mm", 5, 20), kernel(30, 500, 10), kernel(700, 900, 600)]
    return report_page(analyse_traces([trace_of(*events)]))


def test_the_page_of_a_trace_with_a_device_names_what_it_did() -> None:
    page = Page(device_page())
    assert page.faults == []
    assert "device" in page.sections
    for text in ("Kernels", "Operators, in ms", "Longest idle times of the device", "aten::mm", "gemm"):
        assert text in page.text


@pytest.mark.chromium
def test_chromium_runs_the_script_and_sorts(written: Path, tmp_path: Path) -> None:
    """The policy of the page lets its own script run: it makes buttons of headings."""
    browser = shutil.which("chromium")
    assert browser, "apt install chromium"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    after = subprocess.run(
        [*command, "--virtual-time-budget=2000", "--dump-dom", written.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    page = Page(written.read_text())
    assert "button" not in page.elements
    assert after.stdout.count("<button") >= 10
    assert "Refused to" not in after.stderr


@pytest.mark.chromium
def test_chromium_prints_what_is_folded_on_the_screen(tmp_path: Path) -> None:
    written = tmp_path / "trace.html"
    written.write_text(device_page())
    with Chromium(tmp_path) as browser:
        browser.open(written.as_uri())
        folded = "document.querySelector('#device details:not([open]) table')"
        browser.until(f"{folded} !== null")
        assert not browser.evaluate(f"{folded}.checkVisibility()")
        browser.media("print")
        assert browser.evaluate(f"{folded}.checkVisibility()")
        assert len(browser.call("Page.printToPDF")["data"]) > 10_000
