"""Made-up texts of every character that UTF-8 can hold."""

from functools import partial

from hypothesis import strategies as st

# The same as hypothesis's own, which encodes every character there is to find these: 3 s in a fresh checkout.
any_text = partial(st.text, st.characters(exclude_categories=["Cs"]))
