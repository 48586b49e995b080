"""Numbers of loaders and of passes over them in this process, whoever makes them."""

from __future__ import annotations

from itertools import count

next_loader = count().__next__
next_iterator = count().__next__
