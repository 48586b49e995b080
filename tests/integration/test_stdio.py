"""A library that reads through C's stdio, as OpenCV does: table, coverage and causes have its reads."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs import run_script

PIECES, SIZE, SAMPLES = 50, 4096, 12

PROGRAM = f"""
import ctypes, os
import torch
from torch.utils.data import DataLoader, Dataset

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
with open("large.bin", "wb") as file:
    file.write(os.urandom({PIECES * SIZE}))

class Samples(Dataset):
    def __len__(self):
        return {SAMPLES}
    def __getitem__(self, index):
        space = ctypes.create_string_buffer({SIZE})
        file = libc.fopen(b"large.bin", b"rb")
        while libc.fread(space, 1, {SIZE}, file):
            pass
        libc.fclose(file)
        return torch.ones(1)

weight = torch.ones(1, requires_grad=True)
for batch in DataLoader(Samples(), batch_size=2):
    (batch.sum() * weight).sum().backward()
"""


def test_reads_through_buffered_files_are_seen(tmp_path: Path) -> None:
    run = run_script(tmp_path, PROGRAM)
    assert run.code == 0, run.stderr
    (rank,) = run.report()["ranks"]
    file = next(file for file in rank["io"]["files"] if file["path"].endswith("large.bin"))
    assert file["opens"] == SAMPLES + 1  # one to write it
    assert file["reads"] == SAMPLES * (PIECES + 1)  # the last one of each finds the end
    assert file["read_bytes"] == SAMPLES * PIECES * SIZE
    assert rank["io"]["coverage"] > 0.9
    costly = rank["data_wait"]["files"][0]
    assert costly["path"].endswith("large.bin")
    assert costly["read_ms"] > 0
