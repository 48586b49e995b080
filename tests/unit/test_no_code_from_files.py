"""Nothing that iotrace reads is run: its sources have no pickle, eval or shell but for what is named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.runs import PROJECT

_SOURCE = PROJECT / "src" / "iotrace"
_MODULES = frozenset(
    ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "yaml", "code", "codeop")
)
_CALLS = frozenset(
    ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "pty.spawn", "runpy.run_path")
)
_NETWORK = frozenset(
    ("urllib", "http", "requests", "ftplib", "smtplib", "ssl", "asyncio", "aiohttp", "xmlrpc")
)
# Where it is needed, and why it is nobody else's text.
_NAMED = {
    "agent": "hooks give wrappers the name of the library's file, and run in the user's own program",
    "viewer": "serves a page on 127.0.0.1 while `iotrace open` runs, and asks nobody for anything",
    "ui": "serves pages to who knows the token while `iotrace ui` runs, and asks nobody for anything",
    "export": "serves metrics where `iotrace run --metrics` says, and asks nobody for anything",
    "notebook.py": "runs the cell that the user typed, as IPython does",
}


def _found() -> Iterator[tuple[str, str]]:
    for path in sorted(_SOURCE.rglob("*.py")):
        where = str(path.relative_to(_SOURCE))
        for node in ast.walk(ast.parse(path.read_text())):
            yield from ((where, what) for what in _dangers(node))


def _dangers(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        yield from (
            f"import {name}"
            for name in names
            if name.split(".")[0] in _MODULES | _NETWORK and name != "urllib.parse"  # which parses text alone
        )
    if not isinstance(node, ast.Call):
        return
    called = ast.unparse(node.func)
    if called in _CALLS:
        yield called
    for given in node.keywords:
        if given.arg == "shell" and not (
            isinstance(given.value, ast.Constant) and given.value.value is False
        ):
            yield f"{called} with a shell"
        if given.arg == "allow_pickle" and not (
            isinstance(given.value, ast.Constant) and given.value.value is False
        ):
            yield f"{called} with pickle"
    if called in ("np.load", "numpy.load") and not any(
        given.arg == "allow_pickle" for given in node.keywords
    ):
        yield "numpy.load without allow_pickle"


def test_nothing_that_is_read_is_run() -> None:
    found = {(where.split("/")[0], what) for where, what in _found()}
    assert {where for where, _ in found} <= _NAMED.keys(), sorted(found)


def test_the_readers_are_looked_at() -> None:
    tree = ast.parse("import pickle, urllib.request\nsubprocess.run(x, shell=True)\neval(y)\nnp.load(z)")
    assert len([what for node in ast.walk(tree) for what in _dangers(node)]) == 5
