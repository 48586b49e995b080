"""What a wait is called in the timeline: by the file, or the directory of the files, that it is due to."""

from __future__ import annotations

import pytest

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.timeline.build import _find_file
from iotrace.timeline.model import file_label


@pytest.mark.parametrize(
    ("decode_ns", "label"),
    [
        ({"/data/a.h5": 70.0, "/data/b.h5": 30.0}, "a.h5"),
        ({f"/data/harbour/{number}.jpg": 30.0 for number in range(3)}, "harbour/ (3 files)"),
        ({"/d/b/1": 5.0} | {f"/d/a/{number}": 30.0 for number in range(3)}, "a/ (3 files)"),
        ({"/d/b/1": 25.0} | {f"/d/a/{number}": 30.0 for number in range(3)}, "d/ (4 files)"),
        ({"/data/a/1.jpg": 30.0, "/data/b/2.jpg": 40.0, "/data/c/3.jpg": 30.0}, "data/ (3 files)"),
        ({f"/data/x.zarr/0/c/{number}": 30.0 for number in range(3)}, "x.zarr/0/c/ (3 files)"),
        ({"/a/1": 30.0, "/b/2": 40.0, "c/3": 30.0}, "3 files"),
        ({"1": 30.0, "2": 40.0, "3": 30.0}, "3 files"),
    ],
)
def test_files_of_a_like_share_are_told_by_their_directory(decode_ns: dict[str, float], label: str) -> None:
    delivery = Delivery(0, 0, 0, 0, 0, 0, 100)
    costs = {path: [0.0, spent, 0.0] for path, spent in decode_ns.items()}
    found = _find_file(Explained(delivery, dict.fromkeys(CAUSES, 0) | {"decode": 100}, costs))
    assert found is not None
    assert file_label(found) == label
