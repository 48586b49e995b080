"""A damaged session gives a report that tells of it, or a sentence; never a traceback."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.errors import IotraceError
from iotrace.merge.run import write_timeline
from iotrace.session import names
from iotrace.sources.session import open_session
from tests.support.runs import Run

ROUNDS = 120


def _mutate(data: bytes, chance: random.Random) -> bytes:
    """One of the ways in which a file is damaged: cut, garbage, a number that is none, lines shuffled."""
    kind = chance.randrange(5)
    if kind == 0:
        return data[: chance.randrange(len(data) + 1)]
    if kind == 1:
        at = chance.randrange(len(data) + 1)
        return data[:at] + chance.randbytes(chance.randrange(1, 40)) + data[at:]
    if kind == 2:
        numbers = list(re.finditer(rb":-?\d+", data))
        if numbers:
            match = chance.choice(numbers)
            value = chance.choice([b"1" * 19, b"9" * 30, b"-5", b"null", b"1e400", b'"x"', b"[]", b"0"])
            return data[: match.start() + 1] + value + data[match.end() :]
        return b""
    if kind == 3:
        lines = data.split(b"\n")
        chance.shuffle(lines)
        return b"\n".join(lines)
    return data.replace(b"{", b"[", 1)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
def test_no_damage_ends_in_a_traceback(unet_run: Run, tmp_path: Path, part: int) -> None:
    chance = random.Random(part)
    sentences = []
    for number in range(ROUNDS // 4):
        session = tmp_path / str(number)
        shutil.copytree(unet_run.session, session, ignore=shutil.ignore_patterns(names.OUT))
        (session / names.OUT).mkdir()
        files = [path for path in session.rglob("*") if path.is_file() and path.stat().st_size]
        victim = chance.choice(sorted(files))
        victim.write_bytes(_mutate(victim.read_bytes(), chance))
        try:
            analysis = SessionAnalysis(open_session(session))
            report = analyse(analysis)
            write_timeline(analysis, session / names.OUT / names.TIMELINE)
        except IotraceError as error:
            sentences.append(str(error))
            continue
        for rank_report in report.ranks:
            wait = rank_report.data_wait
            if wait.raw_ms is not None:
                assert sum(wait.causes_ms.values()) == pytest.approx(wait.raw_ms, rel=1e-6, abs=1e-6)
        shutil.rmtree(session)
    assert all(sentences)
    assert len(sentences) < ROUNDS // 4
