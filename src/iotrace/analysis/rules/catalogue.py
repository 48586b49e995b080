"""The catalogue as plain data: what a rule means, its bounds, what to do, and an example made by the rule."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import msgspec

from iotrace.analysis.rules.facts.examples import facts_of
from iotrace.analysis.rules.facts.job import LATE_PERCENT
from iotrace.analysis.rules.facts.rank import MAIN, TOLD
from iotrace.analysis.rules.model import SCOPES, Rule, ask, catalogue
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.units import percent, size

# What holds for all rules of a scope.
BOUNDS = {
    "host": "",
    "loader": (
        f"The waits for loaders are {MODERATELY_PERCENT:.0f} % of a step or more, and the change may gain "
        "as much."
    ),
    "rank": (
        f"A cause takes {percent(TOLD)} of the data wait or more, and {MODERATELY_PERCENT:.0f} % of a step; "
        f"from {percent(MAIN)} of the wait on it is a main cause, and its remedy becomes advice."
    ),
    "loop": "",
    "job": f"A rank is late if the others wait for it in {LATE_PERCENT:.0f} % of their steps or more.",
    "device": "Shares are those of the traced window.",
    "trust": "In a pair of bounds, the first is for `caution`, the second for `bad`.",
    "run": "",
    **dict.fromkeys(("capture", "forecast", "check", "sweep", "outcome", "setting", "point", "choice"), ""),
}
_REMEDY = "Remedy: "


class RuleLine(msgspec.Struct, frozen=True):
    """A rule in one line."""

    code: str
    name: str
    scope: str
    summary: str


class RuleList(msgspec.Struct, frozen=True):
    """The rules in the order of their codes."""

    rules: list[RuleLine]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A rule in words: paragraphs of what it means, each bound with its value, an example and its remedy."""

    code: str
    name: str
    scope: str
    about: str
    meaning: list[str]
    bounds: list[str]
    remedy: str
    example: str
    change: str


def listed(words: Sequence[str] = ()) -> RuleList:
    """List the rules that have all these words, in whatever case; a site's own rules among them."""
    found = [each for each in catalogue() if not words or _has(each, words)]
    return RuleList([RuleLine(each.code, each.name, each.scope, each.summary) for each in found])


def _has(rule: Rule, words: Sequence[str]) -> bool:
    text = " ".join(f"{rule.code} {rule.name} {rule.id} {rule.scope} {rule.meaning}".lower().split())
    return all(word.lower() in text for word in words)


def named(name: str) -> Rule | None:
    """Return the rule with this code, name, or name in the JSON report; None where there is none."""
    known = catalogue()
    spelled = name.lower()
    by_code = (each for each in known if each.code.lower() == spelled)
    by_name = (each for each in known if each.name == spelled)
    by_id = (each for each in known if each.id == spelled)
    return next((found for kind in (by_code, by_name, by_id) for found in kind), None)


def near(name: str) -> list[str]:
    """Return the codes of the rules that may be meant, the nearest first."""
    codes = {spelled: each.code for each in catalogue() for spelled in (each.code.lower(), each.name)}
    begun = [spelled for spelled in codes if spelled.startswith(name.lower())]
    alike = get_close_matches(name.lower(), codes, n=9, cutoff=0.5)
    alike.sort(key=lambda each: each[:3] != name.lower()[:3])  # a code of the same kind first
    return [*dict.fromkeys(codes[found] for found in (*begun, *alike))][:3]


def explained(rule: Rule) -> Explained:
    """Explain a rule; its example is what it finds in the first facts in which it is true."""
    paragraphs = [" ".join(each.split()) for each in rule.meaning.split("\n\n")]
    remedy = "".join(each.removeprefix(_REMEDY) for each in paragraphs if each.startswith(_REMEDY))
    found = next(iter(ask(rule, facts_of(rule, rule.fires[0])) if rule.fires else ()), None)
    general = BOUNDS[rule.scope]
    return Explained(
        code=rule.code,
        name=rule.name,
        scope=rule.scope,
        about=SCOPES[rule.scope],
        meaning=[each for each in paragraphs if not each.startswith(_REMEDY)],
        bounds=[*([general] if general else []), *(_bound(*each) for each in rule.bounds.items())],
        remedy=remedy[:1].upper() + remedy[1:],
        example=": ".join(filter(None, (found.text, found.why))) if found is not None else "",
        change=(found.how or found.remedy) if found is not None else "",
    )


def _bound(name: str, value: object) -> str:
    """Name a bound and its value; the name of a bound ends with its unit."""
    words, _, unit = name.replace("_", " ").rpartition(" ")
    if isinstance(value, int) and unit == "bytes":
        return f"{words}: {size(value)}"
    values = value if isinstance(value, tuple) else (value,)
    figures = " and ".join(f"{each:g}" if isinstance(each, int | float) else str(each) for each in values)
    return f"{words}: {figures} %" if unit == "pct" else f"{words} {unit}: {figures}".lstrip()
