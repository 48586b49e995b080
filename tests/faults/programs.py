"""Programs that several rows run: a training without torch, that reads files and prints losses."""

from __future__ import annotations

# Reads a file 60 times, and prints a loss of each read to its last bit.
READING = """
import os, signal, sys, time
data = os.open("data.bin", os.O_RDONLY)
def loss(step):
    return float(sum(os.pread(data, 64, step % 64))).hex()
for step in range(60):
    print(loss(step), flush=True)
"""
READS = 60
DATA = {"data.bin": bytes(range(256))}

# Reads in two forked workers, and prints the losses in order.
WORKERS = """
import multiprocessing, os, signal, sys
def loss(step):
    with open("data.bin", "rb", buffering=0) as data:
        return float(sum(os.pread(data.fileno(), 64, step % 64))).hex()
def train(steps):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for found in pool.imap(loss, range(steps)):
            print(found, flush=True)
        pool.close()
        pool.join()
"""

# dftracer's buffer of 4 KiB holds at most this many calls. The recorder has each one where it survives.
BUFFER = 19
LOST = "a process's last second of records"
OF_DFTRACER = "with `--io-by dftracer` its last 19 POSIX calls"
