"""Two hosts on one machine: a network, a name and a boot of their own each, and a cable between them."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from iotrace.session.names import SIDECAR_PRELOAD_VARIABLE
from iotrace.sources.session import Session, open_session
from tests.support.cable import Cable, Conditions
from tests.support.runs import environment

NETWORK, NETWORK6 = "10.213.7", "fd13:7::"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
AHEAD_AND_FAST = {
    "LD_PRELOAD": str(FAKETIME),
    "FAKETIME": "+3.7 x1.00005",
    SIDECAR_PRELOAD_VARIABLE: str(FAKETIME),
}
_HOST_CLOCK = Path(__file__).parent / "host_clock.c"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_OWN_BOOT = f"f=$(mktemp) && cat /proc/sys/kernel/random/uuid >$f && mount --bind $f {_BOOT_ID} && rm $f"


@dataclass
class Host:
    """A process that holds the namespaces; `word` begins a command line that runs in them."""

    name: str
    address: str
    holder: subprocess.Popen[bytes]

    @property
    def enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-u", "-m", "--"]

    def call(self, *words: str) -> None:
        subprocess.run([*self.enter, *words], check=True, capture_output=True, timeout=60)


class HostClock:
    """The clocks of what runs with `variables`: set apart from the kernel's, and set again while it runs."""

    def __init__(
        self, directory: Path, ahead_s: float = 0.0, ppm: float = 0.0, booted_s: float = 0.0
    ) -> None:
        """Compile the library that shifts the clocks; CLOCK_MONOTONIC is ahead by `booted_s` more."""
        self._numbers = directory / "host-clock"
        library = directory / "host-clock.so"
        line = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_HOST_CLOCK), "-ldl"]
        subprocess.run(line, check=True, capture_output=True, timeout=60)
        gained_ns = round(time.monotonic_ns() * ppm / 1e6)  # since the kernel's start
        mono_ns = round((ahead_s + booted_s) * 1e9) - gained_ns
        self._real_ns = -round(booted_s * 1e9)
        self._numbers.write_bytes(struct.pack("3q", mono_ns, round(ppm * 1000), self._real_ns))
        self.variables = {
            "LD_PRELOAD": str(library),
            SIDECAR_PRELOAD_VARIABLE: str(library),
            "HOST_CLOCK": str(self._numbers),
        }


@contextmanager
def two_hosts(
    names: Sequence[str] = ("alpha", "beta"), ipv6: bool = False, conditions: Conditions | None = None
) -> Iterator[tuple[Host, Host]]:
    """Yield two hosts that reach each other alone, by IPv4 or by IPv6, under `conditions` if given.

    Raises:
        OSError, subprocess.CalledProcessError: the machine does not permit it, or lacks `ip`.
    """
    hosts: list[Host] = []
    with ExitStack() as held:
        for number, name in enumerate(names, 1):
            script = f"hostname {name} && {_OWN_BOOT} && echo && exec sleep infinity"
            line = ["unshare", "-n", "-u", "-m", "sh", "-c", script]
            holder = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            held.callback(_end, holder)
            hosts.append(Host(name, f"{NETWORK6}{number}" if ipv6 else f"{NETWORK}.{number}", holder))
            assert holder.stdout is not None
            if not holder.stdout.readline():
                raise OSError("namespaces are not permitted here")
        one, two = hosts
        if conditions is None:
            peer = ["peer", "name", "cable", "netns", str(two.holder.pid)]
            one.call("ip", "link", "add", "cable", "type", "veth", *peer)
        else:
            cable = held.enter_context(Cable(conditions))
            for host, device in zip(hosts, cable.devices, strict=True):
                line = ["ip", "link", "set", device, "netns", str(host.holder.pid), "name", "cable"]
                subprocess.run(line, check=True, capture_output=True, timeout=60)
        for host in hosts:
            if ipv6:
                host.call("ip", "-6", "addr", "add", f"{host.address}/64", "dev", "cable", "nodad")
            else:
                host.call("ip", "addr", "add", f"{host.address}/24", "dev", "cable")
            host.call("ip", "link", "set", "cable", "up")
            host.call("ip", "link", "set", "lo", "up")
        yield one, two


def _end(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    assert holder.stdout is not None
    holder.stdout.close()


def unlike_here(conditions: Conditions | None = None) -> str:
    """Say why two hosts cannot be made here; empty where they can."""
    try:
        with two_hosts(conditions=conditions):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network and name of one's own here: {error}"


def run_on_two(
    directory: Path,
    words: list[str],
    options: Sequence[str] = (),
    prepare: Callable[[tuple[Host, Host]], object] = lambda _: None,
    hosts: Callable[[], AbstractContextManager[tuple[Host, Host]]] = two_hosts,
    clocks: tuple[dict[str, str], dict[str, str]] = ({}, AHEAD_AND_FAST),
    **variables: str,
) -> Session:
    """Run a command on two hosts, the second of which is 3.7 s ahead and gains 50 us a second.

    `clocks` are variables of each host, such as a `HostClock`'s.
    """
    line = [sys.executable, "-m", "iotrace", "run", "-o", "session", *options, "--", sys.executable, *words]
    with hosts() as both:
        prepare(both)
        started = []
        for number, (host, own) in enumerate(zip(both, clocks, strict=True)):
            started.append(_start(host, line, directory, number, variables | own))
            while not number and not list(directory.glob("session/telemetry/*/records.jsonl")):
                assert started[0].poll() is None, started[0].communicate()
                time.sleep(0.02)
        for process in started:
            out, _ = process.communicate(timeout=1200)
            assert process.returncode == 0, out
    return open_session(directory / "session")


def torchrun(program: str, *words: str, port: int) -> list[str]:
    """Return the command line of a job with a process on each of the two hosts."""
    job = ["--nnodes=2", "--nproc-per-node=1", f"--master-addr={NETWORK}.1", f"--master-port={port}"]
    return ["-m", "torch.distributed.run", *job, program, *words]


def _start(
    host: Host, line: list[str], directory: Path, number: int, variables: dict[str, str]
) -> subprocess.Popen[str]:
    env = environment(
        IOTRACE_JOB="job", RANK=str(number), WORLD_SIZE="2", PET_NODE_RANK=str(number), **variables
    )
    there = [*host.enter, "env", "-C", str(directory)]  # who enters another mount namespace is at its root
    words = [*there, *line, str(directory / f"instants-{number}.json")]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
