"""Templates to one self-contained page, and its file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import msgspec
from markupsafe import Markup, escape

from iotrace.errors import writing
from iotrace.report.page import palette
from iotrace.report.printing import visible
from iotrace.units import fixed, length, milliseconds, percent, signed, size
from iotrace.version import __version__

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_RECORDS = (2000, 500, 100, 20)  # of one list in the page's JSON: as many as its size allows
_MOST_BYTES = 700_000
# A figure and what it is of stand on one line: `96 %`, `1.5 ms`, `71.1 ± 10.5 ms`.
_WITH_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[KMGT]iB|B|ms|µs|ns|s|min|h|d|steps?(?:/s)?|samples/s|workers?|files?)(?![\w/-]))"
    r"|(?<=±) (?=\d)| (?=±)"
)


class Row(NamedTuple):
    """A line of a banner; `side` is a fix's gain, `note` why that is more than its cause costs."""

    label: str
    text: str
    side: str = ""
    note: str = ""


class Banner(NamedTuple):
    """What a page says first, with how far to trust it where that is told."""

    tone: str
    label: str
    text: str
    rows: list[Row]
    level: str | None = None
    trust: str = ""


def render(template: str, document: Any, **shown: Any) -> str:
    """Fill `template`; `document` is what the page keeps as JSON, its lists of records as columns."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        ms=lambda value: unbroken(milliseconds(value)),
        length_of=lambda value: unbroken(length(value)),
        pct=lambda value: unbroken(percent(value)),
        size=lambda value: unbroken(size(value)),
        signed=signed,
        fixed=fixed,
        unbroken=unbroken,
        at_slashes=at_slashes,
    )
    script = (_TEMPLATES / "script.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(
        **shown,
        version=__version__,
        style=Markup((_TEMPLATES / "style.css").read_text()),
        light=Markup(palette.variables(palette.LIGHT)),
        dark=Markup(palette.variables(palette.DARK)),
        causes=list(palette.PATTERNS),
        patterns=palette.PATTERNS,
        script=Markup(script),
        digest=digest,
        data=Markup(_embedded(document)),
    )
    return visible(page, lines=True)  # names of files may hold what hides or reverses a line


def unbroken(text: str) -> str:
    """Keep each figure of a text on the line of its unit."""
    return _WITH_UNIT.sub("\u00a0", text)


def at_slashes(text: str) -> Markup:
    """Let a long path break after a slash rather than within a name; what is copied stays the same."""
    return Markup(str(escape(text)).replace("/", "/<wbr>"))


def _embedded(document: Any) -> str:
    """JSON that ends no script element; its lists of records are cut where it would be too long."""
    plain = msgspec.to_builtins(document)
    text = ""
    for most in _MOST_RECORDS:
        found = {"lists_cut_after": most, **as_columns(plain, most)}
        text = json.dumps(found, separators=(",", ":"), allow_nan=False)
        if len(text) <= _MOST_BYTES:
            break
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def as_columns(value: Any, most: int = _MOST_RECORDS[0]) -> Any:
    """Turn each list of records into one record of lists, of the first `most` of them."""
    if isinstance(value, dict):
        return {name: as_columns(own, most) for name, own in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(own, dict) for own in value):
            names = dict.fromkeys(name for own in value for name in own)
            return {name: [as_columns(own.get(name), most) for own in value[:most]] for name in names}
        return [as_columns(own, most) for own in value]
    return round(value, 4) if isinstance(value, float) else value


def write_page(page: str, path: Path) -> None:
    """Write `page` to `path`.

    Raises:
        IotraceError: it cannot be written there.
    """
    with writing(path, "choose another --html FILE"):
        path.write_bytes(page.encode(errors="replace"))  # the name of a file may be any bytes
