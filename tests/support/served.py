"""A server of `iotrace ui` for tests: its application without a port, and sessions made up for its list."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace
from starlette.testclient import TestClient

from iotrace import __version__
from iotrace.launch.session_directory import begin
from iotrace.launch.traced_run import describe
from iotrace.session import names
from iotrace.session.listing import Headline, store_verdict
from iotrace.session.liveness import this_process
from iotrace.session.manifest import Outcome, PosixState, write_document
from iotrace.ui.server import application

TOKEN = "0123456789abcdef"
GONE = replace(this_process(), start_ticks=this_process().start_ticks + 1)


@contextmanager
def served(*roots: Path, own: Path, read_only: bool = False, known: bool = True) -> Iterator[TestClient]:
    """Serve `roots`; with `known` the client holds the token already."""
    own.mkdir(exist_ok=True)
    app = application(list(roots), TOKEN, "127.0.0.1", read_only, own)
    with TestClient(app, "http://127.0.0.1:7333", follow_redirects=True) as client:
        if known:
            assert client.get(f"/?token={TOKEN}").status_code == 200
        yield client


def until_done(client: TestClient, address: str, seconds: float = 120.0) -> str:
    """Ask until the page is there, and return it."""
    end = time.monotonic() + seconds
    while (answer := client.get(address)).status_code == 202:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert answer.status_code == 200, answer.text
    return answer.text


def session(
    directory: Path,
    *argv: str,
    exit_code: int | None = 0,
    started_ns: int = 10**18,
    verdict: str = "",
    headline: Headline | None = None,
    commit: str = "",
) -> Path:
    """Make a session without any process, which has ended unless its exit code is None."""
    known = describe(["python", *(argv or ("train.py",))], PosixState(on=False), [], {})
    launcher = this_process() if exit_code is None else GONE
    begin(directory, replace(known, launcher=launcher, started_ns=started_ns, commit=commit))
    if exit_code is not None:
        outcome = Outcome(exit_code=exit_code, ended_ns=started_ns + 90 * 10**9, duration_ns=90 * 10**9)
        write_document(directory / names.OUTCOME, outcome)
    if verdict:
        store_verdict(directory, verdict, __version__, headline)
    return directory
