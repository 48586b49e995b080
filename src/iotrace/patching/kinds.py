"""What an expression of the program may mean."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec

from iotrace.patching.source import Source


class UnknownError(Exception):
    """Why the place of a value is not known: a sentence without its end."""


class Literal(msgspec.Struct, frozen=True):
    """An expression that is written in a file; `variable` where it is all that a variable is set to."""

    source: Source
    node: ast.expr
    variable: str = ""


class Option(msgspec.Struct, frozen=True):
    """What argparse or click store of an option of the command."""

    dest: str


class Options(msgspec.Struct, frozen=True):
    """All the options of the command."""


class Key(msgspec.Struct, frozen=True):
    """A key of YAML files, or where `function` is known of Hydra's configuration.

    A later one of `paths` counts; `in_words`: words of the command, as ``a.b=1``, before all of them.
    """

    source: Source
    keys: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    in_words: bool = False


class Mapping(msgspec.Struct, frozen=True):
    """A dict, or what is made as one."""

    source: Source
    node: ast.Dict | ast.Call


class Instance(msgspec.Struct, frozen=True):
    """An object of a class of the program; without a `call` the one whose method is running."""

    source: Source
    made: ast.ClassDef
    call_source: Source | None = None
    call: ast.Call | None = None
    of_hparams: bool = False


class Module(msgspec.Struct, frozen=True):
    """A module of the program."""

    source: Source


Value = Literal | Option | Options | Key | Mapping | Instance | Module
