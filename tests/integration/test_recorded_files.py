"""The recorder's files of real programs: no secret of a command line, and no more of them than is allowed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from iotrace.launch.capture_directory import make_private
from iotrace.session import names
from iotrace.sources.recorder.reader import read_recorded
from tests.support.recorded import RecordedFile
from tests.support.runs import launcher, run_traced
from tests.support.waiting import PATIENCE_S, eventually

SECRET = "hunter2-abcdef"
STARTS = f"""
import os, subprocess, sys
open("read.bin", "wb").write(b"1")
for run in (subprocess.run, lambda line: os.system(" ".join(line))):
    run([sys.executable, "-c", "open('read.bin').read()", "--password", "{SECRET}", "--api-key={SECRET}"])
"""
# Reads 300 us apart are bursts of their own: 56 bytes each.
READS = """
import os, time
with open("data.bin", "wb") as file:
    file.write(bytes(1 << 20))
file, count = os.open("data.bin", os.O_RDONLY), 0
while not os.path.exists("enough") or count < 40000:
    os.pread(file, 4096, count * 4096 % (1 << 20))
    count += 1
    time.sleep(200e-6 if count < 40000 else 0.01)
print(count)
"""
MIB = 1 << 20


def test_no_secret_of_a_command_line_is_in_the_files(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STARTS)
    run = run_traced(tmp_path, ["program.py", f"--token={SECRET}"], ["-q"])
    assert run.code == 0, run.stderr
    files = sorted((run.session / names.POSIX).glob(f"*{names.RECORDED_CALLS}"))
    assert len(files) >= 3
    assert not [path.name for path in files if SECRET.encode() in path.read_bytes()]
    assert {path.stat().st_mode & 0o777 for path in files} == {names.FILE_MODE}
    assert any(b"read.bin" in path.read_bytes() for path in files)


def test_the_files_are_made_private_and_stay_as_they_are(tmp_path: Path) -> None:
    file = RecordedFile(7, 1, 1)
    file.name_file(3, f'/d/{{"name":"FH","args":{{"name":"--password={SECRET}"')
    path = file.write(tmp_path)
    before = path.read_bytes()
    os.chmod(path, 0o644)
    make_private(tmp_path)
    assert path.stat().st_mode & 0o777 == names.FILE_MODE
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_program_goes_on_while_its_oldest_calls_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(READS)
    line, session = launcher(tmp_path, ["program.py"], ["-q", "--max-size", "2MiB"])
    running = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:

        def held() -> tuple[int, int]:
            files = [path.stat() for path in (session / names.POSIX).glob(f"*{names.RECORDED_CALLS}")]
            return sum(file.st_size for file in files), sum(512 * file.st_blocks for file in files)

        eventually(lambda: held()[0] > 5 * MIB // 2)
        eventually(lambda: held()[1] < 2 * MIB)
        (tmp_path / "enough").touch()
        printed = running.communicate(timeout=PATIENCE_S)[0]
    finally:
        running.kill()
    assert running.returncode == 0
    calls = read_recorded([session / names.POSIX])
    assert any("beyond --max-size" in problem for problem in calls.problems)
    assert calls.sums is not None
    data = calls.files.index(str(tmp_path / "data.bin"))
    reads = calls.sums.kinds[(calls.sums.file == data) & (calls.sums.group == 1)]
    assert reads.sum() == int(printed)
    assert 0 < calls.calls[(calls.file == data) & calls.named(["pread64"])].sum() < int(printed)
