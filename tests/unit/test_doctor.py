"""The doctor's judgements, on made-up machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from iotrace.analysis.rules.facts.host import Demand
from iotrace.doctor.checks import accelerators
from iotrace.doctor.checks.accelerators import TorchFacts, judge_amd, judge_intel, judge_nvidia, judge_torch
from iotrace.doctor.checks.host import (
    Limited,
    check_clock_source,
    check_copies,
    check_cpus,
    check_limits,
    check_memory,
    check_shm,
    check_synchronised,
    check_telemetry,
    cpu_limit,
    memory_limit,
    most_processes,
)
from iotrace.doctor.checks.interpreter import (
    check_agent,
    check_command,
    check_posix,
    check_python,
    check_start_method,
    judge,
)
from iotrace.doctor.checks.storage import Mount, check_output, find_mount, mounts, output
from iotrace.doctor.command import count_hosts, find_interpreter, parse_demand
from iotrace.doctor.diagnose import consequences
from iotrace.doctor.probe import READS, InterpreterFacts, Probe
from iotrace.doctor.results import Check, ok, unknown
from iotrace.launch.posix import PosixCapture
from iotrace.launch.telemetry import procfs
from iotrace.session import names

PATH = os.environ["PATH"]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def groups(directory: Path, membership: str) -> tuple[str, str]:
    """Groups in a made-up tree: of version 2 in it, of version 1 in directories by controller."""
    v1 = "".join(
        f"cgroup {directory}/{name} cgroup rw,{name} 0 0\n"
        for name in ("cpu,cpuacct", "cpu", "memory")
        if (directory / name).exists()
    )
    return membership, f"{v1}cgroup2 {directory} cgroup2 rw 0 0\n"


def test_the_tightest_quota_of_v2_holds_wherever_it_stands(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "user/cpu.max", "150000 100000\n")
    write(tmp_path / "user/job/cpu.max", "400000 100000\n")
    write(tmp_path / "user/memory.max", "2147483648\n")
    write(tmp_path / "user/job/memory.max", "max\n")
    job = groups(tmp_path, "0::/user/job\n")
    assert cpu_limit(job) == 1.5
    assert memory_limit(job) == Limited(2 << 30, None)


def test_quotas_of_v1(tmp_path: Path) -> None:
    write(tmp_path / "cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "memory/job/memory.limit_in_bytes", "1073741824\n")
    write(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    job = groups(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n")
    assert cpu_limit(job) == 0.5
    assert memory_limit(job) == Limited(1 << 30, None)


def test_a_kernel_without_control_groups_limits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "MEMBERSHIP", tmp_path / "none")
    assert memory_limit(procfs.read_own()) is cpu_limit(procfs.read_own()) is None


def test_page_cache_that_is_given_up_when_wanted_is_not_used_memory(tmp_path: Path) -> None:
    """Those read twice, which are active, are given up as well; what lies in /dev/shm is not."""
    for path, limit, usage, stat in (
        ("v2", "memory.max", "memory.current", "file 700\nshmem 100\ninactive_file 50\n"),
        ("v1/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache 700\ntotal_shmem 100\n"),
    ):
        write(tmp_path / path / limit, "1000\n")
        write(tmp_path / path / usage, "900\n")
        write(tmp_path / path / "memory.stat", stat)
    assert memory_limit(groups(tmp_path / "v2", "0::/\n")) == Limited(1000, 700)
    assert memory_limit(groups(tmp_path / "v1", "1:memory:/\n")) == Limited(1000, 700)


def test_no_limit_is_none(tmp_path: Path) -> None:
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    # In a container the path is the host's, of which the root alone is mounted.
    container = groups(tmp_path, "2:cpu:/docker/abc\n1:memory:/docker/abc\n")
    assert cpu_limit(container) is None
    assert memory_limit(container) is None


def test_workers_on_too_few_cpus() -> None:
    check = check_cpus(1.5, affinity=16, cpus=64, demand=Demand(4))
    assert check.status == "warning"
    assert "4 workers and the training process on 1.5 CPUs" in check.what
    assert "num_workers to 1" in check.remedy
    assert check_cpus(None, 16, 16, Demand(4)).status == "ok"
    assert check_cpus(2.0, 16, 16, Demand()).status == "warning"
    assert "4 of 16" in check_cpus(None, 4, 16, Demand()).what


def test_no_remedy_asks_for_what_is_so_or_cannot_be() -> None:
    one = check_cpus(None, 1, 1, Demand(1))
    assert (one.status, one.what) == ("warning", "1 worker and the training process on 1 CPU")
    assert one.remedy == "ask for 2 CPUs; with num_workers 0 the training process loads by itself"
    assert "OMP_NUM_THREADS to 1," in check_cpus(0.5, 2, 2, Demand()).remedy
    assert "OMP_NUM_THREADS to 2," in check_cpus(2.0, 16, 16, Demand(), threads=16).remedy
    assert check_cpus(2.0, 16, 16, Demand(), threads=2).status == "ok"
    ranks = check_cpus(None, 2, 2, Demand(1, ranks=8))
    assert (ranks.status, ranks.what) == ("warning", "8 training processes with 1 worker each on 2 CPUs")
    assert ranks.remedy == "ask for 16 CPUs, or start fewer training processes"
    assert (
        check_cpus(None, 64, 64, Demand(16, ranks=4)).remedy == "set num_workers to 15 or ask for more CPUs"
    )


def test_memory() -> None:
    total, available = 16 << 30, 12 << 30
    assert check_memory(None, total, available, Demand()).what == "12.0 GiB available of 16.0 GiB"
    free = Limited(4 << 30, 3 << 30)
    allowed = "the control group allows 4.0 GiB of 16.0 GiB"
    assert check_memory(free, total, available, Demand()).what == f"{allowed}, of which 3.0 GiB are available"
    assert check_memory(Limited(4 << 30, None), total, available, Demand()).what == allowed
    used_up = check_memory(Limited(4 << 30, 300 << 20), total, available, Demand())
    assert (used_up.status, used_up.what) == ("warning", f"{allowed}, of which 300.0 MiB are available")
    assert check_memory(None, total, 1000 << 10, Demand()).status == "warning"


def test_memory_of_each_process_and_copies_of_the_data() -> None:
    demand = Demand(3, ranks=2)
    assert check_memory(None, 16 << 30, 12 << 30, demand).what.endswith(", 1.5 GiB for each of 8 processes")
    (told,) = check_copies(demand, 2 << 30, 12 << 30)
    assert (told.status, told.what) == ("ok", "2.0 GiB of data fits once; 8 copies are 16.0 GiB")
    assert "does not fit" in check_copies(demand, 20 << 30, 12 << 30)[0].what
    assert check_copies(demand, 1 << 30, 12 << 30) == []
    assert check_copies(Demand(), 20 << 30, 12 << 30) == []  # how many workers is not known


def test_batches_in_flight_have_shared_memory_and_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["python", "train.py", "--num-workers", "4", "--prefetch-factor=8", "--batch-size", "16"]
    demand = replace(parse_demand(words), ranks=2)
    assert demand.in_flight == 64
    large = SimpleNamespace(total=4 << 30, free=4 << 30)
    monkeypatch.setattr("psutil.disk_usage", lambda _: large)
    shown = check_shm("/dev/shm", demand).what
    assert shown.endswith("64.0 MiB for each of 64 batches in flight (4.0 MiB a sample)")
    assert check_shm("/dev/shm", Demand(4)).what.endswith("512.0 MiB for each of 8 batches in flight")
    limits = {"open files": 1024, "processes": -1, "file size": -1}
    enough = check_limits(limits, demand)
    assert enough.status == "ok"
    assert enough.what.endswith("; 24 tensors in each of 32 batches in flight of a rank")
    few = check_limits(limits, Demand(32, prefetch=4))
    assert (few.status, few.remedy) == ("warning", "ulimit -n 2048")
    assert check_limits({**limits, "open files": -1}, demand).status == "ok"


def test_shared_memory_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_shm(str(tmp_path / "none"), Demand(2)).status == "warning"
    small = SimpleNamespace(total=64 << 20, free=64 << 20)
    monkeypatch.setattr("psutil.disk_usage", lambda _: small)
    assert "--shm-size" in check_shm("/dev/shm", Demand(2)).remedy
    assert "--shm-size" in check_shm("/dev/shm", Demand()).remedy
    assert check_shm("/dev/shm", Demand(0)).status == "ok"  # no worker passes a batch
    limits = {"open files": 256, "processes": -1, "file size": -1}
    check = check_limits(limits, Demand())
    assert (check.status, check.remedy) == ("warning", "ulimit -n 1024")
    assert check.what == "open files 256, processes unlimited, file size unlimited"
    assert check_limits({**limits, "open files": 1024}, Demand()).status == "ok"
    assert "cut" in check_limits({**limits, "file size": 1 << 20}, Demand()).why
    assert "max_map_count" in check_limits({**limits, "open files": 1024, "mappings": 4096}, Demand()).remedy


def test_a_control_group_limits_processes(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    texts = "0::/job\n", f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"
    assert most_processes(texts) is None
    for name, text in (("pids.max", "max"), ("pids.current", "30")):
        (tmp_path / "job" / name).write_text(text)
    assert most_processes(texts) is None
    (tmp_path / "job" / "pids.max").write_text("100\n")
    assert most_processes(texts) == 70


@pytest.mark.parametrize(
    ("words", "started", "behind"),
    [
        ("{python} -S -W ignore -X dev train.py -S", "{python} -S -W ignore -X dev", ""),
        ("{python} -um train", "{python}", ""),
        ("env -i A=b {python} train.py", "env -i A=b {python}", ""),
        ("nice -n 5 {python} train.py", "{python}", "nice"),
        ("{script} train.py", "{python}", ""),
    ],
)
def test_how_the_command_starts_python(tmp_path: Path, words: str, started: str, behind: str) -> None:
    script = tmp_path / "torchrun"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    names = {"python": sys.executable, "script": str(script)}
    found = find_interpreter(words.format(**names).split(), PATH)
    assert found is not None
    assert (" ".join(found.words), found.behind) == (started.format(**names), behind)


@pytest.mark.parametrize("words", ["conda run python x.py", "sh train.sh", "no-such-command"])
def test_commands_that_name_no_python(words: str) -> None:
    assert find_interpreter(words.split(), PATH) is None


@pytest.mark.parametrize(
    ("line", "lacking"),
    [
        ("#!/opt/gone/venv/bin/python3\n", "is run by '/opt/gone/venv/bin/python3', which is not"),
        ("#!/usr/bin/env python9\n", "is run by 'python9', which is not"),
        ("#!/bin/sh\r\n", r"is run by '/bin/sh\r', which is not"),
    ],
)
def test_a_script_whose_interpreter_is_gone_cannot_run(tmp_path: Path, line: str, lacking: str) -> None:
    script = tmp_path / "x"
    script.write_text(line)
    script.chmod(0o755)
    check = check_command([str(script)], PATH)
    assert (check.status, check.why) == ("missing", "nothing can be run")
    assert lacking in check.what
    assert "correct its first line" in check.remedy
    assert find_interpreter([str(script)], PATH) is None


def facts(**changes: object) -> InterpreterFacts:
    values: dict[str, object] = {
        "agent": True,
        "preloaded": True,
        "asked_for": True,
        "version": "3.11.7",
        "implementation": "cpython",
        "isolated": 0,
        "no_site": 0,
        "ignore_environment": 0,
        "start_method": "fork",
        "packages": {"torch": "2.8.0"},
    }
    return InterpreterFacts(**{**values, **changes})  # type: ignore[arg-type]


def test_what_keeps_the_agent_out() -> None:
    assert check_agent(facts()).status == "ok"
    assert check_agent(facts(agent=False, no_site=1)).remedy == "leave out -S"
    assert "-I" in check_agent(facts(agent=False, isolated=1, ignore_environment=1)).why
    assert "-E" in check_agent(facts(agent=False, ignore_environment=1)).why
    assert check_agent(facts(agent=False)).status == "missing"


def test_interpreters() -> None:
    assert check_python(facts()).what == "cpython 3.11.7"
    for probe in (
        Probe(None, PosixCapture(__file__), None, "it crashed", facts(version="3.9.2")),
        Probe(facts(version="2.7.18", agent=False), PosixCapture(__file__), READS),
    ):
        old = {check.id: check for check in judge(probe, {})}
        assert [(old[name].status, old[name].remedy) for name in ("python", "agent")] == [
            ("missing", "run the program by Python 3.10 or newer")
        ] * 2
    assert check_python(facts(implementation="pypy")).status == "warning"
    assert "comes late" in check_start_method(facts(start_method="forkserver")).why
    assert check_start_method(facts(start_method=None)).status == "unknown"


def test_the_posix_tracer() -> None:
    capture = PosixCapture("iotrace", (__file__,))
    assert check_posix(Probe(facts(), capture, READS), {}).status == "ok"
    assert "before libx.so" in check_posix(Probe(facts(), capture, READS), {"LD_PRELOAD": "libx.so"}).what
    assert "saw 3 of 8" in check_posix(Probe(facts(), capture, 3), {}).what
    assert "glibc" in check_posix(Probe(facts(preloaded=False), capture, None), {}).remedy
    assert "env -i" in check_posix(Probe(facts(asked_for=False), capture, None), {}).remedy
    absent = PosixCapture("iotrace", why_not="it was not compiled", remedy="pip install it")
    assert check_posix(Probe(facts(), absent, None), {}).remedy == "pip install it"


def test_torch_and_its_profiler() -> None:
    cpu = {"version": "2.8.0", "devices": {}, "kineto": True}
    assert judge_torch(TorchFacts(**cpu, events=3), "").status == "ok"  # type: ignore[arg-type]
    assert judge_torch(TorchFacts(**cpu, events=0), "").status == "missing"  # type: ignore[arg-type]
    assert judge_torch(TorchFacts(**cpu, events=3, build={"cuda": "12.8"}), "").status == "warning"  # type: ignore[arg-type]
    assert judge_torch(TorchFacts(version="2.8.0"), "too slow").why == "too slow"
    assert judge_torch(TorchFacts(broken="OSError: libcudart"), "").status == "missing"


def test_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge_nvidia(2, ["H100", "H100"], "", {}).what == "NVML sees 2 x H100"
    untold = judge_nvidia(1, ["H100"], "", {"power": "Timeout", "energy": "Timeout"})
    assert (untold.status, untold.why) == ("ok", "not available: power, energy: Timeout")
    assert judge_nvidia(2, None, "not found", {}).status == "warning"
    assert judge_nvidia(2, None, "nvidia-ml-py is not installed", {}).remedy == "pip install nvidia-ml-py"
    assert judge_nvidia(0, None, "not found", {}).status == "ok"
    assert judge_amd(None, "amdsmi is not installed", {}).status == "warning"
    assert judge_amd(["MI300X"], "", {}).what == "amdsmi sees 1 x MI300X"
    monkeypatch.setattr(accelerators, "_AMD_NODE", "/dev/none")
    assert (accelerators.amd().status, accelerators.amd().what) == ("ok", "no AMD device")


def test_devices_of_intel_need_level_zero_and_displays_do_not() -> None:
    assert judge_intel(6, None, "pyzes is not installed", {}).status == "warning"
    assert judge_intel(0, None, "pyzes is not installed", {}).status == "ok"
    seen = judge_intel(1, ["Intel Data Center GPU Max 1550"], "", {})
    assert seen.what == "Level Zero sees 1 x Intel Data Center GPU Max 1550"


def test_on_several_nodes_intels_devices_are_not_profiled() -> None:
    facts = TorchFacts(version="2.9", build={"xpu": "1"}, devices={"xpu": 12}, kineto=True, events=1)
    there = judge_torch(facts, "", {"SLURM_NNODES": "4"})
    assert (there.status, there.code) == ("warning", "IO014")
    assert judge_torch(facts, "", {"SLURM_NNODES": "1"}).status == "ok"
    others = TorchFacts(version="2.9", build={"cuda": "12.8"}, devices={"cuda": 4}, kineto=True, events=1)
    assert judge_torch(others, "", {"SLURM_NNODES": "4"}).status == "ok"


def test_telemetry_names_what_is_hidden() -> None:
    everything = {"cpus", "memory", "disks", "net", "cpu_pressure_us"}
    assert check_telemetry(True, everything).status == "ok"
    assert "energy is that of GPUs; the CPUs' (RAPL) is not read" in check_telemetry(True, everything).why
    hidden = check_telemetry(True, everything - {"cpu_pressure_us"})
    assert (hidden.status, hidden.remedy) == ("warning", "boot with psi=1, where the kernel has it")
    assert "memory, disks" in check_telemetry(True, {"cpus", "net", "cpu_pressure_us"}).why
    assert check_telemetry(False, everything).status == "missing"


def test_a_command_that_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("#!/usr/bin/env python3\n")
    found = {
        word: check_command([word], PATH) for word in ("./train.py", "train.py", "./not-there", str(tmp_path))
    }
    assert [(check.status, check.remedy) for check in found.values()] == [
        ("missing", "chmod +x ./train.py, or put its interpreter before it"),
        ("missing", "did you mean ./train.py or python train.py?"),
        ("missing", "check its name and PATH"),
        ("missing", "name a program"),
    ]
    assert consequences([found["train.py"], ok("posix", "")])[0] == []
    python = sys.executable
    assert check_command([python, "-u", "train.py"], PATH).status == "ok"
    absent = check_command([python, "-u", "elsewhere.py", "x"], PATH)
    assert (absent.status, absent.why) == ("missing", "nothing can be run")
    assert consequences([absent, ok("agent", ""), ok("posix", ""), ok("telemetry", "")])[0] == []
    assert check_command([python, "-m", "elsewhere"], PATH).status == "ok"


def test_an_interpreter_named_by_a_relative_path_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    for words in (["venv/bin/python", "-u", "x.py"], ["env", "-i", "./venv/bin/python", "x.py"]):
        found = find_interpreter(words, PATH)
        assert found is not None
        assert str(python) in found.words  # not what the link leads to: that is another environment
        assert found.program == str(python)


def test_clocks(tmp_path: Path) -> None:
    (tmp_path / "current").write_text("hpet\n")
    assert check_clock_source(tmp_path / "current", 1500.0).status == "warning"
    assert "tsc" not in check_clock_source(tmp_path / "current", 1500.0).remedy  # it is not there
    (tmp_path / "available_clocksource").write_text("tsc hpet\n")
    assert "clocksource=tsc" in check_clock_source(tmp_path / "current", 1500.0).remedy
    assert check_clock_source(tmp_path / "none", 30.0).what == "unknown source, 30 ns a reading"
    apart = check_synchronised(5, 0x40, 16000000, hosts=2)
    assert (apart.status, "2 hosts" in apart.why) == ("warning", True)
    assert check_synchronised(5, 0x40, 16000000, hosts=1).status == "ok"
    assert check_synchronised(0, 0x2001, 2500, hosts=1).what.endswith("to within 2.5 ms")


@pytest.mark.parametrize(
    ("command", "variables", "hosts"),
    [
        ("python train.py --workers 4", {}, 1),
        ("torchrun --nnodes=4 --nproc-per-node 8 train.py", {}, 4),
        ("torchrun --nnodes 1:3 train.py", {}, 3),
        ("srun -N 2 python train.py", {}, 2),
        ("python train.py trainer.num_nodes=8", {}, 8),
        ("python train.py", {"SLURM_JOB_NUM_NODES": "16"}, 16),
        ("python train.py", {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 2),
        ("python train.py", {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, 1),
    ],
)
def test_how_many_hosts_take_part(command: str, variables: dict[str, str], hosts: int) -> None:
    assert count_hosts(command.split(), variables) == hosts


MOUNTS = [
    Mount("rootfs", "/"),
    Mount("ext4", "/"),
    Mount("nfs4", "/data"),
    Mount("tmpfs", "/data/my set"),
    Mount("fuse.sshfs", "/datasets"),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data", "nfs4"),
        ("/data/a/b", "nfs4"),
        ("/data/my set/x", "tmpfs"),
        ("/datasets/x", "fuse.sshfs"),
        ("/dat", "ext4"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    mount = find_mount(path, MOUNTS)
    assert mount is not None
    assert mount.kind == kind
    assert bool(mount.meaning) == (kind != "ext4")


def test_mounts_are_those_of_the_kernel() -> None:
    shown = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    escaped = [(words[2], words[1].replace("\\040", " ")) for words in shown]
    assert [(mount.kind, mount.point) for mount in mounts()] == escaped


def test_a_session_can_be_made_where_run_would_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "session", "others"):
        (tmp_path / name).mkdir()
    (tmp_path / "session" / names.MANIFEST).write_text("{}")
    (tmp_path / "others" / "x").touch()
    assert output(None, MOUNTS).status == "ok"  # a new directory in this one, whatever else is there
    assert output("empty", MOUNTS).status == output("new", MOUNTS).status == "ok"
    assert output("session", MOUNTS).what == "session already holds a session"
    assert output("others", MOUNTS).what == "others exists and is not a session"


def test_where_sessions_go(tmp_path: Path) -> None:
    assert check_output(tmp_path / "not" / "yet", MOUNTS).what.endswith("on ext4")
    assert check_output(Path("/proc/nothing"), MOUNTS).status == "missing"


def test_what_follows_from_the_checks() -> None:
    good = [ok("agent", ""), ok("posix", ""), ok("torch", "")]
    assert len(consequences(good)[0]) == 3
    captured, lost, _ = consequences([Check("agent", "missing", ""), ok("posix", ""), ok("torch", "")])
    assert captured == ["POSIX calls"]
    assert len(lost) == 3
    assert consequences([unknown("agent", "", ""), ok("posix", "")])[0] == ["POSIX calls"]
    no_torch = consequences([ok("agent", ""), ok("posix", ""), Check("torch", "warning", "")])
    assert no_torch[1] == ["operators and kernels (torch.profiler)"]
    assert "steps, data waits and their causes" in [found.part for found in no_torch[2]]
    broken = judge_torch(TorchFacts(broken="OSError: libcudart"), "")
    assert "steps, data waits and their causes" in consequences([*good, broken])[1]
    assert consequences([ok("nvidia", "NVML sees 1 x A")])[0] == ["GPUs"]
    assert consequences([Check("nvidia", "warning", "2 device nodes")])[1] == ["GPUs"]
    assert consequences([ok("nvidia", "no NVIDIA device")])[:2] == ([], [])
    assert consequences([*good, Check("output", "missing", "")])[0] == []


def test_what_rests_on_an_unknown_is_not_known_for_its_reason() -> None:
    slow = unknown("torch-profiler", "no answer", "torch was not imported in time")
    parts = [ok("agent", ""), ok("posix", ""), ok("torch", ""), slow, ok("telemetry", "")]
    captured, lost, not_known = consequences(parts)
    assert (len(captured), lost) == (4, [])
    assert [(found.part, found.why) for found in not_known] == [
        ("operators and kernels (torch.profiler)", "torch-profiler: torch was not imported in time")
    ]
    shell = unknown("interpreter", "sh names no Python", "seen in a run alone")
    captured, lost, not_known = consequences([ok("command", ""), shell, ok("telemetry", "")])
    assert (captured, lost) == (["processes and host"], [])
    assert {found.why for found in not_known} == {"interpreter: sh names no Python"}
    hung = unknown("nvidia", "no answer", "it did not end")
    assert [(found.part, found.why) for found in consequences([*parts, hung])[2][1:]] == [
        ("GPUs", "nvidia: it did not end")
    ]
    # A command that cannot run captures nothing, whatever its interpreter says when tried alone.
    assert consequences([Check("command", "missing", ""), *parts])[0] == []
