"""What a machine lacks for a recording, or makes a run slow: what the doctor concludes."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.analysis.rules.model import MISSING, WARNING, Finding, fires, rule, silent
from iotrace.units import counted

_PRESSURE = "pressure (PSI)"
_ANOTHER = "name another: -o DIR"


@rule("IO020", "gpus-not-seen", "host")
@fires({"gpus_unseen": "2 device nodes, but NVML sees none", "remedy": "pip install nvidia-ml-py"})
@silent({"what": "NVML sees 2 x H100"})
def gpus_not_seen(facts: HostFacts) -> Iterator[Finding]:
    """There are devices, but the library that reads them sees none: no figure of them is sampled.

    Remedy: install the library, or let the container have the devices.
    """
    if facts.gpus_unseen is not None:
        yield Finding(level=WARNING, text=facts.gpus_unseen, why="no GPU telemetry", remedy=facts.remedy)


@rule("IO021", "processes-not-sampled", "host")
@fires({"processes_hidden": True})
@silent({"what": "processes, CPUs, memory"})
def processes_not_sampled(facts: HostFacts) -> Iterator[Finding]:
    """/proc shows no processes: nothing of them can be sampled.

    Remedy: mount /proc.
    """
    if facts.processes_hidden:
        text, why = "/proc shows no processes", "no telemetry"
        yield Finding(level=MISSING, text=text, why=why, remedy="mount /proc")


@rule("IO022", "figures-not-sampled", "host")
@fires(
    {"what": "processes, CPUs", "lacking": ["memory", "disks"]}, {"what": "processes", "lacking": [_PRESSURE]}
)
@silent({"what": "processes, CPUs, memory, disks, network"})
def figures_not_sampled(facts: HostFacts) -> Iterator[Finding]:
    """This machine does not show some figures of the host.

    Remedy: a container may show /proc and /sys in part; pressure needs a kernel that was booted with psi=1.
    """
    if facts.lacking:
        whole = "a container may show /proc and /sys in part"
        remedy = "boot with psi=1, where the kernel has it" if [*facts.lacking] == [_PRESSURE] else whole
        why = "; ".join(filter(None, [f"not available here: {', '.join(facts.lacking)}", facts.why]))
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=remedy)


@rule("IO023", "more-processes-than-cpus", "host")
@fires({"workers": 4, "affinity": 16, "quota_cpus": 1.5}, {"workers": 1, "affinity": 1})
@silent({"workers": 4, "affinity": 16}, {"affinity": 1})
def more_processes_than_cpus(facts: HostFacts) -> Iterator[Finding]:
    """The command asks for more training processes and workers than it gets CPUs.

    That matters where all of them compute: workers that wait for storage need none.

    Remedy: fewer workers, or more CPUs.
    """
    usable, demand = facts.usable_cpus, facts.demand
    if usable is None or demand.processes <= max(1, usable):
        return
    fitting = max(1, int(usable / demand.ranks) - 1)
    asked = f"ask for {counted(demand.processes, 'CPU')}"
    if demand.workers is not None and fitting < demand.workers:
        remedy = f"set num_workers to {fitting} or ask for more CPUs"
    elif demand.ranks > 1:
        remedy = f"{asked}, or start fewer training processes"
    else:
        remedy = f"{asked}; with num_workers 0 the training process loads by itself"
    yield Finding(
        level=WARNING,
        text=f"{demand.in_words} on {facts.cpus_in_words}{facts.cpu_limits}",
        why="where all of them compute they take turns: batches take longer to make, and training slows down",
        remedy=remedy,
        is_main_cause=True,
        silences=("IO024",),
    )


@rule("IO024", "threads-beyond-quota", "host")
@fires({"quota_cpus": 2.0, "affinity": 16}, {"quota_cpus": 2.0, "affinity": 16, "threads": 16})
@silent({"quota_cpus": 2.0, "affinity": 16, "threads": 2}, {"affinity": 16})
def threads_beyond_quota(facts: HostFacts) -> Iterator[Finding]:
    """A quota allows fewer CPUs than programs see, and start threads for.

    The kernel stops all threads of the group where they have used the quota, until its next period.

    Remedy: set OMP_NUM_THREADS, or ask for more CPUs.
    """
    quota, affinity, threads = facts.quota_cpus, facts.affinity, facts.threads
    if quota is None or affinity is None or quota >= affinity:
        return
    if threads is None or threads > max(1, quota):
        yield Finding(
            level=WARNING,
            text=f"{facts.cpus_in_words} usable{facts.cpu_limits}",
            why="torch, and programs that ask os.cpu_count(), start threads for "
            f"{facts.cpus or affinity} CPUs: the kernel then stops them all until the quota's next period",
            remedy=f"set OMP_NUM_THREADS to {max(1, int(quota))}, or ask for more CPUs",
        )


@rule("IO034", "threads-beyond-cpus", "host")
@fires({"affinity": 4, "threads": 32})
@silent({"affinity": 32, "threads": 32}, {"affinity": 16, "quota_cpus": 2.0, "threads": 32})
def threads_beyond_cpus(facts: HostFacts) -> Iterator[Finding]:
    """OMP_NUM_THREADS asks for more threads than the CPUs that the process may run on.

    The threads of one operator then take turns on these CPUs, and the operator takes as long as its last one.

    Remedy: set OMP_NUM_THREADS to the number of CPUs, or ask for more of them.
    """
    usable, threads = facts.usable_cpus, facts.threads
    if usable is None or threads is None or usable != facts.affinity or threads <= usable:
        return
    yield Finding(
        level=WARNING,
        text=f"OMP_NUM_THREADS={threads} on {facts.cpus_in_words}{facts.cpu_limits}",
        why="threads of one operator take turns, and the others wait for the last of them",
        remedy=f"set OMP_NUM_THREADS to {usable:g}, or ask for more CPUs",
    )


@rule("IO025", "little-memory", "host")
@fires({"what": "300.0 MiB available of 4.0 GiB", "memory_bytes": 4 << 30, "available_bytes": 300 << 20})
@silent({"memory_bytes": 4 << 30, "available_bytes": 3 << 30})
def little_memory(facts: HostFacts, *, least_pct: float = 10.0) -> Iterator[Finding]:
    """Little of the memory that the process may use is left: files cannot stay in the page cache.

    Remedy: end what else holds memory, or ask for more.
    """
    whole, left = facts.memory_bytes, facts.available_bytes
    if whole is not None and left is not None and left < least_pct / 100 * whole:
        why = "little is left for the page cache: files are read again in each epoch"
        remedy = "end what else holds memory, or ask for more"
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=remedy)


@rule("IO026", "no-shared-memory", "host")
@fires({"shm": "/dev/shm", "shm_bytes": None})
@silent({"shm": "/dev/shm", "shm_bytes": 8 << 30, "shm_free_bytes": 8 << 30})
def no_shared_memory(facts: HostFacts) -> Iterator[Finding]:
    """There is no shared memory: DataLoader workers cannot pass batches.

    Remedy: mount a tmpfs there.
    """
    if facts.shm and facts.shm_bytes is None:
        text, why = f"there is no {facts.shm}", "DataLoader workers cannot pass batches"
        yield Finding(level=WARNING, text=text, why=why, remedy="mount a tmpfs there")


@rule("IO027", "little-shared-memory", "host")
@fires(
    {
        "what": "64.0 MiB free of 64.0 MiB in /dev/shm",
        "shm": "/dev/shm",
        "shm_bytes": 64 << 20,
        "shm_free_bytes": 64 << 20,
        "workers": 2,
    },
    {"what": "1.0 MiB free of 8.0 GiB", "shm_bytes": 8 << 30, "shm_free_bytes": 1 << 20},
)
@silent(
    {"shm": "/dev/shm", "shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20, "workers": 0},
    {"shm": "/dev/shm", "shm_bytes": 8 << 30, "shm_free_bytes": 8 << 30, "workers": 2},
)
def little_shared_memory(
    facts: HostFacts, *, least_bytes: int = 1 << 30, least_free_pct: float = 10.0
) -> Iterator[Finding]:
    """The shared memory through which workers pass batches is small, or nearly full.

    A worker that finds it full dies by SIGBUS. A loader without workers needs none.

    Remedy: make it larger, or empty it.
    """
    whole, free = facts.shm_bytes, facts.shm_free_bytes
    if whole is None or free is None or facts.demand.workers == 0:
        return
    larger = f"mount -o remount,size=8G {facts.shm}; for a container docker run --shm-size=8g, or --ipc=host"
    if whole < least_bytes or free < least_free_pct / 100 * whole:
        yield Finding(
            level=WARNING,
            text=facts.what,
            why="workers' batches lie there (prefetch_factor of each, 2 by default): when it is full, a "
            "worker dies by SIGBUS",
            remedy=larger if whole < least_bytes else f"empty {facts.shm}",
        )


@rule("IO028", "low-limits", "host")
@fires(
    {
        "what": "open files 256, processes unlimited",
        "too_low": {"open files": ("each tensor of a batch in flight holds one", "ulimit -n 1024")},
    }
)
@silent({"what": "open files 1024, processes unlimited"})
def low_limits(facts: HostFacts) -> Iterator[Finding]:
    """A limit of the process, of its control group or of the kernel is lower than training needs.

    Remedy: raise it before the run.
    """
    if facts.too_low:
        why = "; ".join(f"{name}: {why}" for name, (why, _) in facts.too_low.items())
        remedy = " && ".join(remedy for _, remedy in facts.too_low.values())
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=remedy)


@rule("IO029", "slow-clock", "host")
@fires({"what": "hpet, 1500 ns a reading", "reading_ns": 1500.0, "tsc_is_offered": True})
@silent({"what": "tsc, 25 ns a reading", "reading_ns": 25.0})
def slow_clock(facts: HostFacts, *, slow_ns: float = 300.0) -> Iterator[Finding]:
    """Reading the clock takes a system call here: tracing costs more.

    Remedy: boot with clocksource=tsc where the machine has it, or trace less.
    """
    if facts.reading_ns is not None and facts.reading_ns > slow_ns:
        why = "two readings for each span and each POSIX call: tracing costs more here"
        faster = "boot with clocksource=tsc, or " if facts.tsc_is_offered else ""
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=f"{faster}trace less with --io PATH")


@rule("IO030", "clocks-apart", "host")
@fires({"what": "CLOCK_REALTIME is not synchronised", "unsynchronised_hosts": 2})
@silent({"what": "CLOCK_REALTIME is not synchronised", "unsynchronised_hosts": 1})
def clocks_apart(facts: HostFacts) -> Iterator[Finding]:
    """The clock of this host is not synchronised, and several hosts take part.

    Remedy: start chronyd or ntpd on each.
    """
    if facts.unsynchronised_hosts > 1:
        why = f"the timelines of the {facts.unsynchronised_hosts} hosts may be shifted against each other"
        yield Finding(level=WARNING, text=facts.what, why=why, remedy="start chronyd or ntpd on each")


@rule("IO031", "session-not-writable", "host")
@fires({"unwritable": "/data cannot be written"})
@silent({"what": "8.0 GiB free in .", "free_bytes": 8 << 30})
def session_not_writable(facts: HostFacts) -> Iterator[Finding]:
    """The directory of the session cannot be written, or holds another one.

    Remedy: name another by `-o`.
    """
    if facts.unwritable is not None:
        why, remedy = "nothing can be recorded", facts.remedy or _ANOTHER
        yield Finding(level=MISSING, text=facts.unwritable, why=why, remedy=remedy)


@rule("IO032", "no-room-for-the-session", "host")
@fires(
    {"what": "32.0 MiB free in .", "free_bytes": 32 << 20},
    {"what": "8.0 GiB free in .", "free_bytes": 8 << 30, "has_inodes": False},
)
@silent({"free_bytes": 8 << 30}, {"free_bytes": 256 << 20})
def no_room(facts: HostFacts, *, least_bytes: int = 64 << 20) -> Iterator[Finding]:
    """Too little room is left for a session, or no file can be made: the recording would be cut.

    Remedy: free some, or name another directory by `-o`.
    """
    if facts.free_bytes is not None and (facts.free_bytes < least_bytes or not facts.has_inodes):
        lacking = "no inodes" if facts.free_bytes >= least_bytes else "too little"
        yield Finding(
            level=MISSING,
            text=facts.what,
            why=f"{lacking}: the recording would be cut",
            remedy=f"free some, or {_ANOTHER}",
            is_main_cause=True,
            silences=("IO033",),
        )


@rule("IO033", "little-room-for-the-session", "host")
@fires({"what": "512.0 MiB free in .", "free_bytes": 512 << 20})
@silent({"free_bytes": 8 << 30})
def little_room(facts: HostFacts, *, little_bytes: int = 1 << 30) -> Iterator[Finding]:
    """Little room is left for a session.

    Remedy: name another directory by `-o`.
    """
    if facts.free_bytes is not None and facts.free_bytes < little_bytes:
        why = "a traced POSIX call takes about 220 bytes"
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=_ANOTHER)
