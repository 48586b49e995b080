"""How much of the data the doctor says is in memory."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from iotrace import page_cache
from iotrace.doctor.checks.storage import Files, check_page_cache, find
from iotrace.doctor.results import CachedFile, Check
from iotrace.report.doctor import _print_check
from tests.support.pagecache import drop, resident_pages, write


def test_the_page_cache_of_files_just_written(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", bytes(1 << 20))
    assert resident_pages(tmp_path / "a.bin") == 256
    check = check_page_cache(tmp_path)
    assert check.status == "ok"
    assert check.what.startswith("about 100 % of 1.0 MiB")
    assert check_page_cache(tmp_path / "none").status == "unknown"


def test_asking_for_the_page_cache_does_not_fill_it(tmp_path: Path) -> None:
    path = tmp_path / "cold.bin"
    write(path, os.urandom(16 << 20))
    drop(path)
    assert check_page_cache(path).what.startswith("about 0 % of 16.0 MiB")
    assert resident_pages(path) <= 1  # one page is read to see that the kernel tells


def test_without_cachestat_the_share_is_at_most_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_cachestat", lambda _descriptor, _page: None)
    path = tmp_path / "cold.bin"
    write(path, os.urandom(16 << 20))
    check = check_page_cache(path)
    if check.status == "unknown":
        pytest.skip(check.why)
    assert check.what.startswith("at most 100 % of 16.0 MiB")
    drop(path)
    assert "% of 16.0 MiB" in check_page_cache(path).what
    # The 256 pages that were asked for may come; with their neighbours it would be nearly all 4096.
    assert resident_pages(path) <= 256


def test_one_large_file_is_judged_by_all_its_pages_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "half.bin"
    write(path, os.urandom(16 << 20))
    drop(path, offset=8 << 20)
    percent = int(check_page_cache(path).what.split()[1])
    assert 34 <= percent <= 66  # 256 pages by chance: five standard deviations are 16 %


def test_a_size_is_a_lower_bound_where_not_all_was_looked_at(tmp_path: Path) -> None:
    for number in range(4001):
        (tmp_path / str(number)).write_bytes(b"x" * (number % 2))
    found = find(tmp_path, time.monotonic() + 60)
    assert not found.all
    assert 1900 <= sum(found.sizes.values()) <= 2001
    assert "at least " in check_page_cache(tmp_path).what or check_page_cache(tmp_path).status == "unknown"
    folders = tmp_path / "folders"
    for number in range(4001):
        (folders / str(number)).mkdir(parents=True)
    (folders / "0" / "x").write_bytes(b"x")
    assert find(folders, time.monotonic() + 60) == Files({folders / "0" / "x": 1}, all=True)
    late = find(tmp_path, time.monotonic())
    assert (late.sizes, late.all) == ({}, False)
    assert find(tmp_path / "1", 0).all


def test_each_of_the_largest_files_is_sampled_by_itself(tmp_path: Path) -> None:
    # A kernel may hold 2 MiB as one folio, which it drops whole or not at all.
    for name, size in (("cold.bin", 16 << 20), ("warm.bin", 12 << 20), ("half.bin", 8 << 20)):
        write(tmp_path / name, os.urandom(size))
    drop(tmp_path / "cold.bin")
    drop(tmp_path / "half.bin", offset=4 << 20)
    told = {Path(file.path).name: file for file in check_page_cache(tmp_path).files}
    if any(file.resident_fraction is None for file in told.values()):
        pytest.skip(told["cold.bin"].why)
    assert list(told) == ["cold.bin", "warm.bin", "half.bin"]
    assert {file.sampled_pages for file in told.values()} == {256}
    # One page is read where nothing was found yet, to see that the kernel tells.
    assert told["cold.bin"].resident_fraction <= 1 / 256  # type: ignore[operator]
    assert told["warm.bin"].resident_fraction == 1
    # What the kernel kept of it, it says itself: it may have dropped more than was asked for.
    kept = resident_pages(tmp_path / "half.bin") / 2048
    assert abs((told["half.bin"].resident_fraction or 0) - kept) <= 0.16
    assert (told["half.bin"].bytes, told["half.bin"].why) == (8 << 20, "")


def test_a_share_that_the_kernel_does_not_tell_is_absent_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_CACHESTAT", 1 << 20)  # a call that no kernel has: a real ENOSYS
    write(tmp_path / "a.bin", bytes(1 << 20))
    (told,) = check_page_cache(tmp_path).files
    assert (told.resident_fraction, told.sampled_pages) == (None, 0)
    assert told.why == "this kernel has no cachestat (Linux 6.5 has)"
    check = check_page_cache(tmp_path)
    console = Console(file=io.StringIO(), width=1000)
    _print_check(check, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"? of 1.0 MiB: {tmp_path}/a.bin ({told.why})" in shown


@pytest.mark.parametrize(
    ("shares", "told"),
    [((1.0, 0.98, 0.92), False), ((0.0, 0.04), False), ((1.0, 0.0), True), ((None, 0.0), True)],
)
def test_files_are_listed_only_where_they_differ(shares: tuple[float | None, ...], told: bool) -> None:
    files = [CachedFile(f"d/{at}.bin", 1 << 30, 256, share) for at, share in enumerate(shares)]
    written = io.StringIO()
    _print_check(Check("page-cache", "ok", "in memory", files=files), Console(file=written, width=80))
    assert ("d/0.bin" in written.getvalue()) == told
