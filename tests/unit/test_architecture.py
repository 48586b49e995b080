"""docs/architecture.md shows the rooms and imports that the code has."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.support.runs import PROJECT

_SOURCE = PROJECT / "src" / "iotrace"
_ROW = re.compile(r"^\| (?P<rooms>`[^|]*) \| (?P<subject>[^|]+) \| (?P<imports>[^|]*) \|$", re.MULTILINE)
_NAME = re.compile(r"`([\w./]+)`")


def _room(name: str) -> str:
    """The room of a module: ``cli/``, or ``errors.py`` for a module beside the rooms."""
    first = name.split(".")[1] if "." in name else "__init__"
    return f"{first}/" if (_SOURCE / first).is_dir() else f"{first}.py"


def _imports_of_code() -> dict[str, set[str]]:
    graph = grimp.build_graph("iotrace", cache_dir=None)
    found: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        importer = _room(module)
        imported = {_room(one) for one in graph.find_modules_directly_imported_by(module)}
        found[importer] |= imported - {importer, "__init__.py"}
    found.pop("__init__.py")
    found.pop("__main__.py")
    return dict(found)


def _imports_of_document() -> dict[str, set[str]]:
    table = (PROJECT / "docs" / "architecture.md").read_text()
    found: dict[str, set[str]] = {}
    for row in _ROW.finditer(table):
        for room in _NAME.findall(row["rooms"]):
            assert room not in found, f"{room} stands twice"
            found[room] = set(_NAME.findall(row["imports"]))
    return found


def test_the_import_table_is_the_codes() -> None:
    assert _imports_of_document() == _imports_of_code()


def test_every_path_that_the_document_names_exists() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py|\.c|\.h)?)`", text)
    folders = {f"{path.name}/" for path in _SOURCE.rglob("*") if path.is_dir()}
    missing = [
        name
        for name in named
        if not (name in folders or (_SOURCE / name).exists() or (PROJECT / name).exists())
    ]
    assert named
    assert not missing


def _imports() -> dict[str, set[str]]:
    """Each module's imports, also those in functions, and of the agent those that stand in it by name."""
    graph = grimp.build_graph("iotrace", cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    tree = ast.parse((_SOURCE / "agent" / "bootstrap.py").read_text())
    texts = {f"iotrace.agent.{one.value}" for one in ast.walk(tree) if isinstance(one, ast.Constant)}
    imports["iotrace.agent.bootstrap"] |= texts & graph.modules
    return imports


def test_no_module_imports_what_imports_it() -> None:
    imports = _imports()
    assert "iotrace.agent.dataloader.consumer" in imports["iotrace.agent.bootstrap"]
    TopologicalSorter(imports).prepare()  # its CycleError names a circle


def test_no_module_imports_the_package_that_the_program_sees() -> None:
    graph = grimp.build_graph("iotrace", cache_dir=None)
    assert graph.find_modules_that_directly_import("iotrace") == set()


def test_the_largest_rooms_are_found() -> None:
    # The rows are read by a pattern: one that matches nothing would agree with no code at all.
    assert {"agent/", "cli/", "sources/", "analysis/", "merge/"} <= _imports_of_document().keys()
    assert isinstance(_SOURCE, Path)


_TOLD = {"text", "why", "remedy", "reason", "reasons", "banner", "advice"}  # fields that people read
_BY_TEXT = {  # what looks at such a text all the same, and why it may
    "analysis/results/report.py: self.text.removeprefix(self.banner)": "cuts the banner off",
    "patching/hydra.py: '@package' not in file.text": "it is the user's file",
    "patching/maker.py: keys[-1] in file.text": "it is the user's file",
    "patching/source.py: self.text.removeprefix('\\ufeff')": "cuts a byte order mark off",
    "report/layout.py: block.text.partition(block.strong)": "colours the part that stands out",
    "report/page/results.py: head.text.removeprefix(label)": "cuts the label off that stands before it",
    "report/screen.py: reason.partition(': ')": "puts what is said of one rank together",
    "report/sweep.py: found.text.removeprefix(label)": "cuts the label off that stands before it",
    "session/hangs.py: each.text.startswith(WAITS_FOR_WORK)": "a session's record holds the sentence alone",
    "sweeps/apply.py: 'HfArgumentParser' in source.text": "it is the user's program",
}
_LOOKS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "find", "index", "count"}


def _is_told(node: ast.expr) -> bool:
    """Whether an expression is such a field, or a variable that holds one; `text` alone may be any text."""
    if isinstance(node, ast.Attribute):
        return node.attr in _TOLD
    return isinstance(node, ast.Name) and node.id in _TOLD - {"text"}


def _decides_by_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _LOOKS and _is_told(node.func.value)
    if not isinstance(node, ast.Compare):
        return False
    looks = any(isinstance(each, ast.In | ast.NotIn) for each in node.ops)
    return looks and any(map(_is_told, node.comparators))


def test_a_text_is_not_used_to_decide() -> None:
    """What people read may be worded anew; what decides asks for a code, an id or a field."""
    found = [
        f"{path.relative_to(_SOURCE)}: {ast.unparse(node)}"
        for path in sorted(_SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if _decides_by_text(node) and isinstance(node, ast.expr)
    ]
    assert sorted(found) == sorted(_BY_TEXT)


@pytest.mark.parametrize(
    "code",
    ["item.remedy.startswith('try ')", "'other' in reason", "'x' not in a.why", "a.text.removeprefix(b)"],
)
def test_a_decision_by_a_text_is_seen(code: str) -> None:
    assert _decides_by_text(ast.parse(code, mode="eval").body)
