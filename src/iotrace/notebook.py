"""``%load_ext iotrace``, then ``%%iotrace``: run a notebook's cell under `iotrace.profile`."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from typing import Any

from iotrace.errors import IotraceError
from iotrace.loading import load
from iotrace.profiling import Profile
from iotrace.report.printing import echo

_USAGE = "%%iotrace [-o DIR]"


def load_ipython_extension(shell: Any) -> None:
    """Add the magic to IPython's `shell`."""
    shell.register_magic_function(_magic(shell), "cell", "iotrace")


def _magic(shell: Any) -> Callable[[str, str], Any]:
    def iotrace(line: str, cell: str) -> Any:
        """Run the cell under iotrace.profile and show why it waited for data.

        %%iotrace [-o DIR]: DIR is the session's directory; by default iotrace-<date>-<time>.
        """
        __tracebackhide__ = True  # of IPython: the cell's traceback is the program's own
        profile = _begin(Profile(_output(line), report=False))
        try:
            return _run(shell, cell)
        finally:
            profile.__exit__(None, None, None)
            _show(profile)

    return iotrace


def _output(line: str) -> str | None:
    words = shlex.split(line)
    if not words:
        return None
    if len(words) == 2 and words[0] in ("-o", "--output"):
        return words[1]
    raise _wrong(f"what is {' '.join(words)}? {_USAGE}")


def _begin(profile: Profile) -> Profile:
    try:
        return profile.__enter__()
    except IotraceError as error:
        raise _wrong(f"{error}; {error.remedy}") from None


def _wrong(message: str) -> Exception:
    from IPython.core.error import UsageError

    wrong: Exception = UsageError(f"iotrace: {message}")  # shown without a traceback
    return wrong


def _run(shell: Any, cell: str) -> Any:
    """Run the cell in the notebook's names; return what its last expression gives, which IPython shows."""
    __tracebackhide__ = True
    text = shell.transform_cell(cell)
    name = shell.compile.cache(text, raw_code=cell)  # a traceback shows its lines
    tree = shell.transform_ast(ast.parse(text, name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), shell.user_ns)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns)


def _show(profile: Profile) -> None:
    from IPython.display import display

    if profile.session is None:
        echo("iotrace: another recording is under way: the cell is a region of it")
        return
    try:
        display(load(profile.session))
    except (IotraceError, OSError) as error:
        echo(f"iotrace: no report: {error}; the session is kept: iotrace report {profile.session}")
