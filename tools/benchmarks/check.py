"""Does ``iotrace check`` tell a decode that is 10 % slower from noise? Runs of one program, beside noise."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_FILES, _ITEMS, _ROWS, _SLOWER_ROWS = 4, 160, 80, 88  # rows a sample: 20 chunks, or 10 % more
_NOISE = "import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
_PROGRAM = """
import os, h5py, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
rows = int(os.environ["ROWS"])
class Rows(Dataset):
    files = None
    def __len__(self):
        return {items}
    def __getitem__(self, index):
        if self.files is None:
            self.files = [h5py.File(f"case_{{n}}.h5")["x"] for n in range({files})]
        start = index // {files} * {slower}
        block = self.files[index % {files}][start : start + rows]
        return torch.from_numpy(block[:40]).abs().log1p().mean(dim=0)
net = torch.nn.Sequential(torch.nn.Linear(4096, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2)
for epoch in range({epochs}):
    for x in loader:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench check", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=20, help="of the same program, and of the slower one (20)"
    )
    parser.add_argument("--baselines", type=int, default=5, help="runs that make the baseline (5)")
    parser.add_argument("--sessions", type=int, default=1, help="runs that are checked at once (1)")
    parser.add_argument("--epochs", type=int, default=3, help="of each run (3, some 5 s of decoding)")
    parser.add_argument("--noise", type=float, default=0.3, help="share of the time of a busy process (0.3)")
    parser.add_argument("--directory", type=Path, help="keep the sessions here")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="iotrace-check-"))
    directory.mkdir(parents=True, exist_ok=True)
    _write_data(directory)
    program = _PROGRAM.format(files=_FILES, items=_ITEMS, slower=_SLOWER_ROWS, epochs=options.epochs)
    (directory / "train.py").write_text(program)
    baselines = [f"base{number:02}" for number in range(options.baselines)]
    for name in baselines:
        _record(directory, name, _ROWS, options.noise)
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(options.runs):
        for kind, rows in (("same", _ROWS), ("slower", _SLOWER_ROWS)):
            names = [f"{kind}{number:02}-{again}" for again in range(options.sessions)]
            for name in names:
                _record(directory, name, rows, options.noise)
            found = _check(directory, names, baselines)
            said = found["text"].partition("  ")[0]
            counts[kind, said] += 1
            decode = next(item for item in found["comparison"]["stages"] if item["stage"] == "decode")
            slower = found["comparison"]["cpu_slower_pct"]
            slower = "unknown" if slower is None else f"{slower:+.1f} %"
            print(
                f"{names[0]}: {found['text']}  (decode {decode['change_pct']:+.1f} %, told from "
                f"{decode['noise_pct']:.1f} % on; CPUs slower: {slower})",
                flush=True,
            )
    print(
        f"load {os.getloadavg()[0]:.1f}",
        *(f"{kind} {said}: {n}" for (kind, said), n in counts.items()),
        sep="\n",
    )


def _write_data(directory: Path) -> None:
    generator = np.random.default_rng(0)
    rows = _ITEMS // _FILES * _SLOWER_ROWS
    for number in range(_FILES):
        with h5py.File(directory / f"case_{number}.h5", "w") as file:
            values = np.round(generator.normal(size=(rows, 4096)), 1).astype("f4")
            file.create_dataset("x", data=values, chunks=(4, 4096), compression="gzip")


def _record(directory: Path, name: str, rows: int, noise: float) -> None:
    """Run the program traced, beside a process that is busy for the share `noise` of the time."""
    command = [sys.executable, "-m", "iotrace", "run", "-q", "--torch-steps", "off", "-o", name, "--"]
    environment = {**os.environ, "ROWS": str(rows)}
    traced = subprocess.Popen([*command, sys.executable, "train.py"], cwd=directory, env=environment)
    while traced.poll() is None:
        busy = random.uniform(0.3, 2.0) if noise else 0.0
        if busy:
            subprocess.run([sys.executable, "-c", _NOISE.format(seconds=busy)], check=True)
        time.sleep(busy * (1 - noise) / noise if noise else 0.1)
    if traced.returncode:
        sys.exit(f"{name} failed: exit code {traced.returncode}")


def _check(directory: Path, sessions: list[str], baselines: list[str]) -> dict[str, Any]:
    against = [word for name in baselines for word in ("--baseline", name)]
    command = [sys.executable, "-m", "iotrace", "check", *sessions, *against, "--json"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode not in (0, 4):
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
