"""Which fix of a report is tried, and what is asked of the runs for it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from iotrace.analysis.results import PARQUET, Change, Fix, Report
from iotrace.analysis.rules.model import rule_of
from iotrace.errors import IotraceError, UsageError
from iotrace.sweeps.grid import CPUS, KEPT_OPEN, LOADER_ARGUMENTS, TABLES, WORKER_THREADS
from iotrace.trying.results import LOOP, STEP, Told, Untried

_OF_WORKERS = frozenset({"prefetch_factor", "persistent_workers", "in_order"})
_OF_CODE = "the program has to be edited for it"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The fixes to try together, and those that are listed before the first of them."""

    fixes: list[Fix]
    untried: list[Untried] = []

    @property
    def change(self) -> Change:
        """What they ask for together."""
        changes = [fix.change for fix in self.fixes if fix.change is not None]
        return Change(
            settings={name: value for each in changes for name, value in each.settings.items()},
            variables={name: value for each in changes for name, value in each.variables.items()},
            threads={name: value for each in changes for name, value in each.threads.items()},
            kept_open=[path for each in changes for path in each.kept_open],
            cpus=next((each.cpus for each in changes if each.cpus), []),
        )

    @property
    def stored(self) -> list[Change]:
        """What of them asks for data stored otherwise."""
        return [fix.change for fix in self.fixes if fix.change is not None and fix.change.stored]

    @property
    def is_of_data_alone(self) -> bool:
        """Whether nothing changes but how data is stored."""
        return all(fix.change is not None and bool(fix.change.stored) for fix in self.fixes)

    @property
    def params(self) -> dict[str, str]:
        """The settings as a sweep knows them; no program has a placeholder of the second name."""
        by_argument = {argument: name for name, argument in LOADER_ARGUMENTS.items()}
        change = self.change
        params = {by_argument[name]: value for name, value in change.settings.items()}
        if change.threads:
            params[WORKER_THREADS] = ",".join(f"{name}={value}" for name, value in change.threads.items())
        if change.kept_open:
            params[KEPT_OPEN] = "/".join(map(os.path.basename, change.kept_open))
        if any(each.stored == PARQUET for each in self.stored):
            params[TABLES] = PARQUET
        if change.cpus:
            params[CPUS] = ",".join(map(str, change.cpus))
        return {**params, "iotrace try": ",".join(fix.code or fix.id for fix in self.fixes)}

    @property
    def measured(self) -> str:
        """Of what runs are compared: what a fix spares may lie between steps."""
        rules = [rule_of(fix.code) for fix in self.fixes if fix.code is not None]
        return LOOP if any(rule.of_run or not rule.saves_wait for rule in rules) else STEP


def choose(report: Report, wanted: Sequence[str], site: str = "") -> Choice:
    """Find the fixes that `wanted` names by number or code; the first that can be tried, where it is empty.

    `site` is the line that makes the loop's loader.

    Raises:
        UsageError: there is no such fix, or two exclude each other.
        IotraceError: there is none that can be tried.
    """
    fixes = report.verdict.fixes
    if not fixes:
        why = report.verdict.text if report.verdict.kind == "failed" else "the report names no fix"
        raise IotraceError(f"there is nothing to try: {why}", f"iotrace report {report.session.path}")
    if wanted:
        chosen = [find_fix(fixes, name) for name in dict.fromkeys(wanted)]
        for fix in chosen:
            if fix.change is None:
                raise IotraceError(f"{_OF_CODE}: {fix.text}", describe_lines(report, site))
        _check_together(chosen)
        return Choice(fixes=chosen)
    first = next((fix for fix in fixes if fix.change is not None), None)
    before = fixes[: fixes.index(first)] if first is not None else fixes
    untried = [
        Untried(fix=fix.code or fix.id, text=fix.text, why=_OF_CODE, where=describe_lines(report, site))
        for fix in before
    ]
    if first is None:
        texts = [f"{each.text}{f' ({each.where})' if each.where else ''}" for each in untried]
        raise IotraceError(f"no fix can be tried: {_OF_CODE}", "; ".join(texts))
    return Choice(fixes=[first], untried=untried)


def find_fix(fixes: Sequence[Fix], name: str) -> Fix:
    """Return the fix that a number, from 1, or a code names.

    Raises:
        UsageError: there is none.
    """
    if name.isdigit():
        if 1 <= int(name) <= len(fixes):
            return fixes[int(name) - 1]
        raise UsageError(f"--fix {name}: the report names {len(fixes) or 'no fix'}", numbered(fixes))
    named = next((fix for fix in fixes if name.upper() == fix.code or name == fix.id), None)
    if named is None:
        such = "no such fix" if fixes else "no fix"
        raise UsageError(f"--fix {name}: the report names {such}", numbered(fixes))
    return named


def numbered(fixes: Sequence[Fix]) -> str:
    """List fixes as `--fix` takes them: a line each with number, code and words."""
    return "\n".join(f"--fix {at}: {fix.text} [{fix.code or fix.id}]" for at, fix in enumerate(fixes, 1))


def _check_together(fixes: Sequence[Fix]) -> None:
    """Refuse fixes that ask for different values of one thing, or for workers' settings without workers."""
    seen: dict[str, tuple[str, Fix]] = {}
    for fix in fixes:
        assert fix.change is not None
        asked = {**fix.change.settings, **fix.change.variables}
        asked |= {f"threads of {name}": value for name, value in fix.change.threads.items()}
        asked |= {os.path.normpath(path): fix.change.stored for path in fix.change.paths}
        for name, value in asked.items():
            before, other = seen.setdefault(name, (value, fix))
            if other is not fix and before != value:
                both = f"{name} is {before} in {other.text!r}, {value} in {fix.text!r}"
                raise UsageError(f"two fixes exclude each other: {both}", "try one at a time: --fix N")
    none = next((fix for fix in fixes if fix.change and fix.change.settings.get("num_workers") == "0"), None)
    for fix in fixes if none is not None else ():
        assert none is not None
        assert fix.change is not None
        of_workers = [*(fix.change.settings.keys() & _OF_WORKERS), *fix.change.threads]
        if fix is not none and of_workers:
            both = f"{none.text!r} leaves no workers for {fix.text!r}"
            raise UsageError(f"two fixes exclude each other: {both}", "try one at a time: --fix N")


def describe_lines(report: Report, site: str) -> str:
    """The lines of the program that make a sample, a batch, and the loader at `site`, as far as known."""
    loaders = [rank.primary for rank in report.ranks if rank.primary is not None]
    lines = [line for loader in loaders for line in (loader.item, loader.collate)]
    return ", ".join(dict.fromkeys(filter(None, [*lines, site])))


def promised_gain(fixes: Sequence[Fix]) -> Told | None:
    """What the report promised of the first fix; it promises nothing of several together."""
    fix = fixes[0]
    if len(fixes) > 1 or fix.speedup is None or fix.gain_ms_per_step is None:
        return None
    interval_ms = fix.gain_interval_ms
    if interval_ms is None or fix.speedup <= 1 or not fix.is_predicted:
        about, most = fix.told
        return Told(low=about, high=most, about=about is not None)
    step_ms = fix.gain_ms_per_step / (1 - 1 / fix.speedup)
    low, high = (step_ms / max(step_ms - each, 0.01 * step_ms) for each in interval_ms)
    return Told(low=low, high=high)
