"""`iotrace ui`: what its list shows, who may ask, and what a stranger's names can do."""

from __future__ import annotations

import html
import json
import os
import re
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from iotrace.errors import IotraceError
from iotrace.session import names
from iotrace.session.listing import Headline, list_sessions
from iotrace.sweeps.plan import keep
from iotrace.ui import pages
from iotrace.ui.index import Index
from iotrace.ui.jobs import Jobs
from iotrace.ui.lists import Query, chosen
from iotrace.ui.places import SESSION, TRACE, Places
from iotrace.ui.server import _listen
from iotrace.ui.tasks import REPORT, Task, hash_content
from tests.support.runs import PROJECT, in_process
from tests.support.served import TOKEN, served, session, until_done
from tests.unit.test_sweep import Machine, swept
from tests.unit.test_tune import Machine as Tuned, tuned

GLOO = PROJECT / "tests" / "data" / "gloo_rank0.json.gz"

NASTY = 'x"><script>alert(1)</script>&\u202e'
BOUND = Headline(verdict_class="input-bound", why="a.h5 is slow to decode", wait_fraction=0.6, step_ms=50.0)
CALM = Headline(verdict_class="not-input-bound", wait_fraction=0.01, step_ms=20.0)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    directory = tmp_path / "runs"
    directory.mkdir()
    session(directory / "slow", verdict="INPUT-BOUND 60 %", headline=BOUND, started_ns=2 * 10**18)
    session(directory / "fast", "other.py", verdict="NOT INPUT-BOUND", headline=CALM)
    session(directory / "broken", exit_code=1, started_ns=3 * 10**18)
    session(directory / "deep" / "er" / "live", exit_code=None, started_ns=4 * 10**18)
    damaged = directory / "damaged"
    damaged.mkdir()
    (damaged / names.MANIFEST).write_text("{")
    return directory


def keys(page: str) -> list[str]:
    """The runs of a list, in order."""
    return [html.unescape(found) for found in re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', page)]


def test_the_list_shows_state_verdict_and_damage_of_all_that_lies_below(runs: Path, tmp_path: Path) -> None:
    with served(runs, own=tmp_path / "own") as client:
        page = client.get("/").text
        assert keys(page) == ["deep/er/live", "broken", "slow", "fast", "damaged"]
        for text in ("a.h5 is slow to decode", "60\u00a0%", "50.0\u00a0ms", "1 min 30 s", "is damaged"):
            assert text in page, text
        assert re.findall(r'class="state (\w+)"', page) == ["running", "failed", "ended", "ended", "damaged"]
        assert keys(client.get("/?verdict=input-bound").text) == ["slow"]
        assert keys(client.get("/?state=failed").text) == ["broken"]
        assert keys(client.get("/?text=OTHER").text) == ["fast"]
        assert keys(client.get("/?sort=wait&order=up").text)[:2] == ["fast", "slow"]
        assert keys(client.get("/?sort=nonsense&page=99999999999").text) == keys(page)
        said = client.get("/run?of=damaged")
        assert (said.status_code, "is damaged" in said.text) == (200, True)


def test_what_goes_on_comes_first_until_something_else_is_chosen(runs: Path, tmp_path: Path) -> None:
    session(runs / "newest", started_ns=43 * 10**17)
    with served(runs, own=tmp_path / "own") as client:
        assert keys(client.get("/").text)[:2] == ["deep/er/live", "newest"]
        assert keys(client.get("/?sort=started").text)[:2] == ["newest", "deep/er/live"]
        page = client.get("/").text
        assert "No verdict is stored. Open it to make one." in page
        assert "Open it to see how it goes." in page


def test_what_is_not_known_stands_last_in_either_order(runs: Path) -> None:
    entries = Index([runs]).entries()
    for order in ("up", "down"):
        found = chosen(entries, Query(sort="step", order=order))
        assert [each.headline.step_ms for each in found[2:]] == [None] * 3


def test_nothing_is_read_again_that_has_not_changed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index([runs])
    index.entries()
    index.forget()
    read = []
    monkeypatch.setattr("iotrace.ui.index.listed", lambda path, name: read.append(name) or list_of(path))
    index.entries()
    assert read == ["deep/er/live"]


def list_of(path: Path) -> object:
    """The session as a list has it."""
    return list_sessions(path).sessions[0]


def test_what_lies_below_is_found_and_no_link_is_followed(runs: Path, tmp_path: Path) -> None:
    outside = session(tmp_path / "outside" / "secret")
    (runs / "link").symlink_to(outside)
    (runs / "loop").symlink_to(runs)
    (runs / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (runs / "linked.json").symlink_to(runs / "trace.json")
    (runs / "else.json").write_text('{"name": "none"}')
    os.mkfifo(runs / "pipe.json")
    found = {(place.key, place.kind) for place in Places([runs]).walk()}
    assert {key for key, kind in found if kind == TRACE} == {"trace.json"}
    assert {key for key, kind in found if kind == SESSION} == {
        "broken", "damaged", "deep/er/live", "fast", "slow"
    }  # fmt: skip
    several = {place.key for place in Places([runs, outside.parent]).walk()}
    assert {"1-runs/slow", "2-outside/secret"} <= several


def test_a_name_that_is_no_text_has_an_address(tmp_path: Path) -> None:
    session(tmp_path / "runs" / os.fsdecode(b"\xff\n"))
    with served(tmp_path / "runs", own=tmp_path / "own") as client:
        found = re.search(r'href="(/run\?of=[^"]*)"', client.get("/").text)
        assert found is not None
        assert "REPORT" in until_done(client, html.unescape(found[1])).upper()


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    name = NASTY.replace("/", "|")
    bad = replace(BOUND, why=NASTY, file=NASTY)
    run = session(tmp_path / "runs" / name, NASTY, verdict=f"INPUT-BOUND {NASTY}", headline=bad)
    session(tmp_path / "runs" / "live", NASTY, exit_code=None)
    manifest = json.loads((run / names.MANIFEST).read_text())
    (run / names.MANIFEST).write_text(json.dumps(manifest | {"host": NASTY}))
    with served(tmp_path / "runs", own=tmp_path / "own") as client:
        key = client.get("/").text
        of = html.unescape(re.findall(r'href="(/run\?of=[^"]*)"', key)[-1])
        texts = [key, until_done(client, of), client.get("/run?of=live").text]
        texts += [client.get(of.replace("/run", "/delete")).text, client.get(f"/?text={NASTY}").text]
        texts += [client.get("/run", params={"of": NASTY + "?"}).text]
        for text in texts:
            assert "<script>alert" not in text
            assert "\u202e" not in text


def test_no_token_no_answer(runs: Path, tmp_path: Path) -> None:
    with served(runs, own=tmp_path / "own", known=False) as client:
        for path in ("/", "/run?of=slow", "/metrics", "/static/ui.js", "/live?of=slow", "/nothing"):
            assert client.get(path).status_code == 401, path
        assert client.get("/?token=wrong").status_code == 401
        assert client.post(f"/delete?token={TOKEN}", data={"of": "slow"}).status_code == 403
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/metrics", headers=bearer).status_code == 200
        first = client.get(f"/run?of=damaged&token={TOKEN}", follow_redirects=False)
        assert first.headers["location"] == "/run?of=damaged"
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        elsewhere = client.get(f"http://127.0.0.1:7333//evil.example/?token={TOKEN}", follow_redirects=False)
        assert elsewhere.headers["location"] == "/evil.example/"
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:7333"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "["}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:9"}, 401),  # a tunnel's port; the cookie is of the other name
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "https://127.0.0.1:7333"}, 403),
        ({"Origin": "http://127.0.0.1:8000"}, 403),
        ({"Origin": "http://127.0.0.1:7333"}, 200),
    ],
)
def test_another_host_or_origin_is_refused(
    runs: Path, tmp_path: Path, headers: dict[str, str], code: int
) -> None:
    with served(runs, own=tmp_path / "own") as client:
        if code == 401:
            client.cookies.clear()
        assert client.get("/", headers=headers).status_code == code


def test_every_answer_forbids_inline_scripts_and_frames(runs: Path, tmp_path: Path) -> None:
    with served(runs, own=tmp_path / "own") as client:
        until_done(client, "/run?of=fast")
        for path in ("/", "/run?of=fast", "/nothing", "/run?of=none", "/static/ui.css"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            scripts = re.search(r"script-src ([^;]*)", policy)
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert scripts is not None
            assert "unsafe" not in scripts[1]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
    assert len(pages.script()) < 20_000


@pytest.mark.parametrize(
    "path",
    [
        "/run?of=../secret",
        "/run?of=%2e%2e%2fsecret",
        "/run?of=/etc",
        "/run?of=link",
        "/run?of=slow/../../secret",
        "/file?of=slow&view=../../done&form=json",
        "/file?of=slow&view=report&form=html",
        "/run?of=slow&view=../report",
        "/timeline/../trace",
        "/timeline/x/trace",
        "/timeline/x/ui/../../../etc/passwd",
        "/static/../app.py",
    ],
)
def test_no_address_leads_out_of_the_directory(runs: Path, tmp_path: Path, path: str) -> None:
    secret = session(tmp_path / "secret")
    (runs / "link").symlink_to(secret)
    with served(runs, own=tmp_path / "own") as client:
        until_done(client, "/run?of=slow")
        assert client.get(path).status_code == 404


def test_a_session_is_deleted_after_a_question(runs: Path, tmp_path: Path) -> None:
    ours = {"Origin": "http://127.0.0.1:7333"}
    with served(runs, own=tmp_path / "own") as client:
        assert "Delete slow?" in client.get("/delete?of=slow").text
        assert (runs / "slow").exists()
        assert client.post("/delete", data={"of": "slow"}).status_code == 403  # from nowhere
        assert client.post("/delete", data={"of": "slow"}, headers={"Origin": "http://x"}).status_code == 403
        assert (runs / "slow").exists()
        assert "has ended" in client.post("/delete", data={"of": "deep/er/live"}, headers=ours).text
        assert client.post("/delete", data={"of": "../runs"}, headers=ours).status_code == 404
        assert client.post("/delete", content=b"of=" + b"x" * 100_000, headers=ours).status_code == 413
        assert "slow" not in keys(client.post("/delete", data={"of": "slow"}, headers=ours).text)
        assert not (runs / "slow").exists()
        assert client.get("/run?of=slow").status_code == 404
        assert (runs / "deep" / "er" / "live").exists()


def test_read_only_deletes_nothing(runs: Path, tmp_path: Path) -> None:
    with served(runs, own=tmp_path / "own", read_only=True) as client:
        assert client.get("/delete?of=slow").status_code == 404
        answer = client.post("/delete", data={"of": "slow"}, headers={"Origin": "http://127.0.0.1:7333"})
        assert answer.status_code == 404
        assert "/delete" not in until_done(client, "/run?of=slow")
    assert (runs / "slow").exists()


def test_two_runs_have_to_be_ticked(runs: Path, tmp_path: Path) -> None:
    with served(runs, own=tmp_path / "own") as client:
        for query in ("", "?of=slow", "?of=slow&of=slow", "?of=slow&of=fast&of=broken"):
            assert "Tick two runs" in client.get(f"/compare{query}").text
        assert "have ended" in client.get("/compare?of=slow&of=deep/er/live").text
        assert client.get("/compare?of=slow&of=none").status_code == 404
        until_done(client, "/compare?of=slow&of=fast")


def test_what_cannot_be_analysed_is_a_sentence(runs: Path, tmp_path: Path) -> None:
    (runs / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": 7}')
    with served(runs, own=tmp_path / "own") as client:
        assert "Not shown" in until_done(client, "/run?of=trace.json")
        for query in ("at=1e99", "around=x", "batch=-1"):
            assert client.get(f"/timeline?of=slow&{query}").status_code == 404


@pytest.mark.anyio
@pytest.mark.parametrize(("seconds", "size", "said"), [(0.01, 1 << 33, "was ended"), (60.0, 1 << 20, "")])
async def test_an_analysis_has_bounds(
    runs: Path, tmp_path: Path, seconds: float, size: int, said: str
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    found = Jobs(own, seconds, size)
    job = await found.get(Task(kind=REPORT, paths=[str(runs / "slow")]), 120)
    await found.close()
    assert job.done is not None
    assert job.done.problem
    assert said in job.done.problem


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_content_of_a_session_is_what_was_recorded(runs: Path) -> None:
    before = hash_content([runs / "slow"])
    (runs / "slow" / names.OUT / "more").write_text("made by a reader")
    assert hash_content([runs / "slow"]) == before
    (runs / "slow" / "posix").mkdir(exist_ok=True)
    (runs / "slow" / "posix" / "1.io").write_text("recorded")
    assert hash_content([runs / "slow"]) != before


def test_the_next_free_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listening, used = _listen("127.0.0.1", port)
        listening.close()
        assert used > port
    with pytest.raises(IotraceError, match="cannot listen on"):
        _listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "none does not exist"),
        (["--host", "0.0.0.0"], "lets other machines in"),
        (["--token", "short"], "at least 16 letters"),
        (["--port", "70000"], "--port"),
    ],
)
def test_wrong_usage_is_said(words: list[str], said: str, tmp_path: Path) -> None:
    done = in_process("ui", *words, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert said in done.stderr


def test_a_sweep_a_search_and_a_trace_have_their_pages(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.mkdir()
    for found in (tuned(Tuned(), root / "t"), swept(root / "s", Machine())):
        keep(found)
    (root / GLOO.name).write_bytes(GLOO.read_bytes())
    with served(root, own=tmp_path / "own") as client:
        listed = {html.unescape(key) for key in keys(client.get("/").text)}
        assert {GLOO.name, "s/s"} <= listed
        assert "workers" in until_done(client, "/run?of=s/s").lower()
        assert client.get("/timeline?of=s/s").status_code == 404
        assert "view=operators" in until_done(client, f"/run?of={GLOO.name}")
        timeline = until_done(client, f"/timeline?of={GLOO.name}")
        assert "Perfetto" in timeline
        before = root / "before.json.gz"
        before.write_bytes(GLOO.read_bytes())
        assert "operators" in until_done(client, f"/compare?of={GLOO.name}&of={before.name}").lower()
