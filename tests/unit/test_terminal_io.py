"""The table of files: what was read, and how it says that not all of it was seen."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from iotrace.analysis.results import FileIo, Io
from iotrace.report.layout import LABEL_WIDTH, print_blocks
from iotrace.report.terminal_system import io_blocks


def shown(
    coverage: float | None, why: str | None = "code is not traced", **changes: int | str | None
) -> list[str]:
    names = ("data/" + "long" * 12 + ".npy", "b.npy")
    files = [
        FileIo(
            path=name,
            opens=24,
            maps=0,
            reads=1234,
            read_bytes=100 * 1024,
            read_ms_total=1345.6,
            writes=1,
            write_bytes=100 * 1024,
            metadata_ms_total=12.5,
            sequential_fraction=None,
            reread_fraction=None,
            by_worker={},
            group=name,
        )
        for name in names
    ]
    console = Console(file=io.StringIO(), width=80)
    files = [msgspec.structs.replace(file, **changes) for file in files]
    found = Io(
        coverage=coverage, unseen_because=why, calls=15, bytes=0, ms_total=1.0, files=files, processes=[]
    )
    print_blocks(io_blocks(found), console, LABEL_WIDTH)
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
    assert "not seen 95 % of the bytes that the kernel counted as read: code is not traced" in text
    assert "traced:" not in text


@pytest.mark.parametrize(("coverage", "told"), [(0.96, "96 %"), (1.0, "100 %"), (None, "how much")])
def test_bytes_stand_alone_where_nearly_all_was_seen_or_that_is_unknown(
    coverage: float | None, told: str
) -> None:
    text = " ".join(" ".join(shown(coverage)).split())
    assert "≥" not in text
    assert "not seen" not in text
    assert f"traced: {told} of the bytes that the kernel counts as read" in text
    assert ("is unknown" in text) == (coverage is None)


def test_unknown_bytes_are_no_bytes() -> None:
    row = next(line for line in shown(1.0, reads=0, read_bytes=None, read_ms_total=None) if "b.npy" in line)
    assert row.split() == ["b.npy", "24", "0", "?", "B", "?", "12.5", "ms", "100.0", "KiB"]


def test_a_mapped_file_was_read_beyond_its_calls() -> None:
    row = next(line for line in shown(1.0, maps=1) if "b.npy" in line)
    assert "≥ 100.0 KiB" in row


def test_nothing_is_said_of_unseen_bytes_where_no_data_was_read() -> None:
    text = "\n".join(shown(0.0, None, reads=0, read_bytes=0, read_ms_total=0.0))
    assert "not seen" not in text
    assert "traced:" not in text
    assert "≥" not in text


def test_temporary_files_are_not_listed() -> None:
    text = "\n".join(shown(1.0, group=None))
    assert ".npy" not in text
    assert "more files" not in text
