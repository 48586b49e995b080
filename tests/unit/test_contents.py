"""What a batch consists of: its tensors, and how far its samples were filled up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.agent.dataloader.contents import contents_of, padding_of

_TEXTS = [np.zeros(length) for length in (3, 5, 10)]
_SIGNALS = [np.zeros((4, length)) for length in (3, 5, 10)]


@pytest.mark.parametrize(
    ("samples", "batch"),
    [
        (_TEXTS, np.zeros((3, 10))),
        (_TEXTS, np.zeros((10, 3))),
        ([(text, 1) for text in _TEXTS], (np.zeros((3, 10)), np.zeros(3))),
        (_SIGNALS, np.zeros((3, 4, 10))),
        ([{"ids": [1] * length, "label": 0} for length in (3, 5, 10)], {"ids": np.zeros((3, 10))}),
        # How alike each two of them are is no padding, however large it is.
        ([*_TEXTS, *_TEXTS, *_TEXTS, *_TEXTS], (np.zeros((12, 10)), np.zeros((12, 12)))),
    ],
)
def test_padding_is_known_by_the_samples(samples: Any, batch: Any) -> None:
    times = len(samples) // 3
    assert padding_of(samples, batch) == (3 * times, 10, 18 * times, times * (9 + 25 + 100))


def test_an_attention_mask_tells_padding() -> None:
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0]])
    held = {"input_ids": np.zeros((2, 4)), "attention_mask": mask}
    assert padding_of([{"input_ids": [1] * 4}] * 2, held) == (2, 4, 5, 13)


@pytest.mark.parametrize(
    ("samples", "batch"),
    [
        ([np.zeros(4)] * 3, np.zeros((3, 4))),  # of one length
        # Padded boxes are little beside the images.
        (
            [{"image": np.zeros((3, 8, 8)), "boxes": np.zeros((count, 4))} for count in (1, 2, 3)],
            {"image": np.zeros((3, 3, 8, 8)), "boxes": np.zeros((3, 3, 4))},
        ),
        # Texts of unequal lengths, each as one vector.
        ([[1] * length for length in (3, 5, 10)], np.zeros((3, 768))),
        ([np.zeros(length) for length in (3, 5, 6, 7)] * 2, np.zeros((8, 8))),  # how alike each two are
        (_TEXTS, np.zeros(18)),  # one behind the other
        ([1, 2], np.zeros(2)),
        (None, None),
    ],
)
def test_no_padding_is_told(samples: Any, batch: Any) -> None:
    assert padding_of(samples, batch) is None


def test_tensors_are_counted() -> None:
    torch = pytest.importorskip("torch")
    each = torch.zeros(4)
    assert contents_of((torch.zeros(8), [{"box": each, "id": 1, "text": "a"}] * 3)) == (32 + 3 * 16, 4)
    assert contents_of([[each] * 300] * 2) == (600 * 16, 600)
    assert contents_of([[1] * 1000] * 3) == (-1, 0)
    assert contents_of(np.zeros(4, np.uint8)) == (4, 0)
