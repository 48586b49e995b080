"""Damaged inputs of every reader, damaged sessions: each is read or refused with a sentence; losses are told.

The same inputs every time, with --slow new ones. `--mutations N` tries N of them. `tools/fuzz` does so in
processes whose time and memory are bounded.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.fuzz import MOST_BYTES, Readers, Sessions

_KINDS = ("records", "telemetry", "spans", "posix", "recorded", "kineto", "manifest")
# What the readers take apart: one of them is enough to see that a place in the code bears it.
_PIECES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b'{"type":"',
            b'"ph":"X",',
            b'"traceEvents":[',
            b'"ts":',
            b"[[[[",
            b"}",
            b"]",
            b'"',
            b"\\",
            b"\n",
            b"\x1f\x8b",
        ]
    ),
    st.integers().map(lambda number: str(number).encode()),
    st.floats().map(lambda number: repr(number).encode()),
)


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Readers:
    return Readers(tmp_path_factory.mktemp("readers"))


@pytest.mark.parametrize("kind", _KINDS)
def test_damaged_inputs(readers: Readers, kind: str, pytestconfig: pytest.Config) -> None:
    tried = pytestconfig.getoption("--mutations") or (5000 if pytestconfig.getoption("--slow") else 300)
    for seed in range(tried):
        readers.read(kind, readers.damaged(kind, seed))


# Numbers of `tools/fuzz` at which a reader failed: a time of 1e400 in a log took seconds, an event behind a
# bracket and a record that names no process were lost without a word.
@pytest.mark.parametrize("seed", [2139, 4509, 4794, 5797, 167487, 176434, 185139])
def test_what_failed_once(readers: Readers, seed: int) -> None:
    for kind in _KINDS:
        readers.read(kind, readers.damaged(kind, seed))


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=60)
@given(pieces=st.lists(_PIECES, max_size=30), seed=st.integers(0, 1 << 30), at=st.integers(0, MOST_BYTES))
def test_pieces_in_damaged_inputs(
    readers: Readers, kind: str, pieces: list[bytes], seed: int, at: int
) -> None:
    data = readers.damaged(kind, seed)
    at = min(at, len(data))
    readers.read(kind, data[:at] + b"".join(pieces) + data[at:])


def test_damaged_sessions(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    sessions = Sessions(tmp_path)
    for seed in range((pytestconfig.getoption("--mutations") or 300) // 10):
        sessions.run(seed)
