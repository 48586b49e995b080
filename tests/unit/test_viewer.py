"""What `iotrace open` serves, and to whom; gaps between inputs that a merge tells of."""

from __future__ import annotations

import http.client
import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from iotrace.cli.open import _size_note
from iotrace.errors import IotraceError
from iotrace.merge.plan import far_apart
from iotrace.session.listing import session_title
from iotrace.viewer.server import Viewer, perfetto_ui
from iotrace.viewer.view import View, of_failures, of_ranks, of_rows, view_of_file

TITLE = "</script><b>run"
MINUTE_NS = 60 * 10**9


def serving(viewer: Viewer) -> Iterator[Viewer]:
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            viewer.handle_request()

    thread = threading.Thread(target=serve)
    thread.start()
    yield viewer
    ended.set()
    thread.join()
    viewer.server_close()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a.pftrace"
    path.write_bytes(b"a trace")
    return path


@pytest.fixture
def online(trace: Path) -> Iterator[Viewer]:
    yield from serving(Viewer(trace, TITLE, View("what", "a", ["b"], (1, 2), (3, 4), "select 1")))


@pytest.fixture
def offline(trace: Path) -> Iterator[Viewer]:
    yield from serving(Viewer(trace, TITLE, view_of_file(trace), perfetto_ui()))


def ask(viewer: Viewer, path: str, method: str = "GET", host: str | None = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", viewer.server_address[1])
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_the_page_hands_over_the_one_file(online: Viewer) -> None:
    path = urlsplit(online.address).path
    status, headers, body = ask(online, path)
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert body.count(b"<script") == 1
    assert b"<b>run" not in body
    given = re.search(rb"const given = (.*);\n", body)
    assert given is not None
    told = json.loads(given[1])
    assert (told["title"], told["fileName"], told["page"]) == (TITLE, "a.pftrace", "https://ui.perfetto.dev")
    asked = parse_qs(told["fragment"].removeprefix("#!/?"))
    assert [asked[key] for key in ("visStart", "visEnd", "ts", "dur")] == [["1"], ["2"], ["3"], ["4"]]
    assert json.loads(asked["startupCommands"][0]) == [
        {"id": "dev.perfetto.ExpandTracksByRegex", "args": ["a"]},
        {"id": "dev.perfetto.PinTracksByRegex", "args": ["b"]},
        {"id": "dev.perfetto.RunQueryAndShowTab", "args": ["select 1"]},
    ]
    assert ask(online, f"{path}trace")[::2] == (200, b"a trace")


def test_others_are_refused(online: Viewer) -> None:
    path = urlsplit(online.address).path
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        assert ask(online, f"{path}trace", host=host)[0] == 403
    assert ask(online, f"{path}trace", host="localhost:1")[0] == 200  # a forwarded port
    for wrong in ("/", "/trace", "/other/trace", f"{path}a.pftrace", f"{path}ui/index.html", f"{path}../x"):
        assert ask(online, wrong)[0] == 404
    for method in ("POST", "PUT", "HEAD", "OPTIONS"):
        assert ask(online, f"{path}trace", method)[0] in (405, 501)


def test_offline_the_pages_are_of_the_same_origin_and_may_ask_no_other(offline: Viewer) -> None:
    path = urlsplit(offline.address).path
    status, headers, _ = ask(offline, path)
    assert status == 302
    where = urlsplit(headers["Location"])
    (url,) = parse_qs(where.fragment.removeprefix("!/?"))["url"]
    assert url == f"{offline.address}trace"
    status, headers, body = ask(offline, where.path)
    assert status == 200
    assert b"Perfetto" in body
    policy = headers["Content-Security-Policy"]
    assert "http" not in policy
    assert "*" not in policy
    for wrong in ("../server.py", "%2e%2e/__init__.py", "nothing", "%2Fetc%2Fpasswd"):
        assert ask(offline, f"{path}ui/{wrong}")[0] == 404


def test_it_ends_when_nobody_asks(trace: Path) -> None:
    with Viewer(trace, TITLE, view_of_file(trace)) as viewer:
        viewer.serve(idle_seconds=0)


def test_a_port_in_use_gets_a_sentence(online: Viewer, trace: Path) -> None:
    with pytest.raises(IotraceError, match="cannot be used") as raised:
        Viewer(trace, TITLE, view_of_file(trace), port=online.server_address[1])
    assert "--port" in str(raised.value.remedy)


def test_inputs_far_apart_are_told_and_others_not() -> None:
    def item(start_minute: int, end_minute: int, label: str) -> Any:
        first, last = start_minute * MINUTE_NS, end_minute * MINUTE_NS
        return SimpleNamespace(first_ns=first, last_ns=last, file=SimpleNamespace(label=label))

    (note,) = far_apart([item(31, 32, "b"), item(0, 1, "a")])
    assert note.startswith("b begins 30.0 min after a ended")
    assert far_apart([item(0, 40, "a"), item(1, 2, "within"), item(41, 52, "b")]) == []


def test_tracks_of_several_ranks_are_pinned_in_order() -> None:
    fragment = parse_qs(view_of_file(Path("merged.pftrace")).fragment().removeprefix("#!/?"))
    commands = json.loads(fragment["startupCommands"][0])
    pins = [each["args"][0] for each in commands if each["id"].startswith("dev.perfetto.Pin")]
    ranks = [f"rank {number} · idle" for number in (0, 1, 7)]
    matched = [name for pin in pins for name in ("steps", *reversed(ranks)) if re.search(pin, name)]
    assert matched == ["steps", *ranks]


def test_without_devices_the_processes_of_a_merge_are_open(tmp_path: Path) -> None:
    for name, opened in ((b"GPU 3", False), (b"thread 7", True)):
        path = tmp_path / "merged.pftrace"
        path.write_bytes(b"\x0a\x10rank 0" + name)
        assert bool(re.search(view_of_file(path).expanded, "python (4498) · CPU")) is opened


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("a/before", "before"),
        ("s/runs/point_workers=2_0/session", "point_workers=2_0"),
        ("a/session", "session"),
    ],
)
def test_a_run_of_a_sweep_is_called_by_its_point(path: str, title: str) -> None:
    assert session_title(Path(path)) == title


def test_what_the_report_says_stands_below_the_tracks_as_it_is() -> None:
    rows = [("INPUT-BOUND", "52 %"), ("Why", "it's\0 'a\"; drop table"), ("Trust", "ok")]
    found = sqlite3.connect(":memory:").execute(of_rows(rows))
    assert [column[0] for column in found.description] == ["iotrace", "says"]
    assert found.fetchall() == [(label, text.replace("\0", " ")) for label, text in rows]
    assert of_rows([]) == ""


def test_failures_stand_below_the_tracks_in_order(tmp_path: Path) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("create table slice (name, ts, arg_set_id)")
    slices = [
        ("failed: worker 0 · OSError", 2, 1),
        ("failed: x.h5 · worker 1 · OSError", 1, 2),
        ("step", 0, 0),
    ]
    database.executemany("insert into slice values (?, ?, ?)", slices)
    # Arguments are called so by a native timeline, and so by JSON.
    told = {(1, "debug.message"): "no", (2, "args.message"): "none", (2, "args.batch"): 7}
    database.create_function("extract_arg", 2, lambda number, key: told.get((number, key)))
    assert database.execute(of_failures()).fetchall() == [
        ("x.h5 · worker 1 · OSError", "none", None, 7),
        ("worker 0 · OSError", "no", None, None),
    ]


def test_ranks_of_bare_traces_are_compared_and_those_of_sessions_are_not(tmp_path: Path) -> None:
    path = tmp_path / "merged.pftrace"
    for names, compared in (
        (b"rank 0 rank 1", True),
        (b"rank 0 rank 0", False),
        (b"rank 0 rank 1 data wait", False),
    ):
        path.write_bytes(names)
        assert bool(view_of_file(path).query) is compared
    database = sqlite3.connect(":memory:")
    database.execute("create table track (id, parent_id, name)")
    database.execute("create table slice (name, track_id, dur)")
    names = {
        0: (None, "2 inputs"),
        1: (0, "rank 0"),
        2: (1, "python"),
        3: (0, "rank 1"),
        4: (3, "rank 1 · x"),
    }
    database.executemany("insert into track values (?, ?, ?)", [(key, *row) for key, row in names.items()])
    load, ms = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 10**6
    slices = [(load, 2, 3 * ms), ("gloo:all_reduce", 2, 90 * ms), (load, 4, 80 * ms), (load, 4, 9 * ms)]
    slices += [("ncclDevKernel_AllReduce", 4, 2 * ms), ("nccl:all_reduce", 4, 5 * ms), ("aten::mm", 2, ms)]
    database.executemany("insert into slice values (?, ?, ?)", slices)
    assert database.execute(of_ranks()).fetchall() == [("rank 1", 89.0, 2.0), ("rank 0", 3.0, 90.0)]


def test_of_a_large_timeline_the_command_for_a_part_is_told() -> None:
    assert _size_note(60 << 20, Path("run"), "worst") == ""
    assert _size_note(73 << 20, Path("my run"), "failure") == (
        "note    73.0 MiB may take a browser minutes; a part opens sooner: "
        "iotrace merge 'my run' --around failure -o part.pftrace"
    )
    assert _size_note(73 << 20, None, "worst").endswith(" merge its inputs with --time A:B")
