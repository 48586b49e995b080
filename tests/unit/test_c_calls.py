"""Which function in C a call of the program is of."""

from __future__ import annotations

import dis
import sys
import zlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from iotrace.agent.recording.c_calls import called_in_c

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions have no positions")

library = ModuleType("library")
compress = zlib.compress
held: Any = SimpleNamespace(compress=zlib.compress)


def by_name(data: bytes) -> bytes:
    return compress(data)


def by_module(data: bytes) -> bytes:
    return library.compress(data.strip(), level=9)[1:]


def in_comprehension(data: list[bytes]) -> list[bytes]:
    return [compress(each) for each in data]


def by_object(data: bytes) -> bytes:
    return held.compress(data)


def by_argument(function: Callable[[bytes], bytes], data: bytes) -> bytes:
    return function(data)


def of_result(data: Any) -> Any:
    return data.compress(data)


def of_python(data: bytes) -> bytes:
    return by_name(data)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (by_name, ["compress"]),
        (by_module, ["compress"]),
        (in_comprehension, ["compress"]),
        (by_object, []),
        (by_argument, []),
        (of_result, []),
        (of_python, []),
    ],
)
@pytest.mark.parametrize("package", ["shapes", "torch"])
def test_a_call_of_a_package_is_known_by_the_names_in_the_code(
    monkeypatch: pytest.MonkeyPatch, function: Any, told: list[str], package: str
) -> None:
    packaged = ModuleType("zlib")
    packaged.__file__ = f"/v/lib/python3.11/site-packages/{package}/_c.so"
    monkeypatch.setitem(sys.modules, "zlib", packaged)
    library.__dict__["compress"] = compress
    monkeypatch.setattr("iotrace.agent.recording.c_calls._found", {})
    codes = [function.__code__, *(each for each in function.__code__.co_consts if hasattr(each, "co_code"))]
    calls = [(code, each.offset) for code in codes for each in dis.get_instructions(code)]
    found = [called for code, at in calls if (called := called_in_c(code, at)) is not None]
    assert [called.co_name for called in found] == (told if package == "shapes" else [])
    assert all(called.co_filename == packaged.__file__ for called in found)
