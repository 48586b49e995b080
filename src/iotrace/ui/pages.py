"""What is served as HTML: our own pages from templates, and a report's page with the way back to the list."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup

from iotrace.report.page.render import DARK, LIGHT, make_environment
from iotrace.report.printing import visible
from iotrace.units import counted, one_decimal, three_digits, time_span
from iotrace.version import __version__

_TEMPLATES = Path(__file__).parent / "templates"
_STATIC = Path(__file__).parent / "static"
_BODY = "<body>"
_HEADER_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_WARN = ("moderately-input-bound", "wait-unknown", "running")
_PLAIN = ("sweep", "tune")  # their verdicts are no fault of a run


def page(template: str, **shown: Any) -> str:
    """Fill a template; what would steer or hide in names is written out."""
    return visible(_environment().get_template(template).render(version=__version__, **shown), lines=True)


def framed(report: str, **shown: Any) -> tuple[str, str]:
    """Put the bar with links to other views on top of a page of `iotrace report --html`; also its policy."""
    bar = page("bar.html", style=Markup(style("bar.css")), **shown)
    head, _, rest = report.partition(_BODY)
    match = _HEADER_POLICY.search(head)
    policy = match[1] if match else "default-src 'none'"
    return f"{head}{_BODY}{bar}{rest}", f"{policy}; frame-ancestors 'none'"


@cache
def style(name: str = "ui.css") -> str:
    """Return a style sheet; that of our own pages begins with the colours of reports, and with the bar."""
    text = (_STATIC / name).read_text()
    if name != "ui.css":
        return text
    text = style("bar.css") + text
    light, dark = ("".join(f"--{key}:{value};" for key, value in theme.items()) for theme in (LIGHT, DARK))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{text}"


@cache
def script() -> str:
    """Return the script of our own pages."""
    return (_STATIC / "ui.js").read_text()


def address(path: str, **query: Any) -> str:
    """Return where something is: empty parts are left out."""
    known = [(key, value) for key, value in query.items() if value not in ("", None)]
    return f"{path}?{urlencode(known, safe='/')}"


@cache
def _environment() -> jinja2.Environment:
    environment = make_environment(_TEMPLATES)
    environment.globals.update(address=address, counted=counted)
    environment.filters.update(date=_date, rate=three_digits, span=time_span, tenth=one_decimal, tone=_tone)
    return environment


def _date(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / 1e9):%Y-%m-%d %H:%M}"


def _tone(kind: str | None) -> str:
    if kind is None or kind in _PLAIN:
        return ""
    return "good" if kind == "not-input-bound" else "warn" if kind in _WARN else "bad"
