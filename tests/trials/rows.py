"""The programs, and what has to come of the trial of each one's first fix."""

from __future__ import annotations

from typing import NamedTuple

from iotrace.trying.results import FAILED, NO_HELP, PROVEN, SLOWER, UNCLEAR

NONE = "none"  # no fix can be tried: the program has to be edited


class Row(NamedTuple):
    """A program with its arguments; `codes`: the rule of the fix that is tried is one of these.

    `kinds`: what may come of it. `data`: how a copy is stored. `fix`: which one is tried, if not the first.
    `applied`: what the diff that is applied adds; "": a copy takes the place of the data. `edit`: what the
    user is told to edit.
    """

    name: str
    program: str
    kinds: tuple[str, ...]
    codes: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    data: str = ""
    fix: str = ""
    needs: str = ""
    applied: str = ""
    edit: str = ""


_NO_GAIN = (NO_HELP, SLOWER, UNCLEAR)  # a gain of 4 % is seen and no help
_THREADS = ("IO301", "IO304")
_STARTED = "worker_init_fn=start_worker"
_COPY = 'Path("trial/data'

ROWS = [
    Row("unet-hdf5", "workloads/unet3d_hdf5.py", (PROVEN,), ("IO102",), data="chunks", applied=_COPY),
    Row("weather-zarr", "workloads/weather_zarr.py", (PROVEN,), ("IO102", "IO101"), data="chunks"),
    Row("volumes-npz", "workloads/volumes_npz.py", (PROVEN,), ("IO102",), data="unpacked", applied=_COPY),
    Row("images", "programs/images_each.py", (PROVEN,), ("IO102",), data="unpacked", applied=_COPY),
    Row("images-kept", "workloads/images.py", (NONE,)),
    Row("parquet", "programs/parquet.py", (PROVEN,), ("IO102",), data="row-groups", applied=_COPY),
    Row(
        "csv",
        "programs/csv_rows.py",
        (PROVEN,),
        ("IO102",),
        data="parquet",
        edit="read_parquet",
        applied="pd.read_parquet(",
    ),
    Row(
        "tar",
        "programs/tar_opened.py",
        (PROVEN,),
        ("IO102",),
        edit="keep samples.tar open",
        applied="with open_archive(PATH)",
    ),
    Row("too-few-workers", "programs/few_workers.py", (PROVEN,), ("IO204",), applied="num_workers="),
    Row("threads", "programs/blas_threads.py", (PROVEN,), _THREADS, applied=_STARTED),
    Row("threads-cv2", "programs/threads.py", (PROVEN, *_NO_GAIN), _THREADS, needs="cv2", applied=_STARTED),
    Row("bound", "programs/bound.py", (PROVEN,), ("IO302",)),
    Row("restarted", "programs/restarted.py", (PROVEN,), ("IO203",), applied="persistent_workers=True"),
    Row("locked", "programs/locked.py", _NO_GAIN, ("IO204",)),
    Row("rate-limited", "programs/rate_limited.py", _NO_GAIN, ("IO204",)),
    Row("unsharded", "programs/unsharded.py", (FAILED,), ("IO204",)),
]
