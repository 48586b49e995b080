"""Which pages of a file are in memory: two ways of asking the kernel, and an independent judge."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iotrace import page_cache
from iotrace.page_cache import PAGE, Found, find_pages
from tests.support.pagecache import drop, resident_pages, write

_PAGES = 64


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    path = tmp_path / "cold.bin"
    write(path, os.urandom(_PAGES * PAGE))
    drop(path)
    return path


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system has shown yet that cachestat sees its pages."""
    monkeypatch.setattr(page_cache, "_answering", set())


def ask(path: Path, pages: list[int]) -> Found:
    with path.open("rb", buffering=0) as file:
        return find_pages(file.fileno(), pages)


def test_pages_are_counted_and_stay_where_they_are(cold: Path, unanswered: None) -> None:
    assert ask(cold, [3, 4, 5]) == Found(0, exact=True)
    assert resident_pages(cold) == 1  # read to see that cachestat sees it
    assert ask(cold, list(range(_PAGES))) == Found(1, exact=True)
    with cold.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 3 * PAGE, 10 * PAGE)
    assert ask(cold, list(range(8, 32))) == Found(3, exact=True)
    assert resident_pages(cold) == 4


@pytest.mark.parametrize("answer", [None, 0])
def test_where_cachestat_refuses_or_sees_nothing_no_page_is_missed(
    cold: Path, unanswered: None, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    monkeypatch.setattr(page_cache, "_cachestat", lambda _descriptor, _page: answer)
    try:
        asked = ask(cold, list(range(0, _PAGES, 2)))
    except OSError as error:
        pytest.skip(f"RWF_NOWAIT: {error.strerror}")
    # How many of them came in while they were asked for is the storage's matter. No neighbour did.
    assert asked.pages <= _PAGES // 2
    assert resident_pages(cold) <= _PAGES // 2
    assert not asked.exact
    cold.read_bytes()
    assert ask(cold, list(range(_PAGES))) == Found(_PAGES, exact=False)
