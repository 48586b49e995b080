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
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from iotrace.session import names
from iotrace.sources.telemetry import read_telemetry
from tests.support.nvml import build_standin, needs_compiler
from tests.support.perfetto import ERRORS, query
from tests.support.runs import Run, report_of, run_script

IOTRACE = [sys.executable, "-m", "iotrace", "run"]
MIB = 1 << 20
LIMIT_S = 30

# Main spins; its worker keeps 4 MiB of each of its items, and sleeps.
KNOWN = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Growing(Dataset):
    kept = []
    def __len__(self):
        return 40
    def __getitem__(self, index):
        self.kept.append(b"x" * (4 << 20))
        time.sleep(0.02)
        return torch.ones(4)

with open(os.environ["NVML_STANDIN_PIDS"], "w") as file:
    file.write(f"0 {os.getpid()} 3000000000\\n1 1 5\\n")
weight = torch.ones(4, requires_grad=True)
for batch in DataLoader(Growing(), batch_size=1, num_workers=1):
    (batch * weight).sum().backward()
    end = time.process_time() + 0.06
    while time.process_time() < end:
        pass
"""


def records(session: Path) -> list[dict[str, Any]]:
    """What the only sidecar of the session has written so far, a line that is being written left out."""
    (directory,) = (session / names.TELEMETRY).iterdir()
    lines = (directory / names.RECORDS).read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def sidecar_of(session: Path) -> int:
    """The pid of the session's sidecar, when it has seen a process of the command."""
    return int(eventually(lambda: _seen(session))[0]["pid"])


def _seen(session: Path) -> list[dict[str, Any]]:
    try:
        told = records(session)
    except (OSError, ValueError):
        return []
    return told if any(record["type"] == "process" for record in told) else []


def eventually(condition: Any, seconds: float = LIMIT_S) -> Any:
    """The first true value of `condition()`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def start(directory: Path, script: str, **variables: str) -> subprocess.Popen[str]:
    """A shell's script under iotrace, when it has written its line: the pid of the shell."""
    return subprocess.Popen(
        [*IOTRACE, "-o", "session", "--", "sh", "-c", f"echo $$; {script}"],
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
    launched = start(tmp_path, "(sleep 2 & echo $!); env -i sh -c 'echo $$; exec sleep 2'")
    shell, orphan, bare = (told_pid(launched) for _ in range(3))
    sidecar = sidecar_of(tmp_path / "session")
    assert os.getsid(sidecar) == sidecar  # no key on the terminal, no end of the launcher's session
    assert runs(sidecar)
    _, stderr = launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 0, stderr
    assert not runs(sidecar)  # the launcher waited for the last samples
    told = records(tmp_path / "session")
    assert told[-1]["type"] == "end"
    assert {shell, orphan, bare} <= {record["pid"] for record in told if record["type"] == "process"}
    assert "telemetry" not in stderr


def test_a_killed_launcher_leaves_it_until_the_program_ends(tmp_path: Path) -> None:
    launched = start(tmp_path, "exec sleep 60")
    program, sidecar = told_pid(launched), sidecar_of(tmp_path / "session")
    launched.kill()
    launched.wait()
    written = len(records(tmp_path / "session"))
    eventually(lambda: len(records(tmp_path / "session")) > written + 1)
    assert runs(sidecar)
    os.kill(program, signal.SIGKILL)
    eventually(lambda: not runs(sidecar), 5)
    assert records(tmp_path / "session")[-1]["type"] == "end"
    launched.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_program_and_a_key_for_the_group(tmp_path: Path, number: signal.Signals) -> None:
    launched = start(tmp_path, "exec sleep 60")
    program, sidecar = told_pid(launched), sidecar_of(tmp_path / "session")
    if number == signal.SIGINT:
        os.killpg(launched.pid, number)
    else:
        os.kill(program, number)
    launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 128 + number
    eventually(lambda: not runs(sidecar), 5)
    assert records(tmp_path / "session")[-1]["type"] == "end"


def test_a_daemon_that_the_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    launched = start(tmp_path, "setsid sleep 60 >/dev/null 2>&1 & echo $!; sleep 1")
    told_pid(launched)
    daemon, sidecar = told_pid(launched), sidecar_of(tmp_path / "session")
    try:
        launched.communicate(timeout=LIMIT_S)
        assert runs(daemon)
        eventually(lambda: not runs(sidecar), 5)
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_a_deleted_session_ends_it_and_nothing_else(tmp_path: Path) -> None:
    launched = start(tmp_path, "sleep 4; exit 7")
    sidecar = sidecar_of(tmp_path / "session")
    shutil.rmtree(tmp_path / "session")
    eventually(lambda: not runs(sidecar), 3)
    assert launched.poll() is None
    launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 7


def test_a_full_disk_ends_it_and_is_told(tmp_path: Path) -> None:
    """The limit on the size of files stands for a full disk: a write is refused in the middle."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    launched = subprocess.Popen(
        [*IOTRACE, "-o", "session", "--", "sleep", "6"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1])),
    )
    sidecar = sidecar_of(tmp_path / "session")
    eventually(lambda: not runs(sidecar), 6)
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


@pytest.mark.parametrize("descriptors", [64, 20])
def test_few_descriptors_hide_no_process(tmp_path: Path, descriptors: int) -> None:
    script = (
        "import subprocess as s; ps = [s.Popen(['sleep', '3']) for _ in range(30)]; [p.wait() for p in ps]"
    )
    done = subprocess.run(
        [*IOTRACE, "-q", "-o", "session", "--", sys.executable, "-c", script],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
        timeout=LIMIT_S,
    )
    assert done.returncode == 0
    told = records(tmp_path / "session")
    assert told[-1]["type"] == "end"
    children = Counter(record["ppid"] for record in told if record["type"] == "process")
    assert max(children.values()) == 30
    (sampled,) = read_telemetry(tmp_path / "session")
    assert all(len(process.samples) >= 5 for process in sampled.processes)


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
    launched = start(tmp_path, "sleep 2")
    os.kill(sidecar_of(tmp_path / "session"), signal.SIGKILL)
    launched.communicate(timeout=LIMIT_S)
    assert launched.returncode == 0
    told = {missing["what"]: missing["why"] for missing in report_of(tmp_path / "session")["not_captured"]}
    why = told[f"the end of the telemetry of {os.uname().nodename}"]
    assert why.startswith("its sampler was killed by SIGKILL")


def test_it_can_be_left_out(tmp_path: Path) -> None:
    line = [*IOTRACE, "--no-telemetry", "-o", "session", "--", "true"]
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
    launched = start(tmp_path, "sleep 2", OWN_VARIABLE="kept", IOTRACE_AGENT="session=/elsewhere")
    sidecar = sidecar_of(tmp_path / "session")
    variables = Path(f"/proc/{sidecar}/environ").read_bytes().split(b"\0")
    launched.communicate(timeout=LIMIT_S)
    assert b"OWN_VARIABLE=kept" in variables
    foreign = (b"LD_PRELOAD=", b"DFTRACER_", b"IOTRACE_AGENT=")
    assert not [variable for variable in variables if variable.startswith(foreign)]
    assert any(record["type"] == "unavailable" for record in records(tmp_path / "session"))
    assert not list(tmp_path.glob("imported"))


def test_the_launchers_of_one_job_have_one_sidecar_on_a_host(tmp_path: Path) -> None:
    line = [*IOTRACE, "-o", "session", "--", "sh", "-c", "sleep $SECONDS_TO_SLEEP"]
    common = {**os.environ, "IOTRACE_JOB": "job", "SLURM_NTASKS": "2"}
    launched = [
        subprocess.Popen(
            line,
            cwd=tmp_path,
            env={**common, "SLURM_PROCID": str(task), "SECONDS_TO_SLEEP": str(3 + 2 * task)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for task in range(2)
    ]
    assert [process.wait(LIMIT_S) for process in launched] == [0, 0]
    told = eventually(lambda: (own := records(tmp_path / "session"))[-1]["type"] == "end" and own, 5)
    shells = [record for record in told if record["type"] == "process" and record["name"] == "sh"]
    assert len(shells) == 2
    assert {record["ppid"] for record in shells} == {process.pid for process in launched}


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


def test_processes_use_what_the_program_used(known: Run) -> None:
    found = system(known)
    main, worker = found["processes"]
    assert (main["role"], worker["role"]) == ("main", "worker 0")
    # The agent's account is exact; the sampled one moves in ticks of 10 ms.
    together = main["cpu_pct_mean"] + worker["cpu_pct_mean"]
    assert together == pytest.approx(found["cpu_pct_mean"], rel=0.15, abs=5)
    assert main["cpu_pct_mean"] > 2 * worker["cpu_pct_mean"]
    # Of its 40 items some 37 are made in measured steps; a new process may be found late, and up to a quarter
    # of the steps lies outside of its samples.
    assert 80 * MIB < worker["rss_growth_bytes"] < 160 * MIB
    assert worker["rss_peak_bytes"] > 150 * MIB
    assert abs(main["rss_growth_bytes"]) < 40 * MIB
    assert max(main["rss_peak_bytes"], worker["rss_peak_bytes"]) < found["rss_peak_bytes"]
    assert found["rss_peak_bytes"] <= main["rss_peak_bytes"] + worker["rss_peak_bytes"]


def test_the_host_is_as_busy_as_the_program_made_it_or_more(known: Run) -> None:
    found = system(known)
    host = found["host"]
    assert host["cpu_busy_fraction"] * 100 * found["cpus"] > 0.7 * found["cpu_pct_mean"]
    assert 0 <= host["cpu_saturated_fraction"] <= 1
    assert 0 <= host["iowait_fraction"] <= 1
    assert host["memory_available_bytes_min"] > 0
    for fraction in host["pressure_fraction"].values():
        assert 0 <= fraction <= 1
    # Measured: 0.3 % of a core with nine processes; a shared machine is noisy.
    assert 0 < host["sampler_cpu_pct_mean"] < 3


def test_devices_say_what_the_stand_in_says(known: Run) -> None:
    (gpu,) = system(known)["gpus"]  # the program's memory is on this one alone
    assert (gpu["index"], gpu["uuid"], gpu["name"]) == (0, "GPU-stand-in-0", "Stand-in A")
    assert (gpu["util_pct_mean"], gpu["util_pct_peak"], gpu["util_source"]) == (80, 80, "buffered")
    assert gpu["memory_util_pct_mean"] == 30
    assert gpu["memory_bytes_peak"] == 4 << 30
    assert gpu["memory_total_bytes"] == 80 << 30
    assert gpu["rank_memory_bytes_peak"] == 3_000_000_000
    assert gpu["energy_source"] == "counter"
    assert gpu["power_w_mean"] == pytest.approx(300, rel=0.05)
    steps = known.report()["ranks"][0]["steps"]
    assert gpu["energy_j_per_step"] == pytest.approx(0.3 * steps["mean_ms"], rel=0.05)
    assert gpu["energy_j_per_sample"] == pytest.approx(gpu["energy_j_per_step"])
    assert (gpu["sm_clock_mhz_mean"], gpu["memory_clock_mhz_mean"]) == (1500, 2600)
    assert gpu["temperature_c_max"] == 60
    assert gpu["pcie_sent_bytes_per_s_mean"] == 2 * MIB
    assert (gpu["throttled_fraction"], gpu["throttle_reasons"]) == (1, {"power cap": 1})
    assert "gpu 0        Stand-in A: 80 % busy · 300 W" in known.stderr
    assert " J a sample" in known.stderr
    assert gpu["power_w_peak"] == 300
    assert re.search(r"grew over the measured steps: worker 0 [\d.]+ MiB", known.stderr)
    # The second device keeps no buffer of its power, which is polled all the same.
    assert not [item for item in known.report()["not_captured"] if "gpu" in item["what"]]


def test_counters_on_the_timeline_have_their_units(known: Run) -> None:
    errors, rows = query(
        known.session / "out" / "rank0.json.gz",
        ERRORS,
        """select process.name, track.name, max(value) from counter
           join process_counter_track track on counter.track_id = track.id join process using (upid)
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
    assert 20 < highest["rank 0 · main", "CPU %"] < 250
    assert 0 < highest[f"rank 0 · host {host}", "CPU %"] <= 100.1
    assert f"rank 0 · host {host}", "iowait %" in highest


# --- NVML that fails ---


def sampled(directory: Path, seconds: float, *flags: str, **variables: str) -> list[dict[str, Any]]:
    """The records of a sidecar beside a command that sleeps, with the stand-in for NVML."""
    library = build_standin(directory / "library", *flags)
    line = [*IOTRACE, "-o", "session", "--", "sleep", str(seconds)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), **variables}
    done = subprocess.run(line, cwd=directory, env=environment, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return records(directory / "session")


def gpu_records(told: list[dict[str, Any]], device: int) -> list[dict[str, Any]]:
    return [record for record in told if record["type"] == "gpu" and record["device"] == device]


@needs_compiler
def test_all_devices_and_mig_instances_are_found(tmp_path: Path) -> None:
    told = sampled(tmp_path, 1.5)
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
    stamps = [pair[0] for record in gpu_records(told, 0) for pair in record.get("util_samples", [])]
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
    told = sampled(tmp_path, 2.5, NVML_STANDIN_FAIL=asked)
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
    told = sampled(tmp_path, 2.5, "-DOLD_DRIVER", NVML_STANDIN_HANG="nvmlDeviceGetTemperature:0")
    # The second device answers on, by the functions of older drivers.
    later = gpu_records(told, 1)
    assert len(later) >= 3
    assert later[0]["clock_reasons"] == 1
    assert later[0]["memory_bytes"] == 3 << 30
    assert told[-1]["type"] == "end"


@needs_compiler
def test_a_driver_that_hangs_as_it_is_opened_is_told(tmp_path: Path) -> None:
    told = sampled(tmp_path, 3.5, NVML_STANDIN_HANG="nvmlInitWithFlags")
    why = {record["library"]: record["why"] for record in told if record["type"] == "unavailable"}
    assert why["NVML"].startswith("NVML: no answer for ")
    assert "amdsmi" in why  # it was asked all the same
    assert told[-1]["type"] == "end"


@needs_compiler
def test_a_driver_that_is_not_loaded_is_told_and_no_error(tmp_path: Path) -> None:
    told = sampled(tmp_path, 1, NVML_STANDIN_FAIL="nvmlInitWithFlags=9")
    why = {record["library"]: record["why"] for record in told if record["type"] == "unavailable"}
    assert why["NVML"] == "NVML: Driver Not Loaded"
    # Without an accelerator's device node nobody misses it.
    manifest = json.loads((tmp_path / "session" / names.MANIFEST).read_text())
    missing = [item["what"] for item in report_of(tmp_path / "session")["not_captured"]]
    assert any(what.startswith("gpu") for what in missing) == bool(manifest["accelerators"])
    manifest["accelerators"] = ["/dev/nvidia0"]
    (tmp_path / "session" / names.MANIFEST).write_text(json.dumps(manifest))
    missing = {item["what"]: item["why"] for item in report_of(tmp_path / "session")["not_captured"]}
    assert "NVML: Driver Not Loaded" in missing[f"gpu on {manifest['host']}"]
