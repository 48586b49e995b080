"""axe-core, which judges whether a page can be used by who sees it badly, or not at all."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.chromium import Chromium
from tests.support.runs import PROJECT

_RUN = "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map((each) => ({id: each.id, impact: each.impact, help: each.help, nodes: each.nodes.slice(0, 3).map((node) => node.html.slice(0, 200) + ' ' + (node.any[0] || {message: ''}).message)})))"  # noqa: E501
HOW = "no axe-core: npm install --no-save axe-core, or IOTRACE_AXE=axe.min.js"


@cache
def axe() -> str | None:
    """The script of axe-core, where it is installed."""
    places = [os.environ.get("IOTRACE_AXE"), PROJECT / "node_modules" / "axe-core" / "axe.min.js"]
    for place in filter(None, places):
        if Path(place).is_file():
            return Path(place).read_text()
    return None


def violations(browser: Chromium) -> list[dict[str, Any]]:
    """What is serious on the page that is shown."""
    script = axe()
    assert script is not None
    browser.evaluate(f"{script}; 0")
    found: list[dict[str, Any]] = browser.evaluate(_RUN)
    return [each for each in found if each["impact"] in ("serious", "critical")]
