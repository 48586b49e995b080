"""Rules of a site's own: a package names them by an entry point; one that fails harms nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import SMALL_LOOP, in_process, run_traced

RULES = '''
from iotrace.analysis.rules.model import Finding, rule

@rule("XX001", "broken", "rank")
def broken(facts):
    """It cannot be asked."""
    yield Finding(text="never told")
    raise RuntimeError("no such figure")

@rule("XX002", "scratch", "rank")
def scratch(facts):
    """Data is read from /scratch, which all jobs share."""
    if facts.report.file_groups:
        text = "data is read from /scratch"
        yield Finding(text=text, remedy="copy it to /local", cost_ms=1.0, is_main_cause=True)
'''
POINTS = "[iotrace.rules]\nsite = site_rules\ngone = site_rules_that_are_gone\n"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_traced(tmp_path_factory.mktemp("site"), [SMALL_LOOP, "30"], ["-q"]).session


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "site_rules.py").write_text(RULES)
    installed = folder / "site_rules-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: site-rules\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(POINTS)
    return folder


def _iotrace(package: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "iotrace", *words],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_a_rule_of_a_site_concludes_and_one_that_fails_is_named(session: Path, package: Path) -> None:
    before: dict[str, Any] = json.loads(in_process("report", "--json", str(session)).stdout)
    after: dict[str, Any] = json.loads(_iotrace(package, "report", "--json", str(session)))
    (advice,) = [item for item in after["recommendations"] if item not in before["recommendations"]]
    assert (advice["code"], advice["text"]) == ("XX002", "data is read from /scratch: copy it to /local")
    (culprit,) = [
        item for item in after["ranks"][0]["culprits"] if item not in before["ranks"][0]["culprits"]
    ]
    assert (culprit["code"], culprit["id"], culprit["leads"]) == ("XX002", "scratch", True)
    missing = [item for item in after["not_captured"] if item not in before["not_captured"]]
    assert [item["what"] for item in missing] == ["rules of gone", "rule XX001"]
    assert missing[0]["why"].startswith("ModuleNotFoundError: ")
    assert missing[1]["why"] == "RuntimeError: no such figure"
    assert all("entry point" in item["remedy"] for item in missing)
    # Nothing else changes, but for what the verdict makes of a culprit that leads and of its remedy.
    for report in (before, after):
        report["recommendations"] = [item for item in report["recommendations"] if item != advice]
        report["ranks"][0]["culprits"] = [item for item in report["ranks"][0]["culprits"] if item != culprit]
        report["not_captured"] = [item for item in report["not_captured"] if item not in missing]
        report["verdict"]["fixes"] = [item for item in report["verdict"]["fixes"] if item["code"] != "XX002"]
        report["verdict"].update(why=None, beside=None, culprit=None)
    assert after == before


def test_a_rule_of_a_site_is_listed_and_explained(package: Path) -> None:
    codes = [each["code"] for each in json.loads(_iotrace(package, "rules", "--json"))["rules"]]
    assert codes[-2:] == ["XX001", "XX002"]
    assert "Data is read from /scratch, which all jobs share." in _iotrace(package, "explain", "scratch")
