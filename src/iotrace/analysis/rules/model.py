"""A rule is a function with its entry in the catalogue; a module is a subject.

A rule gets the facts of its scope and yields what it found. It judges figures and computes none: its bounds
are the defaults of its keyword arguments. Its docstring is what `iotrace explain` and docs/rules.md say.
"""

from __future__ import annotations

import glob
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import Change, Evidence
from iotrace.session.manifest import NotCaptured

# The modules that hold the rules of each scope, in the order of their codes.
SUBJECTS = {
    "host": ("host_program", "host"),
    "loader": (
        "files",
        "samples",
        "long_samples",
        "batches",
        "workers",
        "transport",
        "sources",
        "samplers",
        "locks",
        "pipeline",
        "event_loops",
    ),
    "rank": ("cpus", "threads", "memory", "waste", "startup", "numa", "repeated", "regions"),
    "loop": (
        "iterators",
        "memory",
        "recurring",
        "switches",
        "loop",
        "children",
        "own_code",
        "compiling",
        "padding",
        "threads",
    ),
    "device": ("device", "device_idle"),
    "job": ("job",),
    "trust": ("trust", "disturbances"),
    "run": ("run",),
    "capture": ("capture", "capture_loop", "capture_loss"),
    "forecast": ("forecast",),
    "check": ("check",),
    "sweep": ("sweep",),
    "outcome": ("outcomes",),
    "setting": ("points",),
    "point": ("points",),
    "choice": ("points",),
}
SCOPES = {
    "host": "what the doctor sees of a host and a command before a run",
    "loader": "one loader that the training loop waits for",
    "rank": "what holds the making of batches up from outside",
    "loop": "what the training thread itself does",
    "device": "what an accelerator waits for",
    "job": "which rank of a job the others wait for",
    "trust": "how far the figures of a rank can be relied on",
    "run": "how far those of the whole run can",
    "capture": "what a session does not hold, though a reader might expect it",
    "forecast": "what runs out at the rate at which it grows",
    "check": "what is worse than in a baseline, or of what that is not clear",
    "sweep": "how far the advice of a sweep or a search can be relied on",
    "outcome": "what else to know about the runs of a sweep or a search",
    "setting": "a setting that a search does not try, as there is no room for it here",
    "point": "what more workers would bring beyond the point that a sweep chose",
    "choice": "why a sweep advises no point",
}
SITE_RULES = "iotrace.rules"  # the entry points that name modules with rules of a site's own

# The levels of what the doctor finds: a part will not be recorded, or a figure is hard to read, or unknown.
MISSING, WARNING, UNKNOWN = "missing", "warning", "unknown"

# Turns of advice: causes outside the loader first, what the training thread does last.
OUTSIDE, MORE_WORKERS, THE_CAUSE, ORDER, THE_LOOP, THE_DEVICE = range(6)

Examples = Sequence[dict[str, Any]]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule found; times are means per measured step.

    `text` is what was seen, `why` why it matters, `remedy` the change in short, `how` the same as a sentence
    with its evidence, `change` what of it can be carried out without an edit of the program.
    `cost_ms` is what it costs now, `gain_ms` what the change saves where all else takes what it took, or as
    `gain`, a row of the rank's gains, predicts within `gain_interval_ms`. `most_ms` is what of the data wait
    goes with it at most; None: all of it. `spares` is the share of the making of batches that it spares at
    most; None: all of it. A main cause is most of the wait. `tries`: the
    change may gain nothing. `spares_work`: it makes less to do, where others only do it faster. Findings
    of the rules that `silences` names are dropped. `first`: most of the wait is its own, and what else gains
    more makes the same shorter, and comes later. Those of one scope come in the order of their codes;
    with a `place` where that code would.
    """

    text: str
    why: str = ""
    remedy: str = ""
    how: str = ""
    command: str = ""
    change: Change | None = None
    evidence: Evidence = {}
    cost_ms: float | None = None
    gain_ms: float | None = None
    most_ms: float | None = None
    spares: float | None = None
    gain: str | None = None
    gain_interval_ms: list[float] | None = None
    level: str = "high"
    is_main_cause: bool = False
    tries: bool = False
    spares_work: bool = False
    first: bool = False
    silences: tuple[str, ...] = ()
    place: str = ""
    loader: int | None = None
    rule: str = ""

    @property
    def advice(self) -> str:
        """Return what was seen and what to do about it."""
        return f"{self.text}: {self.how or self.remedy}"


Find = TypeVar("Find", bound=Callable[..., Iterator[Finding]])


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of the catalogue.

    `id` is its name in the JSON report. Advice is told by `turn`, the lowest first; within the turn
    `by_gain` puts the largest gain first. `saves_wait`: what it gains is data wait. `of_run`: it is part of
    the whole loop and the first start of workers, beyond the measured steps. `fires` are facts in which it
    holds, `silent` those in which it only looks so: changes to the scope's facts
    (`rules/facts/examples.py`).
    """

    code: str
    name: str
    scope: str
    find: Callable[..., Iterator[Finding]]
    id: str
    turn: int = 0
    saves_wait: bool = True
    of_run: bool = False
    fires: Examples = ()
    silent: Examples = ()

    @property
    def bounds(self) -> dict[str, Any]:
        """Return the rule's thresholds by name."""
        parameters = inspect.signature(self.find).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}

    @property
    def summary(self) -> str:
        """Return the first sentence of what it means."""
        return self.meaning.partition("\n")[0]

    @property
    def meaning(self) -> str:
        """Return what it means, why it matters and how sure it is: the docstring of its function."""
        return inspect.getdoc(self.find) or ""


_catalogue: dict[str, Rule] = {}


def rule(code: str, name: str, scope: str, **known: Any) -> Callable[[Find], Find]:
    """Enter a function into the catalogue, with the examples that `fires` and `silent` below it hold.

    Raises:
        ValueError: another rule has this code, or there is no such scope.
    """
    if scope not in SCOPES:
        raise ValueError(f"{code}: the scope is one of {', '.join(SCOPES)}")

    def enter(find: Find) -> Find:
        before = _catalogue.get(code)
        if before is not None and before.find.__module__ != find.__module__:
            raise ValueError(f"{code} is a rule of {before.find.__module__}")
        examples = {field: getattr(find, field, ()) for field in ("fires", "silent")}
        about = {"id": name, **examples, **known}
        _catalogue[code] = Rule(code=code, name=name, scope=scope, find=find, **about)
        return find

    return enter


def fires(*examples: dict[str, Any]) -> Callable[[Find], Find]:
    """Give facts in which a rule holds."""
    return _with_examples("fires", examples)


def silent(*examples: dict[str, Any]) -> Callable[[Find], Find]:
    """Give facts in which a rule only looks as if it held."""
    return _with_examples("silent", examples)


def _with_examples(field: str, examples: Examples) -> Callable[[Find], Find]:
    def keep(find: Find) -> Find:
        setattr(find, field, examples)
        return find

    return keep


def rules_of(scope: str) -> list[Rule]:
    """Return the rules of a scope in the order of their codes, a site's own among them."""
    _load(scope)
    return sorted((each for each in _catalogue.values() if each.scope == scope), key=lambda each: each.code)


def catalogue() -> list[Rule]:
    """Return all rules in the order of their codes."""
    return sorted((each for scope in SUBJECTS for each in rules_of(scope)), key=lambda each: each.code)


def find_all(scope: str, facts: object) -> list[Finding]:
    """Return what the rules of a scope find in its facts."""
    found = [finding for each in rules_of(scope) for finding in ask(each, facts)]
    return sorted(found, key=lambda finding: finding.place or finding.rule)


def rule_of(code: str) -> Rule:
    """Return the rule with this code.

    Raises:
        KeyError: there is none.
    """
    for scope in SUBJECTS:
        if code in _catalogue:
            break
        _load(scope)
    return _catalogue[code]


def ask(rule: Rule, facts: object) -> list[Finding]:
    """Return what one rule finds; one of a site's own that fails is named by `unasked`, and harms nothing."""
    if rule.find.__module__.startswith("iotrace."):
        return [replace(finding, rule=rule.code) for finding in rule.find(facts)]
    try:
        return [replace(finding, rule=rule.code) for finding in rule.find(facts)]
    except Exception as error:
        _failed[f"rule {rule.code}"] = f"{type(error).__name__}: {error}"
        return []


# Why rules of a site's own failed, until `unasked` tells it; why modules of them could not be loaded.
_failed: dict[str, str] = {}
_not_loaded: dict[str, str] = {}


def unasked() -> list[NotCaptured]:
    """Name the rules of a site's own that failed since the last call, and those that cannot be loaded."""
    remedy = f"mend it, or uninstall what names it as an entry point of {SITE_RULES}"
    found = [NotCaptured(what, why, remedy) for what, why in (*_not_loaded.items(), *_failed.items())]
    _failed.clear()
    return found


def _load(scope: str) -> None:
    for subject in SUBJECTS[scope]:
        import_module(f"{__package__}.{subject}")
    _load_site_rules()


@cache
def _load_site_rules() -> None:
    if not any(map(_names_site_rules, sys.path)):  # else importlib.metadata takes 50 ms to find none
        return
    from importlib.metadata import entry_points

    for entry in entry_points(group=SITE_RULES):
        try:
            entry.load()
        except Exception as error:
            _not_loaded[f"rules of {entry.name}"] = f"{type(error).__name__}: {error}"


def _names_site_rules(folder: str) -> bool:
    """Whether a distribution that is installed in a folder of sys.path names rules of a site's own."""
    for name in glob.iglob(os.path.join(glob.escape(folder), "*-info", "entry_points.txt")):
        with suppress(OSError), open(name, "rb") as points:
            if SITE_RULES.encode() in points.read():
                return True
    return False
