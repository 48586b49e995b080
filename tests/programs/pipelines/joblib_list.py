"""Each turn has joblib read the files of one batch in threads, and waits for all of them."""

import os
import time

import clock
import joblib
import numpy

KNOWN = {"steps": 48, "cause": "transform", "after": "data/one.npy", "torch": False, "needs": ["joblib"]}


def load(step: int) -> numpy.ndarray:
    values = numpy.load("data/one.npy") + step
    time.sleep(0.01)
    return values


if __name__ == "__main__":
    os.makedirs("data", exist_ok=True)
    numpy.save("data/one.npy", numpy.ones((64, 64)))
    parallel = joblib.Parallel(n_jobs=2, backend="threading")
    for step in range(48):
        asked = clock.now()
        batch = parallel(joblib.delayed(load)(4 * step + place) for place in range(4))
        clock.waited(asked)
        numpy.stack(batch).mean()
        time.sleep(0.004)
