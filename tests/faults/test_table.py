"""docs/reliability.md shows the rows that there are."""

from __future__ import annotations

from tests.faults.rows import documented, table


def test_the_table_of_the_document_is_that_of_the_tests() -> None:
    _, found, _ = documented()
    assert found == table(), "write it anew: python -m tests.faults"
