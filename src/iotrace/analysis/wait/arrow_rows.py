"""What taking rows of Hugging Face's datasets consists of: an Arrow file holds columns as they are."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.page_faults import holder
from iotrace.analysis.wait.production import outermost
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process

_TAKEN = "datasets.Dataset._getitem"
_LISTED = "datasets.PythonArrowExtractor."
_OF_DATASETS = "datasets."


def arrow_rows(analysis: RankAnalysis) -> tuple[float, float]:
    """Return shares of the time in which rows are taken: making Python's objects of them, only copying.

    The rest decodes what a column holds, such as images. Both are 0 where no rows were taken.
    """
    taken_ns = listed_ns = decoded_ns = 0
    for process in analysis.rank.processes:
        spans = process.spans[process.spans["kind"] == KIND_READ_PATH]
        taken = spans[_named(process, spans, _TAKEN)]
        if not len(taken):
            continue
        within = spans[holder(taken, spans["start_ns"], spans["tid"]) >= 0]
        of_datasets = _named(process, within, _OF_DATASETS)
        decoding = within[outermost(within, ~of_datasets)]
        taken_ns += int(taken["duration_ns"].sum())
        listed_ns += int(within["duration_ns"][_named(process, within, _LISTED)].sum())
        decoded_ns += int(decoding["duration_ns"].sum())
    if not taken_ns:
        return 0.0, 0.0
    return listed_ns / taken_ns, max(0.0, 1 - (listed_ns + decoded_ns) / taken_ns)


def _named(process: Process, spans: Columns, prefix: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    numbers = [number for number, text in process.texts.items() if text.startswith(prefix)]
    return np.isin(spans["name"], np.array(numbers, np.int64))
