"""What a look at a host, an interpreter and a command shows before a run: what the doctor's rules rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from iotrace.units import counted

_PREFETCH = 2  # batches that torch lets each worker make ahead, unless told otherwise


class Demand(msgspec.Struct, frozen=True):
    """What the command's words ask for: loader workers of each rank (None: not known), and ranks.

    Each worker makes `prefetch` batches ahead, of `batch_size` samples (None: not known).
    """

    workers: int | None = None
    ranks: int = 1
    prefetch: int | None = None
    batch_size: int | None = None

    @property
    def in_flight(self) -> int:
        """Return how many batches workers of all ranks may have made ahead."""
        return self.ranks * (self.workers or 0) * (_PREFETCH if self.prefetch is None else self.prefetch)

    @property
    def processes(self) -> int:
        """Return the number of training processes and workers together."""
        return self.ranks * (1 + (self.workers or 0))

    @property
    def in_words(self) -> str:
        """Describe the training processes and workers."""
        if self.workers is None:
            return counted(self.ranks, "training process", "training processes")
        workers = counted(self.workers, "worker")
        if self.ranks == 1:
            return f"{workers} and the training process"
        return f"{counted(self.ranks, 'training process', 'training processes')} with {workers} each"


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one check of the doctor saw, in words (`what`) and in figures; None is not looked at.

    A check that could not be made says so in `unknown`. `why` and `remedy` are those of the system, or of
    whoever refused something; `not_runnable`, `gpus_unseen` and the like what was seen then. `version` is the
    interpreter's, `kept_out` what keeps the agent out of it. `reads` are those that the recorder saw, and
    those made. `quota_cpus` is the control group's quota, `affinity` the number of CPUs that the process may
    run on, `threads` what OMP_NUM_THREADS says. `memory_bytes` is what the process may use, of which
    `available_bytes` are left. `too_low` are limits by name, each with why it matters and what raises it.
    """

    what: str = ""
    why: str = ""
    remedy: str = ""
    unknown: str | None = None
    demand: Demand = Demand()

    not_runnable: str | None = None
    version: tuple[int, ...] | None = None
    implementation: str | None = None
    kept_out: str | None = None
    stopped_by_iotrace: str | None = None
    no_recorder: str | None = None
    is_preloaded: bool | None = None
    preload_asked_for: bool = True
    reads: tuple[int, int] | None = None
    preloads: str = ""
    torch_absent: bool = False
    torch_error: str | None = None
    profiler_fault: str | None = None
    finds_no_device: bool = False
    spares_device: bool = False

    gpus_unseen: str | None = None
    processes_hidden: bool = False
    lacking: Sequence[str] = ()
    quota_cpus: float | None = None
    affinity: int | None = None
    cpus: int | None = None
    threads: int | None = None
    memory_bytes: int | None = None
    available_bytes: int | None = None
    shm: str = ""
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    too_low: Mapping[str, Sequence[str]] = {}
    reading_ns: float | None = None
    tsc_is_offered: bool = False
    unsynchronised_hosts: int = 0
    unwritable: str | None = None
    free_bytes: int | None = None
    has_inodes: bool = True

    @property
    def usable_cpus(self) -> float | None:
        """Return the CPUs that quota and affinity leave; None where they were not looked at."""
        if self.affinity is None or self.quota_cpus is None:
            return self.affinity
        return min(self.quota_cpus, float(self.affinity))

    @property
    def cpu_limits(self) -> str:
        """Say what takes CPUs of the host away, in parentheses; empty where nothing does."""
        limits = []
        if self.quota_cpus is not None and self.affinity and self.quota_cpus < self.affinity:
            limits.append(f"the control group allows {self.quota_cpus:g} of {self.affinity}")
        if self.cpus is not None and self.affinity and self.cpus > self.affinity:
            limits.append(f"the process may run on {self.affinity} of {self.cpus}")
        return f" ({'; '.join(limits)})" if limits else ""

    @property
    def cpus_in_words(self) -> str:
        """Count the usable CPUs, of which a quota may leave a part of one."""
        usable = self.usable_cpus or 0
        return f"{usable:g} {'CPU' if usable == 1 else 'CPUs'}"
