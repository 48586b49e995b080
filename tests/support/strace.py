"""strace as the second opinion on read calls: which process read which file how often."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

AVAILABLE = shutil.which("strace") is not None

_READ = re.compile(r"^(?:read|pread64|readv|preadv)\(\d+<([^>]*)>.*= (\d+)$")
_THREAD = re.compile(r"^clone3?\(.*CLONE_THREAD.* = (\d+)$")
_OPEN = re.compile(r"^openat\(.*= \d+<([^>]*)>$")


def command(directory: Path) -> list[str]:
    """What to put before a command so that each of its threads gets a log in `directory`."""
    calls = "trace=read,pread64,readv,preadv,openat,clone,clone3"
    return ["strace", "-ff", "-y", "-qq", "--seccomp-bpf", "-e", calls, "-o", str(directory / "log")]


def reads(directory: Path, below: Path) -> Counter[tuple[str, str]]:
    """Successful read calls by process and by file below `below`."""
    return Counter((pid, path) for pid, path, _ in _reads(directory, below))


def read_bytes(directory: Path, below: Path) -> Counter[str]:
    """Bytes that the read calls returned, by file below `below`."""
    found: Counter[str] = Counter()
    for _, path, count in _reads(directory, below):
        found[path] += count
    return found


def opens(directory: Path, below: Path) -> Counter[str]:
    """Successful opens by file below `below`."""
    return Counter(
        match[1]
        for _, line in _lines(directory)
        if (match := _OPEN.match(line)) and Path(match[1]).is_relative_to(below)
    )


def _reads(directory: Path, below: Path) -> list[tuple[str, str, int]]:
    return [
        (pid, match[1], int(match[2]))
        for pid, line in _lines(directory)
        if (match := _READ.match(line)) and Path(match[1]).is_relative_to(below)
    ]


def _lines(directory: Path) -> list[tuple[str, str]]:
    """Every line with the pid of its process; strace writes a log for each thread."""
    logs = {log.suffix[1:]: log.read_text(errors="replace").splitlines() for log in directory.glob("log.*")}
    maker = {match[1]: tid for tid, lines in logs.items() for line in lines if (match := _THREAD.match(line))}

    def process(tid: str) -> str:
        while tid in maker:
            tid = maker[tid]
        return tid

    return [(process(tid), line) for tid, lines in logs.items() for line in lines]
