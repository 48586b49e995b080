"""Texts of /proc, as kernels write them, as numbers."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from iotrace.launch.telemetry.procfs import (
    PAGE_BYTES,
    TICKS_PER_SECOND,
    ProcFile,
    groups_v1,
    groups_v2,
    parse_cpus,
    parse_disks,
    parse_ids,
    parse_io,
    parse_last_pid,
    parse_memory,
    parse_net,
    parse_pressure,
    parse_quota,
    parse_stat,
    parse_status,
)
from iotrace.launch.telemetry.tree import Member, Tree
from iotrace.session import names
from iotrace.sources.samples import SAMPLE_DTYPE

STAT = (
    b"4711 (%s) R 17 4711 17 34816 4711 4194304 9001 77 13 2 250 50 7 3 20 0 9 0 123456 987654321 2048 "
    b"18446744073709551615 1 1 0 0 0 0 0 16781312 134433281 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


@pytest.mark.parametrize("name", [b"python", b"a b", b"x) R 1 (y", b"new\nline", b"\xff\xfe", b""])
def test_stat_whatever_the_program_is_called(name: bytes) -> None:
    stat = parse_stat(STAT % name)
    assert (stat.state, stat.ppid, stat.major_faults, stat.threads) == ("R", 17, 13, 9)
    assert stat.cpu_ns == 300 * 1_000_000_000 // TICKS_PER_SECOND
    assert stat.start_ticks == 123456
    assert stat.rss_bytes == 2048 * PAGE_BYTES


def test_what_a_process_held_counts_not_what_is_left_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    exiting = STAT.replace(b"4194304 9001", b"4194308 9001")
    assert parse_stat(exiting % b"x").exiting
    alive = parse_stat(STAT % b"x")
    assert not alive.exiting
    stats = [alive, alive._replace(exiting=True, rss_bytes=7), alive._replace(rss_bytes=8)]
    monkeypatch.setattr("iotrace.launch.telemetry.tree.parse_stat", lambda _: stats.pop(0))
    member = Member(0, os.getpid(), alive, "")
    samples = [member.sample() for _ in range(3)]
    member.close()
    held = [np.frombuffer(sample or b"", SAMPLE_DTYPE)["rss_bytes"][0] for sample in samples]
    assert held == [alive.rss_bytes, alive.rss_bytes, 8]


def test_io_in_the_order_of_a_sample() -> None:
    text = (
        b"rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 7\n"
    )
    assert parse_io(text) == (1, 2, 3, 4, 5, 6)


def test_switches() -> None:
    text = b"Name:\tpython\nvoluntary_ctxt_switches:\t120\nnonvoluntary_ctxt_switches:\t7\n"
    assert parse_status(text) == (120, 7, "", 0, "")
    assert parse_status(text + b"VmSwap:\t  12 kB\nCpus_allowed_list:\t0-3,8\n") == (
        *(120, 7, "0-3,8", 12288, ""),
    )


def test_ids_of_a_process_in_a_namespace_of_its_own_and_of_a_thread() -> None:
    assert parse_ids(b"Name:\tpython\nTgid:\t400\nNgid:\t0\nPid:\t400\nNSpid:\t400\t7\t1\n") == (400, 1)
    assert parse_ids(b"Tgid:\t400\nPid:\t401\nNStgid:\t400\nNSpid:\t401\n") == (400, 401)
    assert parse_ids(b"Tgid:\t400\nPid:\t400\n") == (400, 400)


def test_cpus_count_stolen_time_as_busy_and_guests_once() -> None:
    # user (guest included), nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    text = (
        b"cpu  20 2 6 180 10 2 4 6 5 0\n"
        b"cpu0 10 1 3 80 5 1 2 3 5 0\n"
        b"cpu11 10 1 3 100 5 1 2 3 0 0\n"
        b"intr 1 2 3\ncpu9 lines behind the interrupts are none\n"
    )
    assert parse_cpus(text) == {0: (20, 5, 80, 3), 11: (20, 5, 100, 3)}


def test_memory_in_bytes() -> None:
    text = b"MemTotal:       16 kB\nMemFree:        1 kB\nMemAvailable:   8 kB\nHugePages_Total:   0\n"
    assert parse_memory(text) == {"total_bytes": 16384, "available_bytes": 8192}


def test_pressure_is_the_total_alone() -> None:
    text = (
        b"some avg10=19.22 avg60=1.00 avg300=0.50 total=661857685\nfull avg10=0.00 avg60=0 avg300=0 total=7\n"
    )
    assert parse_pressure(text) == {"some": 661857685, "full": 7}
    assert parse_pressure(b"") == {}


def test_disks_are_whole_ones_in_bytes() -> None:
    text = (
        b" 254       0 vda 100 1 8 30 200 2 16 40 0 55 70 0 0 0 0 5 6\n"
        b" 254       1 vda1 100 1 8 30 200 2 16 40 0 55 70 0 0 0 0 5 6\n"
    )
    assert parse_disks(text, {"vda"}) == {"vda": (4096, 8192, 55)}


def test_net_without_the_loopback() -> None:
    text = (
        b"Inter-|   Receive                            |  Transmit\n"
        b" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
        b"    lo:     500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
        b"  eth0:1000 2 0 0 0 0 0 0 2000 3 0 0 0 0 0 0\n"
    )
    assert parse_net(text) == {"eth0": (1000, 2000)}


def test_periods_of_a_quota() -> None:
    assert parse_quota(b"usage_usec 5\nnr_periods 40\nnr_throttled 1\nthrottled_usec 77\n") == (40, 1)
    assert parse_quota(b"nr_periods 5\nnr_throttled 3\nthrottled_time 2500000\n") == (5, 3)
    assert parse_quota(b"usage_usec 5\n") is None


def test_the_cgroups_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "slice" / "job").mkdir(parents=True)
    mounts = f"cgroup /sys/x cgroup rw,cpu 0 0\ncgroup2 {tmp_path} cgroup2 rw 0 0\n"
    above = [f"{tmp_path}/slice/job", f"{tmp_path}/slice", f"{tmp_path}"]
    assert groups_v2("4:memory:/x\n0::/slice/job\n", mounts) == above
    # A container sees the mount's root alone, and a process of another namespace is outside of it.
    for path in ("/", "/hosts/own", "/../../etc"):
        assert groups_v2(f"0::{path}\n", mounts) == [f"{tmp_path}"]
    assert groups_v2("4:memory:/x\n", mounts) == []
    assert groups_v2("0::/a\n", "cgroup /sys/fs/cgroup/memory cgroup rw 0 0\n") == []


def test_an_open_file_is_read_anew_each_time(tmp_path: Path) -> None:
    own = ProcFile("/proc/self/stat")
    before = parse_stat(own.read())
    assert before.start_ticks == parse_stat(Path("/proc/self/stat").read_bytes()).start_ticks
    deadline = time.process_time() + 5 / TICKS_PER_SECOND
    while time.process_time() < deadline:
        pass
    assert parse_stat(own.read()).cpu_ns > before.cpu_ns
    own.close()
    long = tmp_path / "long"
    long.write_bytes(os.urandom(200_000))
    assert ProcFile(str(long)).read_all() == long.read_bytes()


def test_the_cgroups_of_version_1(tmp_path: Path) -> None:
    root = tmp_path / "cpu,cpuacct"
    (root / "job" / "task0").mkdir(parents=True)
    mounts = f"tmpfs /sys tmpfs rw 0 0\ncgroup {root} cgroup rw,nosuid,cpu,cpuacct 0 0\n"
    inside = groups_v1("4:memory:/x\n3:cpu,cpuacct:/job/task0\n0::/\n", mounts, "cpu")
    assert inside == [f"{root}/job/task0", f"{root}/job", f"{root}"]
    # In a container the path is the host's, or /; the mount's root is the container's own group.
    assert groups_v1("3:cpu,cpuacct:/docker/4f\n", mounts, "cpu") == [f"{root}"]
    assert groups_v1("3:cpu,cpuacct:/\n", mounts, "cpu") == [f"{root}"]
    assert groups_v1("0::/job\n", mounts, "cpu") == []


def test_the_last_pid_and_a_file_that_is_not_kept_open() -> None:
    assert parse_last_pid(b"0.00 0.32 0.98 1/85 4351\n") == 4351
    file = ProcFile("/proc/self/stat", kept_open=False)
    before = set(os.listdir("/proc/self/fd"))
    assert parse_stat(file.read()).start_ticks > 0
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("kept_open", [True, False])
def test_a_member_is_no_other_process_with_its_pid(kept_open: bool) -> None:
    with open("/proc/self/stat", "rb") as file:
        stat = parse_stat(file.read())
    own = Member(0, os.getpid(), stat, "", kept_open)
    assert own.sample() is not None
    own.close()
    later = Member(0, os.getpid(), stat._replace(start_ticks=stat.start_ticks - 1), "", kept_open)
    assert later.sample() is None
    later.close()


def test_pids_that_begin_anew_make_foreign_ones_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree("/no/session", 0)
    pids = [100, 150, 20, 30]
    monkeypatch.setattr("iotrace.launch.telemetry.tree.parse_last_pid", lambda _: pids.pop(0))
    assert [tree._pids_began_anew() for _ in range(4)] == [False, False, True, False]


def test_the_newest_process_is_found_by_its_number_and_threads_are_none() -> None:
    with open("/proc/self/stat", "rb") as file:
        tree = Tree("/no/session", parse_stat(file.read()).start_ticks)
    tree.scan()
    settings = names.encode_settings({"session": "/no/session"})
    child = subprocess.Popen(
        [sys.executable, "-c", "import threading as t; t.Thread(target=input).start(); print(1); input()"],
        env={**os.environ, names.SETTINGS_VARIABLE: settings, "PYTHONPATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    found = tree.scan_newest()
    if not found:  # many others were made meanwhile
        found = tree.scan()
    assert [(record["pid"], record["own_pid"]) for record in found] == [(child.pid, child.pid)]
    assert len(tree.sample(new_alone=True)) == struct.calcsize(names.SAMPLE_FORMAT)
    assert tree.sample(new_alone=True) == b""
    assert tree.scan_newest() == []
    child.communicate(b"\n\n")
    assert tree.sample() == b""
