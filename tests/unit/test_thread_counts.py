"""How many threads libraries may use: what each does in a worker and behind zarr, asked of the libraries."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, multiprocessing, os, sys, threading
import numcodecs.blosc
import numpy as np
from iotrace.agent.thread_counts import thread_counts

def told():
    return thread_counts()["threads"]

def pool():
    return sum(thread.name.startswith(("asyncio_", "zarr_pool")) for thread in threading.enumerate())

def in_worker(pipe):
    before = told()
    array[3]
    pipe.put([before, told(), pool()])

multiprocessing.set_start_method("fork")
numcodecs.blosc.set_nthreads(3)
found = {"main": told()}
import zarr
found["behind zarr"] = told()
data = np.arange(8 * 64 * 64, dtype="f4").reshape(8, 64, 64)
array = zarr.create_array(sys.argv[1], shape=data.shape, chunks=(1, 16, 64), dtype="f4")
array[:] = data
found["read"] = [told(), pool()]
pipe = multiprocessing.SimpleQueue()
worker = multiprocessing.Process(target=in_worker, args=(pipe,))
worker.start()
found["worker"] = pipe.get()
worker.join()
print(json.dumps(found))
"""


def test_threads_are_those_that_a_library_uses(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"{tmp_path}/a.zarr"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["main"]["blosc"] == 3
    # zarr 3 tells numcodecs to start none, and decodes on threads of its own, once it reads.
    assert not {"blosc", "zarr"} & {*found["behind zarr"]}
    told, started = found["read"]
    assert told["zarr"] == started >= 1
    assert "blosc" not in told
    before, told, started = found["worker"]
    assert not {"blosc", "zarr"} & {*before}
    assert told["zarr"] == started >= 1
