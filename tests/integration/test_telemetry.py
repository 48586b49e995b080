"""The sidecar: it lives as long as the command, harms nothing, and tells what known programs use."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.rank import SessionAnalysis
from iotrace.session import names
from iotrace.sources.processes import read_processes
from iotrace.sources.samples import read_sidecars
from iotrace.sources.session import open_session
from iotrace.sources.telemetry import read_telemetry
from tests.support.nvml import build_standin, needs_compiler
from tests.support.perfetto import ERRORS, query
from tests.support.runs import Run, report_of, run_script
from tests.support.waiting import PATIENCE_S, TURNS, eventually, runs

IOTRACE = [sys.executable, "-m", "iotrace", "run"]
MIB = 1 << 20
LIMIT_S = PATIENCE_S
WAITS = "while [ ! -e go ]; do sleep 0.1; done"

Records = list[dict[str, Any]]

# Main spins; its worker sleeps, and keeps 4 MiB of each of 40 items, which are made when the sidecar has seen
# the steps. Both say what they used. It goes on until what the sidecar asks for seldom, and so all
# else, has samples that stand for most of its steps.
KNOWN = (
    TURNS
    + """
import glob, json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Growing(Dataset):
    kept = []
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if 20 <= index < 60:
            self.kept.append(b"x" * (4 << 20))
        time.sleep(0.02)
        tell("worker")
        return torch.ones(4)

def tell(who):
    os.write(1, f"{who} {time.monotonic_ns()} {time.process_time_ns()}\\n".encode())

def records():
    (path,) = glob.glob("session-*/telemetry/*/records.jsonl")
    return [json.loads(line) for line in open(path).read().split("\\n")[:-1]]

def seen_for_most_of_the_steps():
    told = [each for each in records() if "pcie_sent_bytes_per_s" in each and not each["device"]]
    asked_ns = [each["mono_ns"] for each in told]
    steps_ns = time.monotonic_ns() - began_ns
    since_ns = [min(after - before, after - began_ns) for before, after in zip(asked_ns, asked_ns[1:])]
    return sum(min(each, 2.5e9) for each in since_ns if each > 0) > 0.85 * steps_ns

with open(os.environ["NVML_STANDIN_PIDS"], "w") as file:
    file.write(f"0 {os.getpid()} 3000000000\\n1 1 5\\n")
weight = torch.ones(4, requires_grad=True)
began_ns = time.monotonic_ns()
for number, batch in enumerate(DataLoader(Growing(), batch_size=1, num_workers=1)):
    tell("main")
    if number == 10:
        seen = turns()
        while turns() < seen + 3:
            time.sleep(0.1)
    if number >= 70 and number % 5 == 0 and seen_for_most_of_the_steps():
        break
    (batch * weight).sum().backward()
    end = time.process_time() + 0.06
    while time.process_time() < end:
        pass
"""
)


def records(session: Path) -> list[dict[str, Any]]:
    """What the only sidecar of the session has written so far, a line that is being written left out."""
    (directory,) = (session / names.TELEMETRY).iterdir()
    lines = (directory / names.RECORDS).read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def sidecar_of(session: Path) -> int:
    """The pid of the session's sidecar, when it has seen a process of the command."""
    return int(eventually(lambda: _seen(session))[0]["pid"])


def pids_of(session: Path) -> set[int]:
    return {record["pid"] for record in records(session) if record["type"] == "process"}


def _seen(session: Path) -> list[dict[str, Any]]:
    try:
        told = records(session)
    except (OSError, ValueError):
        return []
    return told if any(record["type"] == "process" for record in told) else []


def start(
    directory: Path, script: str, options: tuple[str, ...] = ("-q",), **variables: str
) -> subprocess.Popen[str]:
    """A shell's script under iotrace, when it has written its line: the pid of the shell."""
    return subprocess.Popen(
        [*IOTRACE, *options, "-o", "session", "--", "sh", "-c", f"echo $$; {script}"],
        cwd=directory,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def told_pid(launched: subprocess.Popen[str]) -> int:
    assert launched.stdout is not None
    return int(launched.stdout.readline())


# --- its life ---


def test_it_ends_with_the_command(tmp_path: Path) -> None:
    # One process has lost its parent, the other its environment: both are found.
    launched = start(tmp_path, f"(sh -c '{WAITS}' & echo $!); env -i sh -c 'echo $$; {WAITS}'", options=())
    shell, orphan, bare = (told_pid(launched) for _ in range(3))
    sidecar = sidecar_of(tmp_path / "session")
    assert os.getsid(sidecar) == sidecar  # no key on the terminal, no end of the launcher's session
    assert runs(sidecar)
    eventually(lambda: {shell, orphan, bare} <= pids_of(tmp_path / "session"))
    (tmp_path / "go").touch()
    _, stderr = launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 0, stderr
    assert not runs(sidecar)  # the launcher waited for the last samples
    told = records(tmp_path / "session")
    assert told[-1]["type"] == "end"
    assert "telemetry" not in stderr


def test_a_killed_launcher_leaves_it_until_the_program_ends(tmp_path: Path) -> None:
    launched = start(tmp_path, "exec sleep 600")
    program, sidecar = told_pid(launched), sidecar_of(tmp_path / "session")
    launched.kill()
    launched.wait()
    written = len(records(tmp_path / "session"))
    eventually(lambda: len(records(tmp_path / "session")) > written + 1)
    assert runs(sidecar)
    os.kill(program, signal.SIGKILL)
    eventually(lambda: not runs(sidecar))
    assert records(tmp_path / "session")[-1]["type"] == "end"
    launched.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_program_and_a_key_for_the_group(tmp_path: Path, number: signal.Signals) -> None:
    launched = start(tmp_path, "exec sleep 600")
    program, sidecar = told_pid(launched), sidecar_of(tmp_path / "session")
    if number == signal.SIGINT:
        os.killpg(launched.pid, number)
    else:
        os.kill(program, number)
    launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 128 + number
    eventually(lambda: not runs(sidecar))
    assert records(tmp_path / "session")[-1]["type"] == "end"


def test_a_daemon_that_the_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    launched = start(tmp_path, "setsid sleep 600 >/dev/null 2>&1 & echo $!; sleep 1")
    told_pid(launched)
    daemon, sidecar = told_pid(launched), sidecar_of(tmp_path / "session")
    try:
        launched.communicate(timeout=LIMIT_S)
        assert runs(daemon)
        eventually(lambda: not runs(sidecar))
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_deleted_session_ends_it_and_nothing_else(tmp_path: Path) -> None:
    launched = start(tmp_path, f"{WAITS}; exit 7")
    sidecar = sidecar_of(tmp_path / "session")
    shutil.rmtree(tmp_path / "session")
    eventually(lambda: not runs(sidecar))
    assert launched.poll() is None
    (tmp_path / "go").touch()
    launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 7


def test_a_full_disk_ends_it_and_is_told(tmp_path: Path) -> None:
    """The limit on the size of files stands for a full disk: a write is refused in the middle."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    launched = subprocess.Popen(
        [*IOTRACE, "-q", "-o", "session", "--", "sh", "-c", WAITS],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1])),
    )
    sidecar = sidecar_of(tmp_path / "session")
    eventually(lambda: not runs(sidecar))
    (tmp_path / "go").touch()
    launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 0
    told = records(tmp_path / "session")  # whole lines alone
    assert told[0]["type"] == "sampler"
    report = report_of(tmp_path / "session")
    assert report["session"]["complete"] is False
    assert any(
        "telemetry" in missing["what"] and "could not write" in missing["why"]
        for missing in report["not_captured"]
    )


def sampled_often(session: Path, processes: int) -> bool:
    """Whether so many processes have five samples each by now."""
    (sampled,) = read_telemetry(read_sidecars(session))
    return sum(len(process.samples) >= 5 for process in sampled.processes) >= processes


@pytest.mark.parametrize("descriptors", [64, 20])
def test_few_descriptors_hide_no_process(tmp_path: Path, descriptors: int) -> None:
    script = (
        "import subprocess as s; ps = [s.Popen(['sleep', '600']) for _ in range(30)]\n"
        "input(); [p.kill() for p in ps]; [p.wait() for p in ps]"
    )
    launched = subprocess.Popen(
        [*IOTRACE, "-q", "-o", "session", "--", sys.executable, "-c", script],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
        stdin=subprocess.PIPE,
    )
    sidecar_of(tmp_path / "session")
    eventually(lambda: sampled_often(tmp_path / "session", 31))
    launched.communicate(b"\n", timeout=LIMIT_S)
    assert launched.returncode == 0
    told = records(tmp_path / "session")
    assert told[-1]["type"] == "end"
    children = Counter(record["ppid"] for record in told if record["type"] == "process")
    assert max(children.values()) == 30


def test_a_sidecar_that_fails_says_why(tmp_path: Path) -> None:
    done = subprocess.run(
        [*IOTRACE, "-q", "-o", "session", "--", "sleep", "2"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)),
        timeout=LIMIT_S,
    )
    assert done.returncode == 0
    missing = report_of(tmp_path / "session")["not_captured"]
    (why,) = [item["why"] for item in missing if "telemetry" in item["what"]]
    # Whichever descriptor it lacks first: a file to read, one to write, its log.
    assert any(part in why for part in ("failed: OSError", "could not write", "did not start"))


def test_a_killed_sidecar_is_told(tmp_path: Path) -> None:
    launched = start(tmp_path, WAITS)
    os.kill(sidecar_of(tmp_path / "session"), signal.SIGKILL)
    (tmp_path / "go").touch()
    launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 0
    told = {missing["what"]: missing["why"] for missing in report_of(tmp_path / "session")["not_captured"]}
    why = told[f"the end of the telemetry of {os.uname().nodename}"]
    assert why.startswith("its sampler was killed by SIGKILL")


def test_it_can_be_left_out(tmp_path: Path) -> None:
    line = [*IOTRACE, "-q", "--no-telemetry", "-o", "session", "--", "true"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0
    assert not (tmp_path / "session" / names.TELEMETRY).exists()
    assert "telemetry" in [missing["what"] for missing in report_of(tmp_path / "session")["not_captured"]]


def test_a_command_that_cannot_run_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/no/such/interpreter\n")
    (tmp_path / "program").chmod(0o755)
    line = [*IOTRACE, "-o", "session", "--", "./program"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 127
    assert not (tmp_path / "session").exists()


def test_it_has_the_launchers_environment_and_imports_nothing_from_the_directory(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("open('imported', 'w')")
    launched = start(tmp_path, WAITS, OWN_VARIABLE="kept", IOTRACE_AGENT="session=/elsewhere")
    sidecar = sidecar_of(tmp_path / "session")
    variables = Path(f"/proc/{sidecar}/environ").read_bytes().split(b"\0")
    eventually(lambda: any(record["type"] == "unavailable" for record in records(tmp_path / "session")))
    (tmp_path / "go").touch()
    launched.communicate(timeout=LIMIT_S)
    assert b"OWN_VARIABLE=kept" in variables
    foreign = (b"LD_PRELOAD=", b"DFTRACER_", b"IOTRACE_AGENT=")
    assert not [variable for variable in variables if variable.startswith(foreign)]
    assert not list(tmp_path.glob("imported"))


def test_the_launchers_of_one_job_have_one_sidecar_on_a_host(tmp_path: Path) -> None:
    waits = "while [ ! -e go$SLURM_PROCID ]; do sleep 0.1; done"
    line = [*IOTRACE, "-q", "-o", "session", "--", "sh", "-c", waits]
    common = {**os.environ, "IOTRACE_JOB": "job", "SLURM_NTASKS": "2"}
    launched = [
        subprocess.Popen(
            line,
            cwd=tmp_path,
            env={**common, "SLURM_PROCID": str(task)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for task in range(2)
    ]
    launchers = {process.pid for process in launched}
    session = tmp_path / "session"
    eventually(lambda: launchers <= {each["ppid"] for each in of_type(_seen(session), "process")})
    for task, process in enumerate(launched):
        (tmp_path / f"go{task}").touch()
        assert process.wait(LIMIT_S) == 0
    told = eventually(lambda: (own := records(session))[-1]["type"] == "end" and own)
    # A child of a shell has its name, too, until it is `sleep`.
    shells = [each for each in told if each["type"] == "process" and each["ppid"] in launchers]
    assert [each["name"] for each in shells] == ["sh", "sh"]
    assert {each["ppid"] for each in shells} == launchers


# --- its figures ---


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The known program with the stand-in for NVML."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) for the stand-in of NVML")
    directory = tmp_path_factory.mktemp("known")
    library = build_standin(directory / "library")
    run = run_script(
        directory,
        KNOWN,
        LD_LIBRARY_PATH=str(library),
        NVML_STANDIN_PIDS=str(directory / "pids"),
        OMP_NUM_THREADS="1",
    )
    assert run.code == 0, run.stderr
    return run


def system(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.report()["ranks"][0]["system"]
    return found


def told_by(run: Run, who: str) -> list[tuple[int, int]]:
    """When a process of the program read its clock, and the CPU time it had used by then, ns."""
    lines = [line.split() for line in run.stdout.splitlines()]
    return [(int(when), int(used)) for name, when, used in lines if name == who]


@pytest.mark.parametrize("who", ["main", "worker"])
def test_the_cpu_time_of_a_process_is_what_it_says_itself(known: Run, who: str) -> None:
    """Each sample lies between what the process had used before and what it had used after."""
    own = told_by(known, who)
    process = next(
        item for item in read_processes(known.session)[0] if (item.identity.role == "main") == (who == "main")
    )
    (telemetry,) = read_telemetry(read_sidecars(known.session))
    sampled = telemetry.process_of(process)
    assert sampled is not None
    cpu = sampled.series("cpu_ns")
    assert cpu is not None
    slack_ns = 30_000_000  # the kernel's ticks of 10 ms
    told_ns = [process.clock.to_session_ns(when) for when, _ in own]
    checked = 0
    for time_ns, used_ns in zip(cpu.time_ns.tolist(), cpu.value.tolist(), strict=True):
        after = bisect(told_ns, time_ns)
        if 0 < after < len(own):
            assert own[after - 1][1] - slack_ns <= used_ns <= own[after][1] + slack_ns
            checked += 1
    assert checked > 5


def test_memory_grew_by_what_the_worker_keeps(known: Run) -> None:
    found = system(known)
    main, worker = found["processes"]
    assert (main["role"], worker["role"]) == ("main", "worker 0")
    assert 150 * MIB < worker["rss_growth_bytes"] <= 180 * MIB
    assert worker["rss_peak_bytes"] > 150 * MIB
    assert abs(main["rss_growth_bytes"]) < 40 * MIB
    assert max(main["rss_peak_bytes"], worker["rss_peak_bytes"]) < found["rss_peak_bytes"]
    assert found["rss_peak_bytes"] <= main["rss_peak_bytes"] + worker["rss_peak_bytes"]


def test_the_host_is_told_within_its_bounds(known: Run) -> None:
    host = system(known)["host"]
    for fraction in ("cpu_busy_fraction", "cpu_saturated_fraction", "iowait_fraction"):
        assert 0 <= host[fraction] <= 1
    assert host["cpu_busy_fraction"] > 0
    assert host["memory_available_bytes_min"] > 0
    for fraction in host["pressure_fraction"].values():
        assert 0 <= fraction <= 1
    assert host["sampler_cpu_pct_mean"] > 0  # how much is measured by tools/bench overhead
    assert host["calibration"]["quartile_us"] <= host["calibration"]["median_us"]


def test_energy_is_what_the_counter_grew_by_in_the_measured_steps(known: Run) -> None:
    session = open_session(known.session)
    (energy,) = [
        device.series["energy_j"] for device in session.telemetry[0].devices if device.about.index == 0
    ]
    # The stand-in uses 300 W. Each record's counter was read after its time, and before the next record's.
    times, counter = energy.time_ns, energy.value
    slack_j = 10  # clocks are slewed
    assert counter[-1] - counter[0] >= 300 * (times[-1] - times[1]) / 1e9 - slack_j
    assert counter[-2] - counter[0] <= 300 * (times[-1] - times[0]) / 1e9 + slack_j
    (rank,) = SessionAnalysis(session).ranks
    pieces = np.array([piece for step in rank.kept for piece in step.pieces])
    since_first = (pieces - times[0]).astype(float)
    used_j = np.diff(np.interp(since_first, (times - times[0]).astype(float), counter)).sum()
    (gpu,) = system(known)["gpus"]
    assert gpu["energy_j_per_step"] == pytest.approx(used_j / len(rank.kept), rel=1e-6)
    assert gpu["power_w_mean"] == pytest.approx(used_j / (np.diff(pieces).sum() / 1e9), rel=1e-6)


def test_devices_say_what_the_stand_in_says(known: Run) -> None:
    (gpu,) = system(known)["gpus"]  # the program's memory is on this one alone
    assert (gpu["index"], gpu["uuid"], gpu["name"]) == (0, "GPU-stand-in-0", "Stand-in A")
    assert (gpu["util_pct_mean"], gpu["util_pct_peak"], gpu["util_source"]) == (80, 80, "buffered")
    assert gpu["memory_util_pct_mean"] == 30
    assert gpu["memory_bytes_peak"] == 4 << 30
    assert gpu["memory_total_bytes"] == 80 << 30
    assert gpu["rank_memory_bytes_peak"] == 3_000_000_000
    assert gpu["energy_source"] == "counter"
    assert gpu["energy_j_per_sample"] == pytest.approx(gpu["energy_j_per_step"])
    assert (gpu["sm_clock_mhz_mean"], gpu["memory_clock_mhz_mean"]) == (1500, 2600)
    assert gpu["temperature_c_max"] == 60
    assert gpu["pcie_sent_bytes_per_s_mean"] == 2 * MIB
    assert (gpu["throttled_fraction"], gpu["throttle_reasons"]) == (1, {"power cap": 1})
    told = known.details()
    assert "gpu 0        Stand-in A: 80 % busy · 300 W" in told
    assert " J a sample" in told
    assert gpu["power_w_peak"] == 300
    assert re.search(r"grew over the measured steps: worker 0 [\d.]+ MiB", told)
    # The second device keeps no buffer of its power, which is polled all the same.
    assert not [item for item in known.report()["not_captured"] if "gpu" in item["what"]]


def test_counters_on_the_timeline_have_their_units(known: Run) -> None:
    errors, rows = query(
        known.timeline(),
        ERRORS,
        """select above.name, track.name, max(value) from counter
           join track on counter.track_id = track.id join track above on track.parent_id = above.id
           group by 1, 2""",
    )
    assert errors == []
    highest = {(process.split(" (")[0], counter): value for process, counter, value in rows}
    host = os.uname().nodename
    assert highest["rank 0 · gpu 0 Stand-in A", "utilisation %"] == 80
    assert highest["rank 0 · gpu 0 Stand-in A", "power W"] == 300
    assert highest["rank 0 · gpu 0 Stand-in A", "memory bytes"] == 4 << 30
    assert highest["rank 0 · gpu 0 Stand-in A", "SM clock MHz"] == 1500
    assert highest["rank 0 · gpu 0 Stand-in A", "temperature °C"] == 60
    assert highest["rank 0 · worker 0", "RSS bytes"] == system(known)["processes"][1]["rss_peak_bytes"]
    assert highest["rank 0 · main", "CPU %"] > 0
    assert 0 < highest[f"host {host}", "CPU %"] <= 100.1
    assert (f"host {host}", "iowait %") in highest


# --- NVML that fails ---


def sampled(
    directory: Path, until: Callable[[Records], object], *flags: str, **variables: str
) -> list[dict[str, Any]]:
    """The records of a sidecar with the stand-in for NVML; the command runs until `until` is true of them."""
    library = build_standin(directory / "library", *flags)
    launched = start(directory, WAITS, LD_LIBRARY_PATH=str(library), **variables)
    session = directory / "session"
    eventually(lambda: bool(_seen(session)) and until(records(session)))
    (directory / "go").touch()
    _, stderr = launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 0, stderr
    return records(session)


def of_type(told: Records, kind: str) -> Records:
    return [record for record in told if record["type"] == kind]


def reasons(told: Records) -> dict[str, str]:
    """Why libraries are unavailable."""
    return {record["library"]: record["why"] for record in of_type(told, "unavailable")}


def stamps_of(told: Records) -> list[int]:
    """The stamps of the first device's buffered samples of its utilisation."""
    return [pair[0] for record in gpu_records(told, 0) for pair in record.get("util_samples", [])]


def gpu_records(told: list[dict[str, Any]], device: int) -> list[dict[str, Any]]:
    return [record for record in told if record["type"] == "gpu" and record["device"] == device]


@needs_compiler
def test_all_devices_and_mig_instances_are_found(tmp_path: Path) -> None:
    told = sampled(tmp_path, lambda told: len(stamps_of(told)) >= 4 and len(of_type(told, "problem")) >= 2)
    devices = [record for record in told if record["type"] == "device"]
    assert [(device["index"], device["instance"], device["name"]) for device in devices] == [
        (0, None, "Stand-in A"),
        (1, None, "Stand-in B"),
        (1, 0, "Stand-in B MIG 1g"),
        (1, 2, "Stand-in B MIG 2g"),
    ]
    assert gpu_records(told, 2)[0]["memory_bytes"] == 1 << 30
    # The second device's power is in no buffer: told once. Each sample of the others comes once.
    assert [(p["device"], p["figure"]) for p in told if p["type"] == "problem"] == [
        (1, "memory utilisation samples"),
        (1, "power samples"),
    ]
    stamps = stamps_of(told)
    assert len(stamps) == len(set(stamps)) >= 4
    assert all(record["cost_ns"]["utilisation"] > 0 for record in gpu_records(told, 0))


@needs_compiler
def test_each_failure_makes_that_figure_unknown_for_that_device(tmp_path: Path) -> None:
    failures = {
        "nvmlDeviceGetPowerUsage:0": 10,  # timeout
        "nvmlDeviceGetTemperature:0": 4,  # no permission
        "nvmlDeviceGetTotalEnergyConsumption:0": 3,  # not supported
        "nvmlDeviceGetClockInfo:0": 999,
        "nvmlDeviceGetMemoryInfo_v2:1": 15,  # the GPU is lost
    }
    asked = ",".join(f"{function}={code}" for function, code in failures.items())
    told = sampled(
        tmp_path,
        lambda told: len(gpu_records(told, 0)) >= 3 and len(of_type(told, "problem")) >= 6,
        NVML_STANDIN_FAIL=asked,
    )
    problems = [(p["device"], p["figure"], p["why"]) for p in told if p["type"] == "problem"]
    assert sorted(problem for problem in problems if problem[0] == 0) == [
        (0, "SM clock", "Unknown Error"),
        (0, "energy", "Not Supported"),
        (0, "memory clock", "Unknown Error"),
        (0, "power", "Timeout"),
        (0, "temperature", "Insufficient Permissions"),
    ]
    assert (1, "memory", "GPU is lost") in problems
    healthy = gpu_records(told, 0)
    assert len(healthy) >= 3
    assert all(record["util_pct"] == 80 for record in healthy)
    unknown = {"power_w", "temperature_c", "energy_j", "sm_clock_mhz"}
    assert not any(unknown & record.keys() for record in healthy)
    assert len(gpu_records(told, 1)) == 1  # a lost device is asked no more
    missing = {item["what"]: item["why"] for item in report_of(tmp_path / "session")["not_captured"]}
    why = missing[f"part of gpu 0 on {os.uname().nodename}"]
    assert "power: Timeout" in why
    assert "SM clock, memory clock: Unknown Error" in why


@needs_compiler
def test_an_older_driver_and_one_that_hangs(tmp_path: Path) -> None:
    told = sampled(
        tmp_path,
        lambda told: len(gpu_records(told, 1)) >= 3,
        "-DOLD_DRIVER",
        NVML_STANDIN_HANG="nvmlDeviceGetTemperature:0",
    )
    # The second device answers on, by the functions of older drivers.
    later = gpu_records(told, 1)
    assert len(later) >= 3
    assert later[0]["clock_reasons"] == 1
    assert later[0]["memory_bytes"] == 3 << 30
    assert told[-1]["type"] == "end"


@needs_compiler
def test_a_driver_that_hangs_as_it_is_opened_is_told(tmp_path: Path) -> None:
    others = {"amdsmi", "Level Zero"}
    told = sampled(
        tmp_path,  # for the seconds after which it is told at the command's end
        lambda told: others <= reasons(told).keys() and len(of_type(told, "system")) > 4,
        NVML_STANDIN_HANG="nvmlInitWithFlags",
    )
    why = reasons(told)
    assert why["NVML"].startswith("NVML: no answer for ")
    assert others < why.keys()  # they were asked all the same
    assert told[-1]["type"] == "end"


@needs_compiler
def test_a_driver_that_is_not_loaded_is_told_and_no_error(tmp_path: Path) -> None:
    told = sampled(tmp_path, lambda told: "NVML" in reasons(told), NVML_STANDIN_FAIL="nvmlInitWithFlags=9")
    why = reasons(told)
    assert why["NVML"] == "NVML: Driver Not Loaded"
    # Without an accelerator's device node nobody misses it.
    manifest = json.loads((tmp_path / "session" / names.MANIFEST).read_text())
    missing = [item["what"] for item in report_of(tmp_path / "session")["not_captured"]]
    assert any(what.startswith("gpu") for what in missing) == bool(manifest["accelerators"])
    manifest["accelerators"] = ["/dev/nvidia0"]
    (tmp_path / "session" / names.MANIFEST).write_text(json.dumps(manifest))
    missing = {item["what"]: item["why"] for item in report_of(tmp_path / "session")["not_captured"]}
    assert "NVML: Driver Not Loaded" in missing[f"gpu on {manifest['host']}"]
