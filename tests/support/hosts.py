"""Two hosts on one machine: a network and a name of their own each, and a cable between them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from iotrace.session.names import SIDECAR_PRELOAD_VARIABLE
from iotrace.sources.session import Session, open_session
from tests.support.runs import environment

NETWORK, NETWORK6 = "10.213.7", "fd13:7::"
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@dataclass
class Host:
    """A process that holds the namespaces; `word` begins a command line that runs in them."""

    name: str
    address: str
    holder: subprocess.Popen[bytes]

    @property
    def enter(self) -> list[str]:
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-u", "--"]

    def call(self, *words: str) -> None:
        subprocess.run([*self.enter, *words], check=True, capture_output=True, timeout=60)


@contextmanager
def two_hosts(names: Sequence[str] = ("alpha", "beta"), ipv6: bool = False) -> Iterator[tuple[Host, Host]]:
    """Yield two hosts that reach each other alone, by IPv4 or by IPv6.

    Raises:
        OSError, subprocess.CalledProcessError: the machine does not permit it, or lacks `ip`.
    """
    hosts: list[Host] = []
    try:
        for number, name in enumerate(names, 1):
            script = f"hostname {name} && echo && exec sleep infinity"
            holder = subprocess.Popen(
                ["unshare", "-n", "-u", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            hosts.append(Host(name, f"{NETWORK6}{number}" if ipv6 else f"{NETWORK}.{number}", holder))
            assert holder.stdout is not None
            if not holder.stdout.readline():
                raise OSError("namespaces are not permitted here")
        one, two = hosts
        one.call(
            "ip",
            "link",
            "add",
            "cable",
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            str(two.holder.pid),
        )
        for host in hosts:
            if ipv6:
                host.call("ip", "-6", "addr", "add", f"{host.address}/64", "dev", "cable", "nodad")
            else:
                host.call("ip", "addr", "add", f"{host.address}/24", "dev", "cable")
            host.call("ip", "link", "set", "cable", "up")
            host.call("ip", "link", "set", "lo", "up")
        yield one, two
    finally:
        for host in hosts:
            host.holder.kill()
            host.holder.wait()
            assert host.holder.stdout is not None
            host.holder.stdout.close()


def unlike_here() -> str:
    """Say why two hosts cannot be made here; empty where they can."""
    try:
        with two_hosts():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network and name of one's own here: {error}"


def run_on_two(
    directory: Path,
    words: list[str],
    options: Sequence[str] = (),
    prepare: Callable[[tuple[Host, Host]], object] = lambda _: None,
    hosts: Callable[[], AbstractContextManager[tuple[Host, Host]]] = two_hosts,
    fake: dict[str, str] | None = None,
    **variables: str,
) -> Session:
    """Run a command on two hosts, the second of which is 3.7 s ahead and gains 50 us a second."""
    line = [sys.executable, "-m", "iotrace", "run", "-o", "session", *options, "--", sys.executable, *words]
    fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+3.7 x1.00005"} if fake is None else fake
    with hosts() as both:
        prepare(both)
        started = []
        for number, host in enumerate(both):
            own = fake | {SIDECAR_PRELOAD_VARIABLE: str(FAKETIME)} if number and fake else {}
            started.append(_start(host, line, directory, number, variables | own))
            while not number and not list(directory.glob("session/telemetry/*/records.jsonl")):
                assert started[0].poll() is None
                time.sleep(0.02)
        for process in started:
            out, _ = process.communicate(timeout=1200)
            assert process.returncode == 0, out
    return open_session(directory / "session")


def _start(
    host: Host, line: list[str], directory: Path, number: int, variables: dict[str, str]
) -> subprocess.Popen[str]:
    env = environment(
        IOTRACE_JOB="job", RANK=str(number), WORLD_SIZE="2", PET_NODE_RANK=str(number), **variables
    )
    words = [*host.enter, *line, str(directory / f"instants-{number}.json")]
    return subprocess.Popen(
        words, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
