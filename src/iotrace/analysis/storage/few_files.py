"""Few files that make up most of the time of their group: large images, one compressed otherwise.

The making of batches counts, not the waits: which batch a loop waits for is chance. So is which file a maker
reads when it loses its CPU: such time is not what makes a file dear.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FewFiles, FileGroup
from iotrace.analysis.storage.directories import group_of
from iotrace.analysis.wait.cpus import cpu_waits
from iotrace.analysis.wait.gain_bound import MOST

_FEWEST = 10  # of a group's files: of fewer none are few
_FEW = 0.1  # of a group's files
_MOSTLY = 0.5  # of a group's time
_LIKE = 0.5  # of the mean of those before: so dear is one of them
_DEARER = 3.0  # times the median of the others, each time that a batch needs it
# By path: ns of all batches, batches that need it, and of those ns what was no wait for a CPU, at least.
Costs = dict[str, tuple[float, int, float]]


def with_few_files(groups: Sequence[FileGroup], analysis: RankAnalysis) -> list[FileGroup]:
    """Add to each group the few files that make up most of its time; of one file: of its directory's."""
    names, of_group = {group.path for group in groups}, defaultdict[str, Costs](dict)
    costs = _costs(analysis)
    for path, cost in costs.items():
        if (own := group_of(path, names)) is not None:
            of_group[own][path] = cost
    found = []
    for group in groups:
        few = few_files(of_group[group.path])
        if few is None and group.path in costs:  # it stands alone, as it costs most of its directory
            directory = os.path.dirname(group.path)
            beside = {path: cost for path, cost in costs.items() if os.path.dirname(path) == directory}
            dear = few_files(beside)
            few = dear if dear is not None and dear.paths == [group.path] else None
        found.append(replace(group, few=few))
    return found


def few_of_directories(analysis: RankAnalysis) -> frozenset[str]:
    """The files that are among the few, at least two, which make up most of their directory's time."""
    of_directory = defaultdict[str, Costs](dict)
    for path, cost in _costs(analysis).items():
        of_directory[os.path.dirname(path)][path] = cost
    found = filter(None, map(few_files, of_directory.values()))
    return frozenset(path for few in found if len(few.paths) > 1 for path in few.paths)


def few_files(costs: Costs) -> FewFiles | None:
    """Find the few of a group's files that make up most of its cost; None where there are none."""
    ordered = sorted(costs, key=lambda path: -costs[path][0])
    if len(ordered) < _FEWEST:
        return None
    spent_ns = np.array([costs[path][0] for path in ordered])
    reached, whole_ns = np.cumsum(spent_ns), float(spent_ns.sum())
    count = int(np.searchsorted(reached, _MOSTLY * whole_ns)) + 1
    while count < len(ordered) and spent_ns[count] >= _LIKE * reached[count - 1] / count:
        count += 1
    dear, others = (
        ordered[:count],
        [spent / times for spent, times, _ in map(costs.__getitem__, ordered[count:])],
    )
    least_ns = min(least / times for _, times, least in map(costs.__getitem__, dear))
    if count > _FEW * len(ordered) or least_ns < _DEARER * median(others):
        return None
    fraction = float(reached[count - 1]) / whole_ns
    return FewFiles(paths=ordered[:count], of=len(ordered), fraction=fraction)


def _costs(analysis: RankAnalysis) -> Costs:
    if analysis.source is None:
        return {}
    waits = analysis.explained(analysis.source)
    made = waits.made_files
    spent_ns = made.parts.sum(axis=1)
    worth = spent_ns > 0
    totals = np.bincount(made.file[worth], spent_ns[worth], len(made.names.paths))
    delays_ns = np.zeros(len(waits))
    known = cpu_waits(analysis.rank, waits.between(0, MOST)).sum(axis=1)
    delays_ns[: len(known)] = np.nan_to_num(known)
    least_ns = np.maximum(0.0, spent_ns - delays_ns[made.owner])
    leasts = np.bincount(made.file[worth], least_ns[worth], len(made.names.paths))
    times = np.bincount(made.file[worth], minlength=len(made.names.paths))
    paths = {made.names.paths[file]: file for file in np.flatnonzero(times).tolist()}
    directories = {os.path.dirname(path) for path in paths}  # what is listed is no file
    found = {path: file for path, file in paths.items() if path not in directories}
    return {
        path: (float(totals[file]), int(times[file]), float(leasts[file])) for path, file in found.items()
    }
