"""Functions and blocks marked for dftracer, logged by iotrace alone or by the program, too.

python marks.py [LOGFILE]
"""

import os
import sys
from pathlib import Path

from dftracer.python import dft_fn, dftracer

log = None
if len(sys.argv) > 1:
    log = dftracer.initialize_log(logfile=sys.argv[1], data_dir=os.getcwd(), process_id=-1)
dft = dft_fn("COMPUTE")


@dft.log
def work(step: int) -> int:
    Path("marks.txt").write_text("x" * step)
    return step


for number in range(10):
    work(number)
with dft_fn(cat="block", name="epoch"):
    work(10)
if log is not None:
    log.finalize()
