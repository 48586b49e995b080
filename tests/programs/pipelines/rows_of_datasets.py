"""Rows of a datasets.Dataset, mapped while the loop iterates it; four rows are a batch."""

import os
import time

import clock
import numpy
from datasets import Dataset

KNOWN = {"steps": 40, "unknown": "allowed", "torch": False, "needs": ["datasets"]}

os.makedirs("data")
rows = Dataset.from_dict({"number": list(range(160))})


def slow(row: dict) -> dict:
    time.sleep(0.005)
    return {"squared": row["number"] ** 2}


batch = []
asked = clock.now()
for row in rows.to_iterable_dataset().map(slow):
    batch.append(row["squared"])
    if len(batch) == 4:
        clock.waited(asked)
        numpy.mean(batch)
        time.sleep(0.005)
        batch = []
        asked = clock.now()
