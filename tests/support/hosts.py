"""Two hosts on one machine: a network and a name of their own each, and a cable between them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NETWORK = "10.213.7"
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
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Yield two hosts, "alpha" and "beta", that reach each other alone.

    Raises:
        OSError, subprocess.CalledProcessError: the machine does not permit it, or lacks `ip`.
    """
    hosts: list[Host] = []
    try:
        for number, name in enumerate(("alpha", "beta"), 1):
            script = f"hostname {name} && echo && exec sleep infinity"
            holder = subprocess.Popen(
                ["unshare", "-n", "-u", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            hosts.append(Host(name, f"{NETWORK}.{number}", holder))
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
