"""Ray Data's iter_torch_batches: blocks are made by tasks in processes of Ray's."""

import logging
import time

import clock
import ray
from toy import busy, train

KNOWN = {"steps": 60, "unknown": "allowed", "needs": ["ray"]}


def slow(rows):
    time.sleep(0.03)
    return rows


ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
logging.getLogger("ray.data").setLevel(logging.ERROR)
rows = ray.data.range_tensor(240, shape=(16,), override_num_blocks=60).map_batches(slow, batch_size=4)
for batch in clock.steps(rows.iter_torch_batches(batch_size=4)):
    train(batch["data"].float(), 6, busy)
ray.shutdown()
