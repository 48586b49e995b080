"""Sizes, rates, times, shares and counts as text: one unit system in every command's output.

Sizes are binary (1 KiB is 1024 bytes), as memory and file systems report them; rates follow sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Value = TypeVar("_Value")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_TIMES = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))


def size(count: float) -> str:
    """Format `count` bytes with one decimal: ``512 B``, ``1.5 MiB``."""
    value = float(count)
    for unit in _SIZES[:-1]:
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_SIZES[-1]}"


def rate(count: float, seconds: float) -> str:
    """Format `count` bytes in `seconds` as bytes per second; empty where no time passed."""
    return f"{size(count / seconds)}/s" if seconds > 0 else ""


def duration(time_ns: float) -> str:
    """Format a time in ns with three digits, in the largest unit that it reaches: ``1.25 ms``."""
    for unit, length_ns in _TIMES:
        if abs(time_ns) >= length_ns:
            return f"{time_ns / length_ns:.3g} {unit}"
    return f"{time_ns:.3g} ns"


def time_span(seconds: float) -> str:
    """Format how long a run took, or how long ago one was: ``1.5 s``, ``3 min 5 s``, ``4 d 2 h``."""
    whole = round(seconds)
    if seconds < 0.05:
        return "< 0.1 s"
    if whole < 10 and round(seconds, 1) != whole:
        return f"{seconds:.1f} s"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, length)
        parts.append(f"{count} {unit}" if count else "")
    first = next((number for number, part in enumerate(parts) if part), len(parts) - 1)
    return " ".join(part for part in parts[first : first + 2] if part) or "0 s"


def milliseconds(time_ms: float) -> str:
    """Format a time in ms with one decimal: figures of a step stay comparable in one unit."""
    return f"{time_ms:.1f} ms"


def length(time_ms: float) -> str:
    """Format the length of a piece of a run: in ms, in s where ms would be unreadable."""
    return milliseconds(time_ms) if time_ms < 10_000 else f"{time_ms / 1000:.1f} s"


def decimals(most: float) -> int:
    """How many decimals a column of figures needs whose largest is `most`: 1, more where all are small."""
    return next((count for count, least in ((1, 5.0), (2, 0.5), (3, 0.05)) if most >= least or not most), 4)


def fixed(value: float, most: float) -> str:
    """Format a figure of a column whose largest is `most`, with the decimals that the column needs."""
    return f"{value:.{decimals(most)}f}"


def signed(change: float, digits: int = 1) -> str:
    """Format a change with its sign, which nothing has: ``+1.5``, ``0.0``."""
    text = f"{change:+.{digits}f}"
    return text if float(text) else text[1:]


def digits(value: float, count: int = 3) -> str:
    """Format a figure with so many digits, whole where it is larger: ``2.5``, ``213``, never ``2.1e+02``."""
    text = f"{value:.{count}g}"
    return f"{value:.0f}" if "e+" in text else text


def grown(change_pct: float, around_pct: float | None = None) -> str:
    """Format a change in percent with two digits, as a factor from twice as much on: ``+9.5 %``, ``3.7x``.

    `around_pct`: the change whose bound it is, which has the same form.
    """
    if (change_pct if around_pct is None else around_pct) >= 100:
        return f"{digits(1 + change_pct / 100, 2)}x"
    return f"{signed(change_pct, 1 if abs(change_pct) < 9.95 else 0)} %"


def three_digits(value: float) -> str:
    """Format a figure with three digits, whole from 100 on, in groups: ``2.5``, ``213``, ``21,300``."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def one_decimal(value: float) -> str:
    """Format a figure with one decimal, without its unit."""
    return f"{value:.1f}"


def percent(fraction: float) -> str:
    """Format a share of 1 in whole percent: ``12 %``."""
    return f"{100 * fraction:.0f} %"


def shared_out(whole: int, amounts: Sequence[int]) -> list[int]:
    """Share a whole number out by amounts in whole numbers that sum to it, by the largest remainders."""
    total = sum(amounts)
    shares = [whole * amount // total for amount in amounts]
    by_remainder = sorted(range(len(amounts)), key=lambda at: -(whole * amounts[at] % total))
    for at in by_remainder[: whole - sum(shares)]:
        shares[at] += 1
    return shares


def bounds(least_pct: float | None, most_pct: float) -> str:
    """Format a share in percent of which a lower and an upper bound are known: ``1 to 3 %``."""
    least, most = f"{least_pct or 0.0:.0f}", f"{most_pct:.0f}"
    if least == most:
        return f"about {most} %"
    return f"up to {most} %" if least == "0" else f"{least} to {most} %"


def if_known(value: _Value | None, form: Callable[[_Value], str] = str, absent: str = "") -> str:
    """Format a value with `form`; `absent` where it is unknown."""
    return absent if value is None else form(value)


def many(count: int) -> str:
    """Return a large count in short: ``3.0 million``, ``60 thousand``."""
    if count >= 1_000_000:
        return f"{count / 1e6:.1f} million"
    return f"{count / 1e3:.0f} thousand" if count >= 10_000 else str(count)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: ``1 slice``, ``2 slices``; `plural` where it is irregular."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def with_article(name: str) -> str:
    """Put ``a`` or ``an`` before the name of a class, by its first letter."""
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"
