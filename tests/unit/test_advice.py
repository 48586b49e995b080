"""Advice: each rule fires where its ground is there, and is silent where one part of it is not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from iotrace.analysis.results import ChunkedArray, FileGroup, GainRow, WholeReads
from iotrace.analysis.rules.advice import unsilenced
from iotrace.analysis.rules.facts.examples import facts_of, fill
from iotrace.analysis.rules.facts.loader import FileFacts, LoaderFacts
from iotrace.analysis.rules.facts.making import LockWait, Making
from iotrace.analysis.rules.model import Finding, rule_of
from iotrace.analysis.wait.cpus import beside_sleep
from iotrace.analysis.wait.wait_code import WaitCode
from tests.support.results import unknown
from tests.support.rules import recommend

MIB = 1 << 20


def facts(cause: str = "transform", **known: Any) -> LoaderFacts:
    """A loader of 2 workers whose wait, 50 of 100 ms a step, has one cause; a machine with room."""
    found = facts_of(rule_of("IO103"), {"cause": cause, **known})
    assert isinstance(found, LoaderFacts)
    return found


def file(path: str, read_ms: float = 0.0, decode_ms: float = 0.0, **known: Any) -> FileFacts:
    costs = {"ms": read_ms + decode_ms, "read_ms": read_ms, "decode_ms": decode_ms, "transform_ms": 0.0}
    return FileFacts(path=path, **{**costs, **known})


def advised(*loaders: LoaderFacts) -> dict[str, str]:
    return {item.id: item.text for item in recommend(list(loaders))}


def test_no_wait_no_advice() -> None:
    assert advised() == {}
    assert advised(facts(wait_ms=4.0, causes_ms={"transform": 4.0}, unmade_fraction=0.0)) == {}


def test_gain_evidence_and_severity_are_the_figures() -> None:
    (item,) = recommend([facts(unmade_fraction=0.0)])
    assert (item.id, item.severity, item.gain_ms_per_step) == ("transform-bound", "high", 50.0)
    assert item.evidence == {"transform_ms": 50.0}
    assert "transform costs 50.0 ms of wait a step" in item.text
    (item,) = recommend([facts(causes_ms={"transform": 15.0}, wait_ms=15.0, unmade_fraction=0.0)])
    assert item.severity == "medium"


def test_what_a_fix_spares_costs_stands_beside_its_gain() -> None:
    files = [file("d/a.h5", read_ms=2.0, decode_ms=30.0), file("d/b.h5", decode_ms=1.0)]
    known = {"causes_ms": {"decode": 31.0, "read": 2.0, "queued": 3.0}, "files": files}
    for gains_ms, cost_ms in (({"files:d/a.h5": 45.0}, 32.0), ({}, None)):
        (item,) = recommend([facts(unmade_fraction=0.0, gains_ms=gains_ms, **known)])
        assert (item.id, item.cost_ms_per_step) == ("decode-bound", cost_ms)
    several = [file(f"d/{number}.csv", decode_ms=10.0) for number in range(3)]
    known = {"causes_ms": {"decode": 30.0, "read": 5.0, "queued": 3.0}, "files": several}
    (item,) = recommend([facts(unmade_fraction=0.0, gains_ms={"files": 48.0}, **known)])
    assert item.cost_ms_per_step == 35.0
    (item,) = recommend([facts(unmade_fraction=0.0, gains_ms={"transform": 50.0})])
    assert item.cost_ms_per_step == 50.0


def test_no_change_gains_more_than_the_making_that_it_spares() -> None:
    """Where no replay says what ends with it: lighter compression spares the decoding, and no reading."""
    store = file("d/a.zarr", 44.0, 6.0, reads=6000, read_bytes=6000 * 500, arrays=[CHUNKS])
    parts = {"causes_ms": {"read": 44.0, "decode": 6.0}, "files": [store], "unmade_fraction": 0.0}
    for wrapped, made_ms, gains in ((True, 50.0, [50.0, 6.0]), (True, 75.0, [50.0, 9.0])):
        found = recommend([facts(wrapped=wrapped, workers=0, made_ms=made_ms, **parts)])
        assert [item.id for item in found] == ["read-bound", "decode-bound"]
        assert [item.gain_ms_per_step for item in found] == pytest.approx(gains)
        assert "in larger chunks (an access reads 256 chunks of 32.0 KiB now)" in found[0].text
    # A replay says so of a DataLoader: that without the decoding, not that without the file.
    gains_ms = {"read": 44.0, "decode": 7.0, "files:d/a.zarr": 50.0}
    found = recommend([facts(gains_ms=gains_ms, **parts)])
    assert [item.gain_ms_per_step for item in found] == [50.0, 7.0]


CHUNKS = unknown(
    ChunkedArray,
    path="d/a.zarr",
    dataset="",
    chunk=[32, 256],
    chunk_bytes=32 << 10,
    accesses=24,
    chunks_touched=6144,
    used_bytes=6 * MIB,
    decoded_at_least_bytes=6 * MIB,
    decoded_at_most_bytes=6 * MIB,
)


@pytest.mark.parametrize(
    ("path", "chunk_bytes", "touched", "is_small"),
    [
        ("d/a.zarr", 1024, 6144, True),
        ("d/a.zarr", 64 << 10, 6144, False),  # they take their time
        ("d/a.zarr", 1024, 240, False),  # ten for an access
        ("d/a.h5", 1024, 6144, True),
        ("d/a.h5", 16 << 10, 6144, False),
    ],
)
def test_many_small_chunks_are_to_be_larger(
    path: str, chunk_bytes: int, touched: int, is_small: bool
) -> None:
    array = replace(CHUNKS, path=path, chunk_bytes=chunk_bytes, chunks_touched=touched)
    store = file(path, 6.0, 44.0, reads=6000, read_bytes=6000 * 500, arrays=[array])
    found = recommend([facts(causes_ms={"read": 6.0, "decode": 44.0}, files=[store], samples=0.24)])
    advice = next(item for item in found if item.id == "decode-bound")
    name = path.removeprefix("d/")
    assert advice.remedy == f"store {name} {'in larger chunks' if is_small else 'with lighter compression'}"
    reads = f"a sample reads 256 chunks of 1.0 KiB (32x256) of {path}: 44.0 ms of wait a step"
    assert advice.text.startswith(reads) == is_small
    # Where another cause is larger, the chunks are no reason of the wait.
    most = {"causes_ms": {"read": 6.0, "decode": 20.0, "transform": 24.0}}
    (advice,) = (
        each for each in recommend([facts(files=[store], samples=0.24, **most)]) if each.id == "decode-bound"
    )
    assert advice.text.startswith("decode costs")


READ = {"files": [file("d/a.npy", read_ms=45.0, reads=1000, read_bytes=4000 * 1024)]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "read it in larger pieces (4.0 KiB each now)"),
        ({"storage_bytes": 1e9, "batches_per_step": 1.0}, "faster or local storage (953.7 MiB a step"),
        ({"files": [file("d/a.jpg", read_ms=45.0, reads=1000, read_bytes=4000 * 1024)]}, ""),
        ({"files": [file("d/a.npy", read_ms=45.0, reads=4, read_bytes=4 * MIB)]}, ""),
        ({"files": [file("d/a.npy", read_ms=45.0)]}, ""),  # mapped: the pieces are not known
        ({"files": [], "storage_bytes": 1e9}, ""),
        ({"files": [file("d/a.npy", read_ms=45.0, reads=4, read_bytes=4 * MIB)], "storage_bytes": 0.0}, ""),
    ],
)
def test_reading(changes: dict[str, Any], said: str) -> None:
    found = advised(facts("read", **{**READ, "unmade_fraction": 0.0, **changes}))
    assert said in found["read-bound"] if said else found == {}


@pytest.mark.parametrize(
    ("path", "read_bytes", "delivered", "said"),
    [
        ("d/a.h5", MIB, 4 * MIB, "lighter compression, or none (1.0 MiB read give 4.0 MiB)"),
        ("d/a.nc", 4 * MIB, MIB, "chunks that match what one sample reads (4.0 MiB are read for 1.0 MiB)"),
        ("d/a.zarr/x", None, None, "if it is compressed"),
        ("d/a.zarr/x", MIB, MIB, "if it is compressed"),
        ("d/a.npy", MIB, MIB, ""),
        ("d/a.jpg", MIB, 4 * MIB, "store the images at the size that training takes"),
        ("d/a.npz", MIB, 4 * MIB, "numpy.save"),
        ("d/a.csv", MIB, 4 * MIB, "Parquet"),
        ("d/a.bin", MIB, 4 * MIB, "decode it once, ahead of training"),
    ],
)
def test_decoding_goes_by_the_format(
    path: str, read_bytes: int | None, delivered: int | None, said: str
) -> None:
    costly = file(path, decode_ms=50.0, read_bytes=read_bytes, delivered_bytes=delivered)
    found = advised(facts("decode", unmade_fraction=0.0, files=[costly]))
    assert said in found["decode-bound"] if said else found == {}
    if said:
        assert f"(all of it in {path})" in found["decode-bound"]
    assert not path.endswith((".npy", ".jpg")) or "chunk" not in found.get("decode-bound", "")


@pytest.mark.parametrize(("opens", "said"), [(4000, "keep its files open"), (4, "keep its datasets")])
def test_what_is_read_to_find_datasets_is_no_matter_of_chunks(opens: int, said: str) -> None:
    looked_up = file(
        "d/a.h5", decode_ms=45.0, reads=4000, read_bytes=4 * MIB, delivered_bytes=MIB, opens=opens
    )
    found = advised(facts("decode", files=[looked_up], batches=100))
    assert said in found["decode-bound"]
    assert "chunk" not in found["decode-bound"]


def test_decoding_of_several_formats_or_of_unknown_files_is_told_in_general() -> None:
    mixed = [file("d/a.h5", decode_ms=25.0), file("d/b.jpg", decode_ms=25.0)]
    for files in (mixed, []):
        found = advised(facts("decode", unmade_fraction=0.0, files=files))
        assert "decode it once, ahead of training" in found["decode-bound"]


def test_a_run_with_free_cpus_is_no_gain() -> None:
    (item,) = recommend([facts("transform", unmade_fraction=0.0, asleep=0.0, on_cpu=0.1, made_ms=900.0)])
    assert item.gain_ms_per_step is None
    assert (
        item.remedy == "run again with a free CPU for each worker: Images waited for a CPU 90 % of the time"
    )
    known = {"unmade_fraction": 0.0, "asleep": 0.0, "on_cpu": 0.1, "made_ms": 900.0, "hot_line": "t.py:9"}
    (item,) = recommend([facts("transform", **known)])
    assert item.remedy.startswith("do less at t.py:9, or run again with a free CPU for each worker: ")


@pytest.mark.parametrize(
    ("changes", "said", "not_said"),
    [
        ({}, "vectorise the rest", "accelerator"),
        ({"accelerated": True}, "or run it on the accelerator", "sleeps"),
        ({"asleep": 0.9, "on_cpu": 0.1}, "its thread sleeps in 90 % of that", "vectorise"),
        # Half of the making is reading, which sleeps, too.
        (
            {"causes_ms": {"transform": 25.0, "read": 25.0}, "asleep": 0.5, "on_cpu": 0.5},
            "vectorise",
            "sleeps",
        ),
        # Decoding computes, the transform sleeps.
        (
            {"causes_ms": {"transform": 20.0, "decode": 30.0}, "asleep": 0.4, "on_cpu": 0.6},
            "its thread sleeps",
            "vectorise",
        ),
        ({"asleep": 0.6, "on_cpu": 0.02}, "its thread sleeps in 60 %", "vectorise"),  # and waits for a CPU
        ({"asleep": 0.0, "on_cpu": 0.1}, "waited for a CPU in 90 %", "vectorise"),  # a busy host
        ({"asleep": 0.05, "on_cpu": 0.05, "threaded": 0.9}, "", ""),
        ({"asleep": None, "on_cpu": None}, "", ""),
    ],
)
def test_transforming(changes: dict[str, Any], said: str, not_said: str) -> None:
    found = advised(facts("transform", **{"unmade_fraction": 0.0, **changes}))
    if not said:
        assert found == {}
        return
    assert said in found["transform-bound"]
    assert not_said not in found["transform-bound"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"collate": "pad_all"}, "whether pad_all computes or sleeps is unknown"),
        ({"collate": "default_collate"}, "a batch of 8.0 MiB is copied"),
        ({"collate": "default_collate", "batch_bytes": 64.0}, "32 small samples are stacked one by one"),
        ({"collate": "default_collate", "batch_bytes": 64.0, "samples": 4.0}, ""),
        ({"collate": "default_collate", "batch_bytes": None}, ""),
        ({"collate": "default_collate", "core_free": False}, ""),
        ({"collate": "default_convert"}, ""),
        ({"collate": ""}, ""),
    ],
)
def test_collating(changes: dict[str, Any], said: str) -> None:
    found = advised(facts("collate", **{"unmade_fraction": 0.0, **changes}))
    assert said in found["collate-bound"] if said else found == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "batches of 8.0 MiB come from the workers: send narrower dtypes"),
        ({"accelerated": True}, "cast them on the accelerator"),
        ({"batch_bytes": 64.0}, ""),
        ({"batch_bytes": None}, ""),
        ({"workers": 0}, ""),
        ({"core_free": False}, ""),
        ({"core_free": None}, ""),
        ({"handed_over": True}, ""),
        # Soon made, they may be made by the loop.
        ({"batch_bytes": 64.0, "made_ms": 70.0}, "50.0 ms a step for batches that workers made in 70.0 ms"),
        ({"batch_bytes": 64.0, "made_ms": 80.0}, ""),
        # The loop may have waited for a CPU to take what lay ready.
        ({"batch_bytes": 64.0, "made_ms": 70.0, "core_free": False}, ""),
        ({"ready": 3.9, "wait_ms": 9.0, "causes_ms": {"transport": 9.0}}, ""),
        ({"batch_bytes": None, "piped_bytes": 1e6}, "return tensors, which lie in shared memory"),
        ({"batch_bytes": None, "piped_bytes": 1e6, "core_free": False}, "976.6 KiB a batch come pickled"),
        ({"batch_bytes": 1e6, "piped_bytes": 1e6}, "not Python objects or arrays"),
        ({"batch_bytes": 8e6, "piped_bytes": 1e6}, "send narrower dtypes"),
        ({"piped_bytes": 1e6, "core_free": False}, ""),
        ({"batch_bytes": 64.0, "made_ms": 70.0, "core_free": None}, ""),
        ({"batch_bytes": 64.0, "made_ms": 70.0, "wrapped": True}, ""),
    ],
)
def test_transport(changes: dict[str, Any], said: str) -> None:
    found = advised(facts("transport", **{"unmade_fraction": 0.0, **changes}))
    assert said in found["transport-bound"] if said else found == {}
    assert "pin" not in found.get("transport-bound", "")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"workers": 0, "prefetch_factor": None},
        {"prefetch_factor": None},
        {"core_free": False},
        {"in_order": False},
        {"wrapped": True},
        {"handed_over": True},
    ],
)
def test_queued(changes: dict[str, Any]) -> None:
    found = advised(facts("queued", **{"unmade_fraction": 0.0, **changes}))
    if changes:
        assert found == {}
    else:
        assert "raise prefetch_factor above 2" in found["queued-bound"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epochs": 3}, "set persistent_workers=True: workers were started for each of 3 epochs"),
        ({"epochs": 3, "objects": 3}, "3 DataLoaders were made in turn"),
        ({"epochs": 1}, ""),
        ({"epochs": 3, "persistent_workers": True}, ""),
        ({"epochs": 3, "persistent_workers": None}, ""),
        ({"epochs": 3, "workers": 0}, ""),
        ({"epochs": 3, "wrapped": True}, ""),
    ],
)
def test_startup(changes: dict[str, Any], said: str) -> None:
    found = advised(facts("startup", **{"unmade_fraction": 0.0, **changes}))
    assert said in found["startup-bound"] if said else found == {}


def test_workers_started_anew_cost_beside_the_wait() -> None:
    costs = {"startup": 0.1, "transform": 3.0}
    restarts = facts(causes_ms=costs, wait_ms=3.1, unmade_fraction=0.0, epochs=3, restart_ms=9.9)
    (item,) = recommend([restarts])
    assert (item.id, item.gain_ms_per_step, item.evidence["startup_ms"]) == ("startup-bound", 10.0, 10.0)
    assert item.text.startswith("starting and ending workers takes 10.0 ms a step: set persistent_workers")
    assert recommend([replace(restarts, restart_ms=1.0)]) == []


TOO_FEW = {"production_ms": 200.0, "causes_ms": {}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "raise num_workers above 2"),
        ({"workers": 0}, "raise num_workers above 0"),
        ({"iterable": True}, "IterableDataset has to share its samples"),
        ({"workers": 7}, ""),  # of 8 CPUs
        ({"workers": 7, "asleep": 0.9, "on_cpu": 0.1, "production_ms": 800.0}, "they mostly sleep"),
        ({"cpus": 1, "workers": 0}, ""),
        ({"cpus": None}, ""),
        ({"core_free": False}, ""),
        ({"core_free": None}, ""),
        ({"core_free": False, "asleep": 0.9, "on_cpu": 0.1}, "they mostly sleep"),
        ({"production_ms": 90.0}, ""),  # 45 ms each, of 50
        ({"production_ms": 90.0, "batches_per_step": 2.0}, "raise num_workers above 2"),
        ({"production_ms": None}, ""),
        ({"unmade_fraction": 0.1}, ""),
        ({"wrapped": True}, ""),
    ],
)
def test_too_few_workers(changes: dict[str, Any], said: str) -> None:
    found = advised(facts(**{**TOO_FEW, **changes}))
    assert said in found["too-few-workers"] if said else found == {}


@pytest.mark.parametrize(
    ("changes", "fires"),
    [
        ({}, True),
        ({"behind_ready_ms": 4.0}, False),
        ({"behind_ready_ms": None}, False),
        ({"in_order": None}, False),  # torch before 2.6
        ({"in_order": False}, False),
        ({"workers": 1}, False),
        ({"wrapped": True}, False),
    ],
)
def test_waiting_in_order(changes: dict[str, Any], fires: bool) -> None:
    ground = {"causes_ms": {}, "unmade_fraction": 0.0, "behind_ready_ms": 20.0}
    assert ("waiting-in-order" in advised(facts(**{**ground, **changes}))) == fires


def short(*loaders: LoaderFacts) -> dict[str, str]:
    """What the verdict names of each advice; each fits a line, with its gain if it has one."""
    found = recommend(list(loaders))
    for item in found:
        assert 0 < len(item.remedy) <= (73 if item.gain_ms_per_step is None else 48)
    return {item.id: item.remedy for item in found}


SLEEPS = {"asleep": 0.9, "on_cpu": 0.1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"production_ms": 190.0}, "DataLoader(num_workers=4)"),  # 50 ms of compute each
        ({"production_ms": 500.0}, "DataLoader(num_workers=7)"),  # a core for each, and one for training
        ({"production_ms": 190.0, "iterable": True}, "DataLoader(num_workers=4), samples shared out"),
        ({"production_ms": 700.0, **SLEEPS}, "DataLoader(num_workers=14)"),
        ({"production_ms": 900.0, **SLEEPS}, "more workers: iotrace sweep finds how many"),
        ({"production_ms": 900.0, **SLEEPS, "wait_ms": 100.0}, "more workers: iotrace sweep finds how many"),
    ],
)
def test_a_number_of_workers_is_named_where_it_can_be_justified(changes: dict[str, Any], said: str) -> None:
    found = short(facts(**{**TOO_FEW, **changes}))
    assert found["too-few-workers"] == said


def test_workers_that_would_win_nothing_are_not_advised() -> None:
    # One worker on two cores makes batches as slowly as the loop itself.
    alone = {"workers": 0, "cpus": 2, "step_ms": 100.0, "wait_ms": 99.0, "made_ms": 99.0}
    assert advised(facts(**{**TOO_FEW, **alone, "production_ms": 99.0})) == {}


def again(path: str, cost: str = "decode_ms", files: int = 1, **known: Any) -> dict[str, Any]:
    """A file that each sample reads whole."""
    whole = WholeReads(files=files, times=480, times_per_pass=160.0, readers=2, given_bytes=9, fits=True)
    group = unknown(FileGroup, path=path, whole_reads=replace(whole, **known), **{cost: 50.0})
    files_of = [
        file(f"{path}{place}" if files > 1 else path, **{cost: 50.0 / files}) for place in range(files)
    ]
    return {"files": files_of, "groups": [group], "causes_ms": {"read": 0.0, "decode": 0.0, cost[:-3]: 50.0}}


OPENED = file("d/a.h5", decode_ms=9.0, transform_ms=40.0, opens=3200)


@pytest.mark.parametrize(
    ("cause", "changes", "said"),
    [
        ("decode", {"files": [file("d/case_02.h5", decode_ms=50.0, read_bytes=9, delivered_bytes=1)]},
         "re-chunk case_02.h5 to what a sample reads"),
        ("decode", {"files": [file("d/case_02.h5", decode_ms=50.0, read_bytes=1, delivered_bytes=9)]},
         "store case_02.h5 with lighter compression"),
        ("decode", {"files": [file("d/f.zarr/height", decode_ms=50.0)]},
         "re-chunk or recompress f.zarr/height"),
        ("decode", {"files": [file("d/a.jpg", decode_ms=50.0)]},
         "store a.jpg resized for training, or decoded"),
        ("decode", {"files": [file("d/a.npz", decode_ms=50.0)]}, "store a.npz uncompressed: numpy.save"),
        ("decode", {"files": [file("d/a.csv", decode_ms=50.0)]}, "store a.csv as Parquet"),
        ("decode", {"files": []}, "decode once, ahead of training; keep the result"),
        ("decode", {"files": [file(f"d/{'long' * 9}.h5", decode_ms=50.0)]},
         "re-chunk or recompress …longlonglonglonglong.h5"),
        ("read", READ, "read a.npy in larger pieces"),
        ("read", {"files": [file("d/f.zarr/a/0.0", read_ms=45.0, reads=9, read_bytes=9)]},
         "store f.zarr/a/0.0 in larger chunks"),
        ("read", {"files": [file("d/a.npy", read_ms=45.0, read_bytes=9)], "storage_bytes": 9.0},
         "stage a.npy on faster storage"),
        ("transform", {}, "precompute or vectorise Images"),
        ("transform", {"dataset": ""}, "precompute or vectorise the transform"),
        ("transform", {"item": "Volumes.__getitem__ (t.py:4)"},
         "precompute or vectorise Volumes.__getitem__"),
        ("transform", {"asleep": 0.9, "on_cpu": 0.1, "item": "Volumes.__getitem__"},
         "find out why Volumes.__getitem__ sleeps"),
        ("collate", {"collate": "pad_all"}, "pad, convert and copy less in pad_all"),
        ("collate", {"collate": "pad_all", "making": Making(collate_asleep=0.9, collate_on_cpu=0.0)},
         "find out why pad_all sleeps (90 % of its time)"),
        ("collate", {"collate": "pad_all", "making": Making(collate_asleep=0.1, collate_on_cpu=0.4)},
         "compute less in pad_all, or vectorise it"),
        ("collate", {"collate": "pad_all", "collate_line": "pad_all (t.py:9)", "made_ms": 600.0,
                     "making": Making(collate_asleep=0.0, collate_on_cpu=0.19)},
         "compute less in pad_all, or vectorise it"),
        ("collate", {"collate": "pad_all", "made_ms": 500.0,
                     "making": Making(collate_asleep=0.0, collate_on_cpu=0.19)},
         "find pad_all a free CPU: it lacked one in 81 % of the time"),
        # A library's own function is not the user's to change: what it gets, or the line that it calls, is.
        ("collate", {"collate": "Collater", "about": {"collate_library": "torch_geometric"},
                     "making": Making(collate_asleep=0.1, collate_on_cpu=0.8)},
         "make samples of fewer, smaller tensors"),
        ("collate", {"collate": "Collater.__call__", "making": Making(collate_asleep=0.1, collate_on_cpu=0.8),
                     "about": {"collate_site": "/x/lib/torch_geometric/loader/dataloader.py:24"}},
         "make samples of fewer, smaller tensors"),
        ("collate", {"collate": "Collater", "about": {"collate_library": "torch_geometric"},
                     "collate_hot": "t.py:9", "making": Making(collate_asleep=0.1, collate_on_cpu=0.8)},
         "compute less at t.py:9, or vectorise it"),
        ("collate", {"collate": "Collater", "about": {"collate_library": "torch_geometric"},
                     "making": Making(collate_asleep=0.9, collate_on_cpu=0.1)},
         "find out why Collater sleeps (90 % of its time)"),
        ("transform", {"on_cpu": 0.19, "made_ms": 600.0}, "precompute or vectorise Images"),
        ("collate", {"collate": "pad_all", "making": Making(collate_asleep=0.1, collate_on_cpu=0.1)},
         "find pad_all a free CPU: it lacked one in 80 % of the time"),
        ("collate", {"collate": "default_collate"}, "return narrower dtypes from the dataset"),
        ("collate", {"collate": "default_collate", "batch_bytes": 9.0},
         "make a batch at once: Dataset.__getitems__"),
        ("transport", {}, "send narrower dtypes from the workers"),
        ("transport", {"batch_bytes": 64.0, "made_ms": 70.0},
         "try num_workers=0: iotrace sweep --workers 0,1"),
        ("transform", {"files": [OPENED]}, "keep a.h5 open: each sample opens it"),
        ("transform", {"files": [replace(OPENED, opens=2000)]}, "precompute or vectorise Images"),
        ("transform", {"files": [replace(OPENED, transform_ms=9.0)]}, "precompute or vectorise Images"),
        ("transform", {"files": [replace(OPENED, path="d/a.npy")]}, "precompute or vectorise Images"),
        ("transform", {"files": [OPENED], "samples": None}, "precompute or vectorise Images"),
        ("transform", {"files": [replace(OPENED, path="d/a.zip")]}, "keep a.zip open: each sample opens it"),
        ("decode", {"files": [file("d/a.tar", decode_ms=50.0, opens=3200)]},
         "keep a.tar open: each sample opens it"),
        ("decode", {"files": [file("d/a.tar", decode_ms=50.0, opens=2)]},
         "decode once, ahead of training; keep the result"),
        ("decode", again("d/a.csv"), "read a.csv once and keep it"),
        ("read", again("d/a.csv", "read_ms"), "read a.csv once and keep it"),
        ("decode", again("d/a.csv", fits=False), "store a.csv as Parquet"),
        ("decode", again("d/a.npy", fits=False), "map a.npy: numpy.load(mmap_mode='r')"),
        ("queued", {}, "raise prefetch_factor above 2"),
        ("startup", {"epochs": 3}, "DataLoader(persistent_workers=True)"),
        ("startup", {"epochs": 3, "objects": 3}, "make the DataLoader once, and keep its workers"),
    ],
)  # fmt: skip
def test_the_change_in_short(cause: str, changes: dict[str, Any], said: str) -> None:
    found = short(facts(cause, **{"unmade_fraction": 0.0, **changes}))
    assert found == {f"{cause}-bound": said}


@pytest.mark.parametrize("name", ["a.jpg", "a.parquet", "a.h5", "a.mp4", "a.tar"])
def test_no_larger_pieces_of_a_format_that_has_none(name: str) -> None:
    small = file(f"d/{name}", read_ms=45.0, reads=1000, read_bytes=1000)
    assert advised(facts("read", unmade_fraction=0.0, files=[small])) == {}


def test_many_small_files_are_told_by_their_directory() -> None:
    files = [file(f"d/harbour/{number}.jpg", decode_ms=5.0) for number in range(10)]
    group = unknown(FileGroup, path="d/harbour/", kind="directory", members=10, decode_ms=50.0, read_ms=0.0)
    (item,) = recommend([facts("decode", unmade_fraction=0.0, files=files, groups=[group])])
    assert "(all of it in d/harbour/)" in item.text
    assert item.remedy == "store harbour/ resized for training, or decoded"
    (item,) = recommend([facts("decode", unmade_fraction=0.0, files=files)])
    assert item.remedy == "store the images resized for training, or decoded"
    shards = [file(f"d/s/{number}.bin", read_ms=5.0) for number in range(10)]
    small = unknown(FileGroup, path="d/s/", kind="directory", members=9, read_ms=50.0, reads=9, read_bytes=9)
    found = short(facts("read", unmade_fraction=0.0, files=shards, groups=[small]))
    assert found == {"read-bound": "read s/ in larger pieces"}


def test_files_that_each_sample_reads_whole_are_kept_or_mapped_as_the_larger_cause_says() -> None:
    found = short(facts("decode", unmade_fraction=0.0, **again("d/n/", files=4)))
    assert found == {"decode-bound": "read each file of n/ once and keep it"}
    costs = {**again("d/a.json"), "causes_ms": {"read": 20.0, "decode": 30.0}}
    costs["files"] = [file("d/a.json", read_ms=20.0, decode_ms=30.0, reads=9, read_bytes=9)]
    costs["groups"] = [replace(costs["groups"][0], read_ms=20.0, decode_ms=30.0)]
    (item,) = recommend([facts(unmade_fraction=0.0, **costs)])  # one advice, not one for each cause
    assert (item.id, item.remedy) == ("decode-bound", "read a.json once and keep it")
    assert item.text.endswith(
        "it is read whole 160 times in the run; 9 B or more held in each process that reads"
    )
    assert item.evidence == {"decode_ms": 30.0, "whole_reads": 480.0, "predicted_reads": 2.0}


def test_of_files_that_memory_does_not_hold_the_last_one_is_kept_where_samples_take_it_in_a_row() -> None:
    many = {"files": 4, "fits": False, "readers": 2}
    in_a_row = again("d/n/", **many, in_turn=48)
    (item,) = recommend([facts("decode", unmade_fraction=0.0, **in_a_row)])
    assert item.remedy == "keep the last file of n/: lru_cache(maxsize=1)"
    assert (item.evidence["in_a_row"], item.gain_ms_per_step) == (10.0, 45.0)
    for changes in ({"in_turn": 240}, {"in_turn": None}):  # another one with each other sample; not known
        (item,) = recommend([facts("decode", unmade_fraction=0.0, **again("d/n/", **many, **changes))])
        assert "lru_cache" not in item.remedy
    pictures = again("d/n/", **many, in_turn=240)
    pictures["files"] = [file(f"d/n/{number}.png", decode_ms=12.5) for number in range(4)]
    (item,) = recommend([facts("decode", unmade_fraction=0.0, **pictures)])
    assert item.remedy == "store n/ decoded, and map it"


@pytest.mark.parametrize(
    ("image_bytes", "remedy"),
    [
        (1000.0, "store n/ decoded"),  # a float for each byte
        (4000.0, "store n/ resized for training, or decoded"),  # bytes, or floats of a quarter of the pixels
        (None, "store n/ resized for training, or decoded"),
    ],
)
def test_images_that_keep_their_size_are_not_to_be_resized(image_bytes: float | None, remedy: str) -> None:
    files = [file(f"d/n/{number}.png", decode_ms=5.0) for number in range(10)]
    group = unknown(FileGroup, path="d/n/", kind="directory", members=10, decode_ms=50.0, read_ms=0.0)
    known = {"files": files, "groups": [group], "making": Making(image_bytes=image_bytes)}
    sizes = {"batch_bytes": 32 * 4000.0, "samples": 32.0}
    (item,) = recommend([facts("decode", unmade_fraction=0.0, **known, **sizes)])
    assert item.remedy == remedy


@pytest.mark.parametrize(
    ("begun", "ended", "said"),
    [
        (3, 2, "an epoch"),
        (1, 1, "an epoch"),
        (4, None, "an epoch"),
        (1, 0, "in the run"),
        (1, None, "in the run"),
        (3, 0, "in a pass (no pass ended)"),
    ],
)
def test_how_often_a_file_is_read_is_told_of_what_was_seen(begun: int, ended: int | None, said: str) -> None:
    passes = {"epochs": begun, "epochs_ended": ended, "unmade_fraction": 0.0}
    (item,) = recommend([facts("decode", **passes, **again("d/a.csv"))])
    assert f"read whole 160 times {said}" in item.text


def test_a_gain_is_that_of_the_replay() -> None:
    gains = {"decode": 30.0, "files": 40.0, "files:d/a.h5": 35.0}
    chunked = {"files": [file("d/a.h5", decode_ms=50.0)]}
    tables = {"files": [file(f"d/{name}.csv", decode_ms=10.0) for name in "abcde"]}
    images = {"files": [file(f"d/{name}.jpg", decode_ms=10.0) for name in "abcde"]}
    for known, gain_ms in ((chunked, 35.0), (tables, 40.0)):
        (item,) = recommend([facts("decode", unmade_fraction=0.0, gains_ms=gains, **known)])
        assert item.gain_ms_per_step == gain_ms
    # What would win less than 5 % of the step is no advice, whatever is charged for it.
    assert recommend([facts("decode", unmade_fraction=0.0, gains_ms={"files": 4.0}, **tables)]) == []
    # Smaller images may spare the transform that makes them smaller, too.
    made = {"causes_ms": {"decode": 50.0, "transform": 30.0}, "made_ms": 45.0}
    most = {"most_ms": {"files": 42.0, "files and transform": 48.0, "transform": 20.0}}
    found = recommend([facts("decode", unmade_fraction=0.0, gains_ms=gains, **made, **images, **most)])
    bounds = {item.id: (item.gain_ms_per_step, item.most_ms_per_step) for item in found}
    assert bounds["decode-bound"] == (40.0, 48.0)
    (item,) = recommend([facts("decode", unmade_fraction=0.0, gains_ms=gains, **chunked)])
    assert item.most_ms_per_step is None  # not replayed: all of the wait may go
    # Makers side by side, of whom nothing is replayed: a step loses that share of the making, and no more.
    pool = {"causes_ms": {"decode": 10.0, "transform": 40.0}, "made_ms": 400.0, "wrapped": True}
    found = recommend([facts("decode", unmade_fraction=0.0, **pool, **tables)])
    assert [item.gain_ms_per_step for item in found if item.id == "decode-bound"] == [20.0]
    # Two workers that no longer take turns sleep half as long each; they compute as long as before.
    turns = {"made_ms": 200.0, "making": Making(turns=True), "unmade_fraction": 0.0}
    (item,) = recommend([facts("transform", asleep=1.0, on_cpu=0.0, **turns)])
    assert (item.id, item.gain_ms_per_step) == ("samples-in-turns", 50.0)
    (item,) = recommend([facts("transform", asleep=0.8, on_cpu=0.2, **turns)])
    assert item.gain_ms_per_step == pytest.approx(40.0)
    # Where no CPU was free, they queue for one as long as before, too.
    (item,) = recommend([facts("transform", asleep=0.7, on_cpu=0.1, core_free=False, **turns)])
    assert item.gain_ms_per_step == pytest.approx(35.0)
    (item,) = recommend([facts("startup", unmade_fraction=0.0, epochs=3, restart_ms=7.0)])
    assert item.gain_ms_per_step == 57.0


def test_of_several_loaders_the_one_that_costs_is_named() -> None:
    images = facts(of_several=True, wait_ms=3.0, causes_ms={"transform": 3.0}, behind_ready_ms=None)
    table = facts(of_several=True, number=1, dataset="Table", workers=0, asleep=0.1, on_cpu=0.9)
    found = recommend([table, images])
    assert [item.id for item in found] == ["too-few-workers", "transform-bound"]
    assert all("of the loader of Table (loader 1)" in item.text for item in found)
    assert all(item.evidence["loader"] == 1 for item in found)


def test_a_fix_names_its_loader_where_the_program_has_several() -> None:
    (item, *_) = recommend([facts(workers=0, asleep=0.1, on_cpu=0.9, called="Table")])
    assert item.remedy.startswith("DataLoader(num_workers=")
    assert item.remedy.endswith(") of Table")


@pytest.mark.parametrize(
    ("computing", "core_free", "advised"),
    [(0.9, True, False), (0.05, True, True), (0.05, False, False), (0.05, None, False)],
)
def test_a_library_that_decodes_on_its_own_threads_does_not_sleep(
    computing: float, core_free: bool | None, advised: bool
) -> None:
    """The item's thread sleeps meanwhile. All cores but one have a worker: only sleepers get another.

    Where no core was free, the library's threads may have had none.
    """
    making = {"asleep": 0.0, "on_cpu": 0.05, "threaded": 0.95, "threaded_cpu": computing}
    one = facts(workers=7, core_free=core_free, production_ms=800.0, **making)
    found = [item for item in recommend([one]) if item.id == "too-few-workers"]
    assert ["they mostly sleep" in item.text for item in found] == [True] * advised


def test_a_wrapped_loader_gets_advice_on_files_alone() -> None:
    costs = {"decode": 20.0, "transport": 10.0, "queued": 10.0, "startup": 10.0}
    wrapped = facts(causes_ms=costs, wrapped=True, workers=0, prefetch_factor=None, in_order=None, on_cpu=0.4)
    assert list(advised(wrapped)) == ["decode-bound"]


@pytest.mark.parametrize(
    ("changes", "fires"),
    [
        ({}, True),
        ({"wrapped": False}, False),
        ({"workers": 1}, False),
        ({"on_cpu": 0.4}, False),  # a library makes them elsewhere
        ({"core_free": False}, False),
        ({"handed_over": True}, False),
        ({"step_ms": 1.6, "wait_ms": 0.8, "causes_ms": {"transform": 0.8}}, False),
    ],
)
def test_what_the_loop_makes_itself_can_be_made_meanwhile(changes: dict[str, Any], fires: bool) -> None:
    alone = {"workers": 0, "wrapped": True, "prefetch_factor": None, "in_order": None}
    found = {item.id: item for item in recommend([facts(**{**alone, "wait_ms": 60.0, **changes})])}
    assert ("made-by-the-loop" in found) == fires
    if fires:
        assert found["made-by-the-loop"].gain_ms_per_step == 40.0  # the rest of the step hides no more


def test_where_batches_lie_ready_a_cause_gains_what_it_is_charged_with() -> None:
    """As of a shuffle buffer that is filled before an epoch: what is left of the wait has other reasons."""
    known = {"causes_ms": {"decode": 7.0, "transform": 7.0, "transport": 3.0}, "wait_ms": 17.0, "files": []}
    about = {"wrapped": True, "made_ms": 62.0, "gains_ms": {}, "unmade_fraction": 0.0, **known}
    slow, ready = (
        next(item for item in recommend([facts("decode", ready=ready, **about)]) if item.code == "IO102")
        for ready in (0.2, 3.8)
    )
    assert (slow.gain_ms_per_step, ready.gain_ms_per_step) == (17.0, 7.0)


def test_what_collecting_takes_of_the_making_bounds_what_its_end_gains() -> None:
    making = Making(collecting_ms=10.0, collections=3, collection_ms=90.0)
    (item,) = (each for each in recommend([facts(making=making, made_ms=100.0)]) if each.code == "IO214")
    assert (item.gain_ms_per_step, item.most_ms_per_step) == (10.0, 20.0)


def test_a_gain_that_the_model_predicts_is_told_with_its_interval() -> None:
    row = GainRow(
        id="decode",
        kind="cause",
        text="decode",
        change="gone",
        predicted_ms_per_step=70.0,
        interval_ms=[65.0, 76.0],
        gain_ms_per_step=30.0,
    )
    gains = {"decode": 60.0, "files": 60.0}
    bound = recommend([facts("decode", unmade_fraction=0.0, gains_ms=gains, files=[])])[0]
    told = recommend(
        [facts("decode", unmade_fraction=0.0, gains_ms=gains, files=[], predicted={"files": row})]
    )[0]
    assert (bound.gain_interval_ms, bound.gain) == (None, None)
    assert told.gain_ms_per_step == 30.0
    assert told.gain == "decode"
    assert told.gain_interval_ms == [facts().step_ms - 76.0, facts().step_ms - 65.0]
    without = replace(row, gain_ms_per_step=2.0)
    own = facts("decode", unmade_fraction=0.0, gains_ms=gains, files=[], predicted={"files": without})
    assert not recommend([own])  # the model says that it is not worth it


@pytest.mark.parametrize(
    ("rule", "changes", "said"),
    [
        ("fed-by-the-program", {"workers": 0, "fed_by": "the queue q", "asleep": 0.9, "on_cpu": 0.0},
         "feed Images faster (the queue q); num_workers may hang"),
        ("rows-one-by-one", {"samples": 4096.0, "collate": "default_collate", "item_library": "torch",
                             "making": Making(item_ms=0.01)},
         "rows at once: BatchSampler and batch_size=None"),
        ("rows-one-by-one", {"samples": 4096.0, "collate": "default_collate", "making": Making(item_ms=0.01)},
         "rows at once: Images.__getitems__"),
        # Nobody adds a method to these: one takes a list of rows, the other none.
        ("rows-one-by-one", {"samples": 4096.0, "collate": "default_collate", "dataset": "Tensor",
                             "making": Making(item_ms=0.01)},
         "rows at once: BatchSampler and batch_size=None"),
        ("rows-one-by-one", {"samples": 4096.0, "collate": "default_collate", "dataset": "list",
                             "making": Making(item_ms=0.01)},
         "rows at once: a tensor and BatchSampler"),
        ("uneven-shards", {"iterable": True, "workers": 4, "production_ms": 200.0, "asleep": 1.0,
                           "on_cpu": 0.0, "unmade_fraction": 1.0, "making": Making(sharing=1.0, makers=1)},
         "split the data evenly: 4 shards for 4 workers"),
        ("slow-first-sample", {"iterable": True,
                               "making": Making(fill_ms=30.0, first_item_ms=900.0, item_ms=1.0)},
         "fill less before an epoch's first sample"),
        ("slow-first-sample", {"iterable": True, "shuffle": "shuffle(450, initial=450)",
                               "making": Making(fill_ms=30.0, first_item_ms=900.0, item_ms=1.0)},
         "lower initial in shuffle(450, initial=450)"),
        ("slow-first-sample", {"iterable": True, "shuffle": "shuffle(buffer_size=1000)",
                               "making": Making(fill_ms=30.0, first_item_ms=900.0, item_ms=1.0)},
         "lower buffer_size in shuffle(buffer_size=1000)"),
        ("collecting-garbage", {"making": Making(collecting_ms=30.0, collections=3, collection_ms=90.0)},
         "gc.freeze() in worker_init_fn, or fewer objects"),
        ("collecting-garbage", {"making": Making(collecting_ms=30.0, collections=3, collection_ms=90.0,
                                                 full_share=1.0, objects=3_900_000)},
         "gc.freeze() in worker_init_fn (3.9M old objects)"),
        ("collecting-garbage", {"making": Making(collecting_ms=30.0, collections=300, collection_ms=1.2,
                                                 full_share=0.1, objects=390_000)},
         "gc.disable() in worker_init_fn: many new objects"),
    ],
)  # fmt: skip
def test_what_is_behind_slow_code_is_told_in_place_of_it(
    rule: str, changes: dict[str, Any], said: str
) -> None:
    found = short(facts("transform", **{"unmade_fraction": 0.0, **changes}))
    assert found == {rule: said}


def test_who_tokenises_in_the_collate_function_is_told_to_do_it_ahead() -> None:
    found = short(facts("collate", collate="col", tokenizer="tokenizers.Tokenizer", unmade_fraction=0.0))
    assert found == {"tokenised-each-time": "tokenise ahead of training, not in col"}


def test_nothing_is_advised_where_batches_lie_ready_and_the_wait_is_short() -> None:
    short_wait = {"wait_ms": 9.0, "causes_ms": {"transform": 9.0}}
    assert not recommend([facts("transform", **short_wait, ready=3.9)])
    assert recommend([facts("transform", **short_wait, ready=0.4)])
    assert recommend([facts("transform", wait_ms=12.0, causes_ms={"transform": 12.0}, ready=3.9)])


def test_of_two_findings_that_explain_each_other_the_first_main_cause_is_kept() -> None:
    def found(rule: str, other: str, leads: bool) -> Finding:
        return Finding(text="", rule=rule, silences=(other,), is_main_cause=leads)

    def left(*leads: bool) -> list[str]:
        both = [found("IO507", "IO214", leads[0]), found("IO214", "IO507", leads[1])]
        return [each.rule for each in unsilenced(both)]

    assert left(True, True) == left(True, False) == ["IO507"]
    assert left(False, True) == ["IO214"]
    assert left(False, False) == ["IO507", "IO214"]


def test_a_function_that_a_librarys_pipeline_runs_is_named() -> None:
    about = {"dataset": "WebDataset", "library": "webdataset", "wrapped": True, "workers": 0}
    for share, named in ((0.8, "what WebDataset runs, such as clean (train.py:8)"), (0.3, "WebDataset")):
        at = WaitCode(function="clean (train.py:8)", function_share=share)
        found = {item.code: item for item in recommend([facts("transform", **about, waits_at=at)])}
        assert found["IO103"].remedy == f"precompute or vectorise {named}"


@pytest.mark.parametrize(("kind", "near"), [("socket", "copy the data nearby"), ("pipe", "store once what")])
def test_what_a_program_writes_to_a_pipe_is_not_far(kind: str, near: str) -> None:
    waits = LockWait(ms=30.0, each_ms=22.0, item_ms=31.0, sharing=1, file=f"{kind} at train.py:9")
    found = recommend([facts("unknown", making=Making(locks={"peer": waits}))])
    (item,) = (each for each in found if each.code == "IO250")
    assert near in item.remedy


@pytest.mark.parametrize(("frames", "reread", "sought"), [(118.0, 0.992, True), (48.0, 0.88, False)])
def test_frames_that_are_sought_are_told_where_files_are_read_from_their_begin_again(
    frames: float, reread: float, sought: bool
) -> None:
    """A program that takes all frames of each file reads it once, or twice to count them."""
    whole = {"files": 26, "times": 208, "times_per_pass": 8.0, "readers": 2, "fits": True}
    clips = {"path": "d/", "kind": "directory", "decode_ms": 50.0, "pattern": {"reread_fraction": reread}}
    found = advised(
        facts(
            "decode",
            files=[file("d/a.gif", decode_ms=9.0)],
            groups=[fill(FileGroup, {**clips, "whole_reads": whole})],
            making=Making(frames=frames),
        )
    )
    assert ("store each frame of d/" in found["decode-bound"]) == sought


@pytest.mark.parametrize(("fill_ms", "told"), [(47.0, False), (30.0, True)])
def test_what_costs_a_wait_that_is_filling_alone_is_not_told_beside(fill_ms: float, told: bool) -> None:
    """What is left is below 5 % of a step, or is not: then decoding is worth it in the other samples, too."""
    making = Making(fill_ms=fill_ms, first_item_ms=900.0, item_ms=1.0)
    causes = {"decode": 48.0, "read": 2.0}
    found = recommend([facts(iterable=True, causes_ms=causes, making=making, unmade_fraction=0.0)])
    assert [item.id for item in found] == ["slow-first-sample", *["decode-bound"][: int(told)]]
    filled = next(item for item in found if item.id == "slow-first-sample")
    assert (filled.gain_ms_per_step, filled.gain_interval_ms) == (fill_ms, [0.0, fill_ms])
    # Less than half of the wait is it: what gains more comes first.
    less = Making(fill_ms=20.0, first_item_ms=900.0, item_ms=1.0)
    found = recommend([facts(iterable=True, causes_ms=causes, making=less, unmade_fraction=0.0)])
    assert [item.id for item in found] == ["decode-bound", "slow-first-sample"]


RESIZES = {"hot_in": "PIL", "hot_line": "t.py:9, in PIL's Image.resize", "hot_share": 0.5, "samples": 8.0}


@pytest.mark.parametrize(
    ("changes", "gain_ms"),
    [
        (RESIZES, 40.0),  # half of the transform resizes them: it ends with the decoding
        ({**RESIZES, "batch_bytes": 8 * MIB, "making": Making(image_bytes=4.0 * MIB)}, 37.5),
        ({**RESIZES, "batch_bytes": 32 * MIB, "making": Making(image_bytes=4.0 * MIB)}, 30.0),  # of one size
        ({**RESIZES, "hot_line": "t.py:9, in PIL's Image.rotate"}, 30.0),
        ({**RESIZES, "hot_in": "numpy", "hot_line": "t.py:9, in numpy's resize"}, 30.0),
        ({}, 30.0),
    ],
)
def test_images_that_are_stored_resized_are_not_resized_by_samples(
    changes: dict[str, Any], gain_ms: float
) -> None:
    images = [file(f"d/{number}.jpg", decode_ms=10.0) for number in range(3)]
    group = unknown(FileGroup, path="d/", kind="directory", members=3, decode_ms=30.0, read_ms=0.0)
    known = {"files": images, "groups": [group], "causes_ms": {"decode": 30.0, "transform": 20.0}}
    gains_ms = {"decode": 30.0, "files": 30.0, "files and transform": 50.0}
    images_of = {**known, "gains_ms": gains_ms}
    found = recommend([facts(unmade_fraction=0.0, **{**images_of, **changes})])
    item = next(item for item in found if item.id == "decode-bound")
    assert item.gain_ms_per_step == pytest.approx(gain_ms)


@pytest.mark.parametrize(
    ("suffix", "members", "remedy"),
    [
        (".pt", 1500, "store d/ as few files of arrays, or keep all in memory"),
        (".json", 1500, "decode once, ahead of training; keep the result"),
        (".pt", None, "decode once, ahead of training; keep the result"),
    ],
)
def test_files_of_pickled_results_are_not_to_be_decoded_ahead_once_more(
    suffix: str, members: int | None, remedy: str
) -> None:
    rule = rule_of("IO102")
    group = {"path": "d/", "kind": "directory", "decode_ms": 50.0, "members": members}
    known = {
        "cause": "decode",
        "files": [{"path": f"d/a{suffix}", "decode_ms": 0.1}],
        "groups": [group],
        "hot_function": "Graphs.get (train.py:9)",
    }
    (found,) = rule.find(facts_of(rule, known))
    assert found.remedy == remedy
    assert ("unpickled on its own, in Graphs.get (train.py:9):" in (found.how or found.text)) == (
        remedy.startswith("store")
    )


@pytest.mark.parametrize(
    ("library", "dataset", "remedy"),
    [
        ("monai", "Dataset", "keep what is not random of Dataset: CacheDataset or PersistentDataset"),
        ("monai", "CacheDataset", "make samples of CacheDataset ahead of training"),  # it does so already
        ("torchvision", "VOCDetection", "make samples of VOCDetection ahead of training"),
    ],
)
def test_a_library_that_keeps_what_is_not_random_is_named_by_the_class_that_does(
    library: str, dataset: str, remedy: str
) -> None:
    rule = rule_of("IO103")
    item = {"item": f"{dataset}.__getitem__", "item_library": library, "dataset": dataset}
    (found,) = rule.find(facts_of(rule, {"cause": "transform", **item}))
    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("beside", "remedy"),
    [
        (0.5, "find what computes on threads while Clips.__getitem__ waits"),
        (0.1, "find out why Clips.__getitem__ sleeps"),  # the agent's thread, and what sends batches
    ],
)
def test_a_sample_that_sleeps_while_other_threads_of_its_process_compute_may_wait_for_these(
    beside: float, remedy: str
) -> None:
    rule = rule_of("IO103")
    item = {"item": "Clips.__getitem__ (train.py:9)", "asleep": 1.0, "on_cpu": 0.0, "beside": beside}
    (found,) = rule.find(facts_of(rule, {"cause": "transform", **item}))
    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("used", "asleep", "known", "making", "share"),
    [
        (0.20, 0.29, 0.27, 0.5, 0.45),  # a codec's threads
        (0.05, 0.95, 0.02, 0.9, 0.04),  # a network
        (0.10, 0.50, 0.50, 0.9, 0.0),  # sampled at other times than the samples were made
        (0.20, 0.0, 0.27, 0.5, 0.0),
        (0.20, None, 0.27, 0.5, 0.0),
    ],
)
def test_what_other_threads_compute_is_what_the_process_used_beyond_what_made_samples(
    used: float, asleep: float | None, known: float, making: float, share: float
) -> None:
    assert beside_sleep(used, asleep, known, making) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("collate", "known", "remedy"),
    [
        ("DataCollatorWithPadding.__call__", {}, "pad and stack tensors in a data_collator of your own"),
        (
            "Stack",
            {"samples": 4.0, "batch_bytes": 4e5},
            "stack tensors of one shape in a collate_fn of your own",
        ),
        # Many small tensors, a copy of much, and what is not known.
        ("Stack", {"samples": 400.0, "batch_bytes": 4e5}, "make samples of fewer, smaller tensors"),
        ("Stack", {"samples": 4.0, "batch_bytes": 4e8}, "make samples of fewer, smaller tensors"),
        ("Stack", {"samples": 4.0, "batch_bytes": None}, "make samples of fewer, smaller tensors"),
    ],
)
def test_a_librarys_collating_that_is_no_copy_can_be_done_by_a_function_of_your_own(
    collate: str, known: dict[str, Any], remedy: str
) -> None:
    rule = rule_of("IO104")
    about = {"collate": collate, "about": {"collate_library": "lib"}}
    making = Making(collate_asleep=0.0, collate_on_cpu=0.9)
    (found,) = rule.find(facts_of(rule, {"cause": "collate", "making": making, **about, **known}))
    assert found.remedy == remedy
