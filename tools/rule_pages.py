"""Write docs/rules.md: what each rule of the catalogue means, its bounds, its remedy, an example.

tools/docs rules
"""

from __future__ import annotations

from pathlib import Path

from iotrace.analysis.rules.catalogue import BOUNDS, Explained, explained
from iotrace.analysis.rules.model import SCOPES, catalogue

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"
_HEAD = '''# Rules

<!-- Made by: tools/docs rules. Change the rule in src/iotrace/analysis/rules instead. -->

What iotrace concludes, it concludes by a rule. A rule judges figures ([definitions](definitions.md)) and
measures nothing. Its code stands behind the advice of `iotrace report -v` and of the page, and in `--json`
(`code` of `recommendations`, `culprits` and `fixes`). `iotrace rules` lists all rules, `iotrace explain
IO204` prints one. Each example below was made by the rule itself, of made-up figures in which it is true.

## A rule of your own

A package adds rules by an entry point of the group `iotrace.rules` that names a module:

```toml
[project.entry-points."iotrace.rules"]
my-site = "my_site.rules"
```

```python
from iotrace.analysis.rules.model import Finding, rule


@rule("XX001", "scratch", "rank")
def scratch(facts):
    """Data is read from /scratch, which all jobs share."""
    groups = [each for each in facts.report.file_groups if each.path.startswith("/scratch")]
    if groups:
        yield Finding(text="data is read from /scratch", remedy="copy it to /local", is_main_cause=True)
```

The scopes and what a rule gets are below: `facts.report` is the rank's part of the JSON report, but for
loaders and devices (`src/iotrace/analysis/rules/facts`). Of the scope `rank` a finding is a culprit, and
where `is_main_cause` is set and there is a `remedy`, an advice. A rule that fails changes nothing:
`not_captured` names it, and why. This interface may still change with a version.
'''
_FACTS = {
    "host": "HostFacts",
    "loader": "LoaderFacts",
    "rank": "RankFacts",
    "loop": "RankFacts",
    "device": "DeviceFacts",
    "job": "JobFacts",
    "trust": "TrustFacts",
    "run": "RunFacts",
    "capture": "CaptureFacts",
    "forecast": "ForecastFacts",
    "check": "CheckFacts",
    "sweep": "SweepFacts",
    "outcome": "OutcomeFacts",
    "setting": "SettingFacts",
    "point": "PointFacts",
    "choice": "ChoiceFacts",
}


def page() -> str:
    """Return the text of docs/rules.md."""
    known, parts = catalogue(), [_HEAD]
    for scope, about in SCOPES.items():
        parts.append(f"## {scope}\n\nAbout {about} (`{_FACTS[scope]}`). {BOUNDS[scope]}".rstrip() + "\n")
        parts += [_section(explained(each)) for each in known if each.scope == scope]
    return "\n".join(parts)


def _section(rule: Explained) -> str:
    texts = [f"### {rule.code} {rule.name}", *rule.meaning]
    own = [each for each in rule.bounds if each != BOUNDS[rule.scope]]
    texts += [f"**Bounds**: {'; '.join(own)}."] if own else []
    texts += [f"**Remedy**: {rule.remedy}"] if rule.remedy else []
    if rule.example:
        change = f"\n→ {rule.change}" if rule.change else ""
        texts.append(f"```text\n{rule.example}{change}\n```")
    return "\n\n".join(texts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
