"""Images that samples decode: whether they are made smaller, and what ends where they are stored so."""

from __future__ import annotations

from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.wait.gain_bound import FILES, RESIZED

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_SMALL = 16 << 10  # bytes of an encoded image
_AS_FLOATS = 3.9  # bytes of a sample for each of its images, if these keep their size
_RESIZES, _RESIZING = "PIL", ("resize", "thumbnail", "reduce")


def ended_resizing(facts: LoaderFacts) -> float:
    """What of the transform is the resizing of images that would be smaller; 0: it is not seen that it is.

    A crop is resized then, too: as its bytes are to those of an image, as far as both are known. Of floats
    there are fewer values than bytes.
    """
    images_bytes, batch_bytes = facts.making.image_bytes, facts.batch_bytes
    if facts.hot_in != _RESIZES or not facts.hot_line.endswith(_RESIZING):
        return 0.0
    if not images_bytes or not batch_bytes or not facts.samples:
        return facts.hot_share
    return facts.hot_share * max(0.0, 1 - batch_bytes / facts.samples / images_bytes)


def with_resizing(facts: LoaderFacts, resized: float) -> float:
    """The share of reading, decoding and the transform that ends with reading, decoding and resizing."""
    files_ms, all_ms = (facts.gains_ms.get(gone) for gone in (FILES, RESIZED))
    if files_ms is None or not all_ms:
        files_ms = facts.causes_ms.get("read", 0.0) + facts.causes_ms.get("decode", 0.0)
        all_ms = files_ms + facts.causes_ms.get("transform", 0.0)
    return (files_ms + resized * max(0.0, all_ms - files_ms)) / all_ms if all_ms else 1.0


def have_their_size(facts: LoaderFacts) -> bool:
    """Whether a sample has a float for each byte of its images: they are not made smaller for it."""
    images_bytes, batch_bytes = facts.making.image_bytes, facts.batch_bytes
    if not images_bytes or not batch_bytes or not facts.samples:
        return False
    return batch_bytes / facts.samples >= _AS_FLOATS * images_bytes


def are_small(facts: LoaderFacts) -> bool:
    """Whether the files that are decoded are thumbnails, by their bytes: there is nothing to make smaller."""
    read = [(each.read_bytes, each.opens) for each in facts.files if each.opens and each.read_bytes]
    return bool(read) and sum(size for size, _ in read) < _SMALL * sum(opens for _, opens in read)
