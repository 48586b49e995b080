"""Write the table of docs/reliability.md: python -m tests.faults"""

from tests.faults.rows import DOCUMENT, documented, table

before, _, after = documented()
DOCUMENT.write_text(before + table() + after)
