"""The table of files: what was read, and how it says that not all of it was seen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from iotrace.analysis.results import FileIo, Io
from iotrace.report.terminal_system import print_io


def shown(coverage: float | None) -> list[str]:
    names = ("data/" + "long" * 12 + ".npy", "b.npy")
    files = [
        FileIo(
            path=name,
            opens=24,
            reads=1234,
            read_bytes=100 * 1024,
            read_ms_total=1345.6,
            writes=1,
            write_bytes=100 * 1024,
            metadata_ms_total=12.5,
            sequential_fraction=None,
            reread_fraction=None,
            by_worker={},
        )
        for name in names
    ]
    console = Console(file=io.StringIO(), width=80)
    print_io(Io(coverage=coverage, calls=15, bytes=0, ms_total=1.0, files=files, processes=[]), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_bytes_are_a_lower_bound_where_the_kernel_counted_more() -> None:
    lines = shown(0.05)
    rows = [line for line in lines if ".npy" in line and "KiB" in line]
    assert len(rows) == 2
    assert all("≥ 100.0 KiB" in row and row.rstrip().endswith("100.0 KiB") for row in rows)
    assert len({row.index("≥") for row in rows}) == 1
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "not seen 95 % of the bytes that the kernel counted as read" in text
    assert "coverage" not in text


@pytest.mark.parametrize(("coverage", "told"), [(0.96, "96 %"), (1.0, "100 %"), (None, "unknown")])
def test_bytes_stand_alone_where_nearly_all_was_seen_or_that_is_unknown(
    coverage: float | None, told: str
) -> None:
    text = "\n".join(shown(coverage))
    assert "≥" not in text
    assert "not seen" not in text
    assert f"coverage of the kernel's own account: {told}" in text
