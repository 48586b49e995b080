"""Train scikit-learn's SGDClassifier in batches, its parts timed by `iotrace.Timer`: no torch.

python workloads/sklearn_timer.py [--epochs 2] [--batches 10]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from sklearn.linear_model import SGDClassifier

import iotrace


def main() -> None:
    """Write the batches, train on them, print what each part took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batches", type=int, default=10)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    model = SGDClassifier()
    timer = iotrace.Timer()

    @timer("IO")
    def load(path: Path) -> np.ndarray:  # a region of the report, too
        return np.load(path)

    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / f"{number}.npy" for number in range(options.batches)]
        for path in files:
            np.save(path, random.normal(size=(500, 20)))
        for _ in range(options.epochs):
            with timer("Epoch"):
                for data in iotrace.batches(map(load, files)):
                    timer.start("Batch")
                    with timer("Forward"):
                        label = data.sum(axis=1) > 0
                    model.partial_fit(data, label, classes=[False, True])
                    timer.end("Batch")
    for key, times in timer.times().items():
        print(f"{key}: {times.calls} calls, mean {times.mean_ms:.2f} ms, 95 % below {times.p95_ms:.2f} ms")


if __name__ == "__main__":
    main()
