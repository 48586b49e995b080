"""Sums of kernels and operators, held against SQL over Perfetto's own importer.

``pytest --traces DIR tests/unit/test_sums_by_sql.py`` does so for every trace in DIR. The importer drops a
slice that overlaps another on its track without lying in it, and counts those: of what we sum up no more than
so many calls may be missing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from iotrace.analysis.device.accelerator import accelerator_of
from iotrace.analysis.device.activity import Activity
from iotrace.sources.kineto.reader import read_kineto
from tests.support import perfetto
from tests.support.traces import SHARED

_SMALL = ("nccl_2ranks_rank0.json.gz", "mi210_gpu_only.json.gz")
# Ranges had the category of operators before torch 1.12.
_OPERATOR = """a.category in ('cpu_op', 'Operator') and not (a.name glob 'ProfilerStep*'
    or a.name glob 'enumerate(*' or a.name glob 'nccl:*' or a.name glob 'module:*')"""
_AROUND = f"""(select a.id from ancestor_slice({{}}.id) a where {_OPERATOR} order by a.depth desc limit 1)"""
KERNELS = "select name, count(*), sum(dur) from slice where category in ('kernel', 'Kernel') group by 1"
HOST = f"""
with op as materialized (select a.id, a.name, a.dur, {_AROUND.format("s")} as parent
                         from slice s join slice a using (id) where {_OPERATOR}),
inside as materialized (select parent, sum(dur) as dur from op group by 1)
select op.name, count(*), sum(op.dur - coalesce(inside.dur, 0))
from op left join inside on inside.parent = op.id group by 1"""
DEVICE = f"""
with launch as materialized (select id, extract_arg(arg_set_id, 'args.correlation') as number from slice
    where category in ('cuda_runtime', 'cuda_driver', 'Runtime')),
work as materialized (select extract_arg(arg_set_id, 'args.correlation') as number, sum(dur) as dur from slice
    where category in ('kernel', 'Kernel', 'gpu_memcpy', 'gpu_memset', 'Memcpy', 'Memset') group by 1),
own as materialized (select work.dur, {_AROUND.format("launch")} as op from launch join work using (number))
select name, sum(own.dur) from own join slice on slice.id = op group by 1"""
DROPPED = "select coalesce(sum(value), 0) from stats where name = 'slice_drop_overlapping_complete_event'"
_Sums = Mapping[str, tuple[int, float]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--traces")
    if given is not None:
        files = (path for path in Path(given).iterdir() if path.name.endswith((".json", ".json.gz")))
        traces = sorted(path for path in files if path.name != "reference.json")  # others' figures
    else:
        traces = [] if SHARED is None else [SHARED / name for name in _SMALL]
    metafunc.parametrize("source", traces, ids=[path.name for path in traces])


@pytest.mark.timeout(600)
def test_sums_are_those_of_sql_over_perfettos_importer(tmp_path: Path, source: Path) -> None:
    trace = tmp_path / source.name
    trace.write_bytes(source.read_bytes())
    found = accelerator_of([Activity(read_kineto(trace))])
    kernels, host, device, ((dropped,),) = perfetto.query(trace, KERNELS, HOST, DEVICE, DROPPED)
    if found is None:
        assert kernels == []
        return
    missing = 0
    ours = {one.name: (one.calls, one.total_us * 1000) for one in found.kernels}
    missing += _missing(ours, {name: (calls, total) for name, calls, total in kernels})
    ours = {one.name: (one.calls, one.host_self_us * 1000) for one in found.operators}
    theirs = {name: (calls, total) for name, calls, total in host}
    missing += _missing(ours, theirs, own_only=bool(dropped))
    assert missing <= dropped
    if not dropped:
        sums = {one.name: one.device_self_us * 1000 for one in found.operators if one.device_self_us}
        assert sums == pytest.approx(dict(device), abs=1000)


def _missing(ours: _Sums, theirs: _Sums, own_only: bool = False) -> int:
    """Count the calls that the importer lacks; sums of a name with all its calls agree, to some ns a call.

    With `own_only` they are times without what lies inside: what the importer lacks inside adds to its sums.
    """
    assert set(theirs) <= set(ours)
    missing = 0
    for name, (calls, total) in ours.items():
        known, sum_of_known = theirs.get(name, (0, 0.0))
        assert known <= calls
        missing += calls - known
        if known == calls:
            assert total <= sum_of_known + 2 * calls, name
            assert own_only or total >= sum_of_known - 2 * calls, name
    return missing
