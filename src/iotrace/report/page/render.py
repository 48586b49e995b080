"""Templates to one self-contained page, and its file; the colours, in which no meaning stands alone.

A test computes the contrasts: text 4.5 to 1, areas and lines that mean something 3 to 1 (WCAG 2.2, AA).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
import msgspec
from markupsafe import Markup, escape

from iotrace.errors import replacing
from iotrace.report.blocks import Head, beside
from iotrace.report.printing import visible
from iotrace.session.hangs import is_foreign
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
# Each colour on light and on dark.
_COLOURS = {
    "bg": ("#ffffff", "#10151b"),
    "panel": ("#f5f7f9", "#19212a"),
    "ink": ("#1a2129", "#e8edf2"),
    "dim": ("#55606b", "#a3afbb"),
    "line": ("#d3dae1", "#35404b"),
    "rest": ("#7f8a95", "#6b7885"),
    "link": ("#0a5fb4", "#79bdff"),
    "plain": ("#44708f", "#86b3d1"),
    "bad": ("#b3261e", "#ff8f86"),
    "warn": ("#7d5700", "#e5b84b"),
    "good": ("#1a6b35", "#6fd391"),
    "startup": ("#4f5f70", "#9db1c6"),
    "queued": ("#7d5700", "#e5b84b"),
    "read": ("#0a5fb4", "#79bdff"),
    "decode": ("#b3261e", "#ff8f86"),
    "transform": ("#6a3fb0", "#c7abff"),
    "collate": ("#0b6b50", "#63d6ab"),
    "sampling": ("#7a4510", "#f0b27a"),
    "transport": ("#97337a", "#ff9fd8"),
    "unknown": ("#5f6468", "#b3bac1"),
    "heat": ("#f6b59f", "#7a3328"),
}
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}
# Lines over a cause's colour, in a square of eight units.
PATTERNS = {
    "startup": "M0 4H8M4 0V8",
    "queued": "M0 4H8",
    "read": "M4 0V8",
    "decode": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "transform": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "collate": "M0 2H8M0 6H8",
    "sampling": "M0 0L4 8L8 0",
    "transport": "M2 0V8M6 0V8",
    "unknown": "M0 0L8 8M8 0L0 8",
}


def frames(stack: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the lines of a stack, each with whether it is the program's own."""
    return [(line, not is_foreign(line)) for line in stack]


def make_environment(templates: Path) -> jinja2.Environment:
    """Return what fills `templates`, for pages of reports and of `iotrace ui` alike."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        frames=frames,
        length_of=lambda value: unbroken(length(value)),
        pct=lambda value: unbroken(percent(value)),
        size=lambda value: unbroken(size(value)),
        unbroken=unbroken,
    )
    return environment


def render(template: str, document: Any, banner: Head, **shown: Any) -> str:
    """Fill `template`; `document` is what the page keeps as JSON, its lists of records as columns.

    `timeline`: the address, with a query, of the timeline of a page that is served beside it.
    """
    environment = make_environment(_TEMPLATES)
    environment.filters.update(
        ms=lambda value: unbroken(milliseconds(value)),
        signed=signed,
        fixed=fixed,
        at_slashes=at_slashes,
        at=_place,
    )
    script = (_TEMPLATES / "script.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(
        **({"timeline": ""} | shown),
        banner=banner._replace(lines=[*map(beside, banner.lines)]),
        version=__version__,
        style=Markup((_TEMPLATES / "style.css").read_text()),
        light=Markup(_variables(LIGHT)),
        dark=Markup(_variables(DARK)),
        causes=list(PATTERNS),
        patterns=PATTERNS,
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


def _place(command: str) -> str:
    """Turn the place that a command of ours opens into a part of an address: ``--batch 7``, ``batch=7``."""
    option, value = command.rsplit(maxsplit=2)[1:]
    return urlencode({option.removeprefix("--"): value})


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
    with replacing(path, "choose another --html FILE") as file:
        file.write_bytes(page.encode(errors="replace"))  # the name of a file may be any bytes


def _variables(theme: dict[str, str]) -> str:
    """The theme as CSS variables."""
    return "".join(f"--{name}:{colour};" for name, colour in theme.items())


WORDS = {
    "step": "From one delivery of a batch that is trained on to the next, without evaluation in between.",
    "measured steps": "Those that figures are made of: not the first, not those that await a worker's "
    "first batch, not those that a profiler slowed.",
    "data wait": "The time in a step in which the training loop stood still for its next batch. Its "
    "causes sum to it.",
    "rest of the step": "The step without its data wait: forward, backward, optimizer, all else.",
    "fetch": "Making a batch, in a worker or in the loop: from taking its index to having it prepared.",
    "ready": "The batch was ready, and the loop had not asked for it yet. Where batches are ready, "
    "the loader is fast enough.",
    "ready queue": "How many batches were ready at each moment. At 0 the loop waits for what is being made.",
    "at most ... faster": "A bound: all of the wait that the fix is about is gone. Gains of several fixes "
    "do not add up.",
    "trust": "How far the figures can be relied on: ok, caution or bad, by noise, other programs, losses "
    "and the cost of tracing.",
    "came last in": "Of all matched collectives, the share in which this rank arrived last.",
    "waits for other ranks": "Waiting inside collectives for ranks that come later.",
    "p95": "Of a hundred steps, five are longer.",
}
SWEEP = {
    "point": "One combination of the settings that the sweep compares.",
    "95 %": "With other runs as noisy as these, the figure would be in this interval 95 times of 100.",
    "predicted": "The steps/s that the model predicted from the point with the fewest workers.",
    "ceiling": "Training on batches from memory: no loader can be faster.",
    "memory": "Peak of all processes of the run.",
    "yours": "As the program has it without the sweep.",
    "best": "What the sweep advises.",
    "busy": "Other programs took CPUs: the times are not the command's own.",
}
TUNE = {
    **{word: SWEEP[word] for word in ("95 %", "ceiling", "busy")},
    "predicted": "What the model of the batches expected before the setting's first run, in times as fast as "
    "yours. Without a figure: the model had seen too little, or does not know the setting.",
    "measured": "What its runs gave, in times as fast as yours.",
    "missed by": "How far the prediction lay above (+) or below (-) what was measured.",
    "runs": "How often it was run; the best and yours in turns.",
    "yours": "The program as it is.",
    "best": "The simplest setting that is as fast as the fastest.",
}
