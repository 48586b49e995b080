"""`iotrace ui` as a command: recorded runs, a live one, and in Chromium what people see."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest

from iotrace.session.listing import Headline
from tests.support.accessible import HOW, axe, violations
from tests.support.chromium import Chromium
from tests.support.runs import SMALL_LOOP, Run, launcher, run_traced
from tests.support.served import TOKEN, session

PROGRAM = """
import iotrace, os, time
with open("data.bin", "wb") as file:
    file.write(os.urandom(1 << 20))
def batches():
    while not os.path.exists("enough"):
        with open("data.bin", "rb") as file:
            yield file.read()
        time.sleep(0.01)
for batch in iotrace.batches(batches()):
    time.sleep(0.005)
"""
GLOO = Path(__file__).parent.parent / "data" / "gloo_rank0.json.gz"
_SIDEWAYS = "document.documentElement.scrollWidth - window.innerWidth"
# Pages of Perfetto say much; of ours only what is wrong.
_READY = "document.readyState === 'complete' && !document.querySelector('meta[http-equiv=refresh]')"


@contextmanager
def serving(*words: str, directory: Path) -> Iterator[str]:
    """Run ``iotrace ui WORDS`` and yield the server's address; it leaves nothing behind."""
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    line = [sys.executable, "-m", "iotrace", "ui", *words, "--port", "0", "--token", TOKEN]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, cwd=directory, env={**os.environ, "TMPDIR": str(temporary)}
    ) as server:
        assert server.stdout is not None
        try:
            for told in server.stdout:
                if found := re.match(r"open +(http://127.0.0.1:\d+)/", told):
                    yield found[1]
                    break
            else:
                raise AssertionError("no address")
        finally:
            server.send_signal(signal.SIGTERM)
            server.stdout.read()
            assert server.wait(60) == -signal.SIGTERM
    assert list(temporary.iterdir()) == []


def ask(address: str) -> bytes:
    """Get an address as a program does."""
    end = time.monotonic() + 120
    while True:
        with urlopen(Request(address, headers={"Authorization": f"Bearer {TOKEN}"}), timeout=60) as answer:
            body: bytes = answer.read()
            if answer.status != 202:
                return body
        assert time.monotonic() < end
        time.sleep(0.2)


def test_ctrl_c_ends_it_in_peace(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "iotrace", "ui", "--port", "0"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        told = iter(server.stdout.readline, "")
        first = next(found[1] for line in told if (found := re.match(r"open +(\S+)", line)))
        with build_opener(HTTPCookieProcessor()).open(first, timeout=60) as answer:  # it moves the token
            assert answer.status == 200
        server.send_signal(signal.SIGINT)
        assert (server.stderr.read(), server.wait(60)) == ("", 0)


def test_reports_views_and_files_of_a_recorded_run(unet_run: Run, tmp_path: Path) -> None:
    root = unet_run.session.parent
    with serving(str(root), directory=tmp_path) as server:
        of = f"of={unet_run.session.name}"
        page = ask(f"{server}/run?{of}").decode()
        views = re.findall(r"view=([a-z-]+)", page)
        assert {"operators", "startup", "storage", "system"} <= set(views)
        assert "kernels" not in views  # there was no device
        found = json.loads(ask(f"{server}/file?{of}&form=json"))
        for view in views:
            assert json.loads(ask(f"{server}/file?{of}&view={view}&form=json"))["view"] == view
            assert b"," in ask(f"{server}/file?{of}&view={view}&form=csv")
            assert b"<table>" in ask(f"{server}/run?{of}&view={view}")
        assert b"no wait was for none.h5" in ask(f"{server}/timeline?{of}&file=none.h5")
        assert b"has no rank 7" in ask(f"{server}/timeline?{of}&rank=7")
        with pytest.raises(HTTPError, match="404"):
            ask(f"{server}/timeline?{of}&rank=-1")
        listed = ask(f"{server}/").decode()
        assert found["verdict"]["banner"] in listed
        assert f">{found['verdict']['class']} (1)<" in listed


def test_a_live_run_has_metrics_and_then_a_report(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    line, path = launcher(tmp_path, ["program.py"], ["-q"])
    with serving(str(tmp_path), directory=tmp_path) as server:
        running = subprocess.Popen(line, cwd=tmp_path)
        try:
            end = time.monotonic() + 120
            while b"iotrace_steps_per_second{" not in (text := ask(f"{server}/metrics")):
                assert time.monotonic() < end
                time.sleep(0.5)
            assert f'iotrace_hung{{session="{path.name}"}} 0.0'.encode() in text
            assert b"data-events" in ask(f"{server}/run?of={path.name}")
        finally:
            (tmp_path / "enough").touch()
            assert running.wait(60) == 0
        time.sleep(1.1)  # the list is a second old at most
        assert b"data-events" not in ask(f"{server}/run?of={path.name}")


def test_a_run_says_where_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    (tmp_path / "runs").mkdir()
    line = [sys.executable, "-m", "iotrace", "run", "-o", "runs/one", "--torch-steps", "off", "--", "true"]

    def said() -> str:
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0
        shutil.rmtree(tmp_path / "runs" / "one")
        return done.stderr

    with serving(str(tmp_path / "runs"), directory=tmp_path) as server:
        assert f"iotrace: in the browser: {server}/run?of=one\n" in said()
        monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
        assert "iotrace: where the browser is, first: ssh -L " in said()
    assert "in the browser" not in said()


def test_a_run_gives_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    line = [sys.executable, "-m", "iotrace", "run", "-o", "run", "--metrics", "0", "--", sys.executable]
    with subprocess.Popen([*line, "program.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            address = next(
                found[1] for told in running.stderr if (found := re.search(r"metrics at (\S+)", told))
            )
            end = time.monotonic() + 120
            while b"iotrace_steps_per_second{" not in (text := ask(address)):
                assert time.monotonic() < end
                time.sleep(0.5)
            assert b'iotrace_hung{session="run"} 0.0' in text
        finally:
            (tmp_path / "enough").touch()
            running.stderr.read()
        assert running.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        urlopen(address, timeout=60)


def test_a_baseline_is_set_and_the_run_passes_its_check(unet_run: Run, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(unet_run.session, runs / "one")
    with serving(str(runs), directory=tmp_path) as server:
        ours = {"Authorization": f"Bearer {TOKEN}", "Origin": server}
        with urlopen(Request(f"{server}/baseline", b"of=one", ours), timeout=300) as answer:
            assert "/history?program=" in answer.url
        (kept,) = (runs / "baselines").iterdir()
        assert kept.name.endswith("Z-one.json")
        checked = ask(f"{server}/check?of=one").decode()
        assert re.search(r'<h1 class="(good|warn)">NOT ', checked)  # or not clear: it is busy
        assert "Set one as a baseline" in ask(answer.url).decode()
        assert b"<table" in ask(f"{server}/run?of=baselines/{kept.name}")


@contextmanager
def browsing(server: str, directory: Path) -> Iterator[Chromium]:
    """Open the server's first address in a browser."""
    with Chromium(directory / "profile") as browser:
        browser.open(f"{server}/?token={TOKEN}")
        browser.until("document.querySelector('#filter') !== null")
        yield browser


@pytest.mark.chromium
def test_chromium_filters_two_thousand_sessions(tmp_path: Path) -> None:
    for number in range(2000):
        kind = "input-bound" if number % 4 else "not-input-bound"
        told = Headline(verdict_class=kind, wait_fraction=number / 2000)
        session(
            tmp_path / "runs" / f"run-{number:04}",
            verdict=f"{kind.upper()} {number}",
            headline=told,
            started_ns=10**18 + number,
        )
    with serving(str(tmp_path / "runs"), directory=tmp_path) as server, browsing(server, tmp_path) as browser:
        status = "document.querySelector('#rows [role=status]').textContent"
        rows = "document.querySelectorAll('.runs tbody tr').length"
        assert browser.evaluate(status) == "2000 of 2000 runs"
        assert browser.evaluate(rows) == 200
        browser.evaluate("const t = document.querySelector('[name=text]'); t.value = 'run-17';"
                         "t.dispatchEvent(new Event('input', {bubbles: true}))")  # fmt: skip
        browser.until(f"{status} === '100 of 2000 runs'")
        assert "text=run-17" in browser.evaluate("location.href")
        browser.evaluate("const v = document.querySelector('[name=verdict]'); v.value = 'not-input-bound';"
                         "v.dispatchEvent(new Event('input', {bubbles: true}))")  # fmt: skip
        browser.until(f"{status} === '25 of 2000 runs'")
        browser.open(browser.evaluate("location.href"))  # what is sent to somebody shows the same
        browser.until(f"{_READY} && {rows} === 25")
        browser.evaluate(
            "[...document.querySelectorAll('.runs input')].slice(0, 2).forEach((tick) => tick.click())"
        )
        assert not browser.evaluate("document.querySelector('#compare button').disabled")
        assert browser.said == []


@contextmanager
def all_pages(unet_run: Run, directory: Path) -> Iterator[tuple[Chromium, list[str]]]:
    """Serve two runs and a trace; yield a browser, and the addresses of all pages that they have."""
    other = run_traced(directory, [SMALL_LOOP, "20"], ["-q"]).session
    traces = directory / "traces"
    traces.mkdir()
    (traces / GLOO.name).write_bytes(GLOO.read_bytes())
    roots = (str(unet_run.session), str(other), str(traces))
    with serving(*roots, directory=directory) as server, browsing(server, directory) as browser:
        found = browser.evaluate(
            "[...document.querySelectorAll('.runs th a[href^=\"/run\"]')].map((a) => a.href)"
        )
        assert len(found) == 3
        compared = f"{server}/compare?" + "&".join(one.partition("?")[2] for one in found[:2])
        addresses = [f"{server}/", f"{server}/history", f"{server}/words", compared]
        for one in [compared, *found]:
            browser.open(one)
            browser.until(f"location.href === {json.dumps(one)} && {_READY}")
            browser.until("document.querySelector('.uibar, .said') !== null")
            addresses += browser.evaluate(
                "[...document.querySelectorAll('.uibar nav a:not([download])')]"
                ".map((a) => a.href).filter((each) => !each.includes('/timeline?'))"
            )
        assert len(addresses) > 12
        yield browser, list(dict.fromkeys(addresses))


@pytest.mark.chromium
def test_chromium_shows_each_tab_without_errors_or_sideways_scroll(unet_run: Run, tmp_path: Path) -> None:
    with all_pages(unet_run, tmp_path) as (browser, addresses):
        for address in addresses:
            browser.open(address)
            browser.until(f"location.href === {json.dumps(address)} && {_READY}")
            for width in (390, 800, 1280, 2560):
                browser.size(width, 900, phone=width < 500)
                assert browser.evaluate(_SIDEWAYS) <= 0, (address, width)
            browser.size(794, 1123)
            browser.media("print")
            assert browser.evaluate(_SIDEWAYS) <= 0, (address, "print")
            browser.media()
        assert browser.said == []


@pytest.mark.chromium
@pytest.mark.skipif(axe() is None, reason=HOW)
def test_axe_finds_nothing_serious_on_any_page_light_or_dark(unet_run: Run, tmp_path: Path) -> None:
    with all_pages(unet_run, tmp_path) as (browser, addresses):
        for address in addresses:
            browser.open(address)
            browser.until(f"location.href === {json.dumps(address)} && {_READY}")
            for scheme in ("light", "dark"):
                browser.media(prefers_color_scheme=scheme)
                assert violations(browser) == [], (address, scheme)
        browser.evaluate(
            "document.querySelector('main, body').insertAdjacentHTML('beforeend', '<img src=/x>')"
        )
        assert [each["id"] for each in violations(browser)] == ["image-alt"]  # it does look


@pytest.mark.chromium
def test_chromium_list_is_used_by_keyboard_alone(tmp_path: Path) -> None:
    for number in range(2):
        head = Headline(verdict_class="input-bound", wait_fraction=0.5, steps_per_second=1.0 + number)
        session(tmp_path / "runs" / f"run-{number}", verdict="INPUT-BOUND", headline=head)
    with serving(str(tmp_path / "runs"), directory=tmp_path) as server, browsing(server, tmp_path) as browser:

        def press(key: str, code: int, text: str = "") -> str:
            pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, **pressed)
            return str(browser.evaluate("document.activeElement.outerHTML"))

        assert 'class="skip"' in press("Tab", 9)
        reached = [press("Tab", 9) for _ in range(30)]
        for part in ('type="search"', 'name="verdict"', 'aria-label="compare run-0"', 'href="/run?of=run-1"'):
            assert any(part in each for each in reached), part
        browser.evaluate("document.querySelector('[aria-label=\"compare run-0\"]').focus()")
        press(" ", 32, " ")
        browser.evaluate("document.querySelector('[aria-label=\"compare run-1\"]').focus()")
        press(" ", 32, " ")
        assert not browser.evaluate("document.querySelector('#compare button').disabled")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert browser.evaluate(outline) != "none"
        browser.evaluate(
            "document.querySelector('[aria-label=\"compare run-1\"]').form.querySelector('button').focus()"
        )
        press("Enter", 13, "\r")
        browser.until("location.pathname === '/compare'")


@pytest.mark.chromium
def test_chromium_follows_a_run_to_its_report(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    line, path = launcher(tmp_path, ["program.py"], ["-q"])
    with serving(str(tmp_path), directory=tmp_path) as server, browsing(server, tmp_path) as browser:
        running = subprocess.Popen(line, cwd=tmp_path)
        try:
            end = time.monotonic() + 120
            while b">running<" not in ask(f"{server}/"):
                assert time.monotonic() < end
                time.sleep(0.3)
            browser.open(f"{server}/run?of={path.name}")
            browser.until("document.querySelector('#live .strip') !== null")
            if axe() is not None:
                assert violations(browser) == []
            first = browser.evaluate("document.querySelector('#live .note').textContent")
            browser.until(f"document.querySelector('#live .note').textContent !== {json.dumps(first)}")
        finally:
            (tmp_path / "enough").touch()
            assert running.wait(60) == 0
        browser.until(
            "document.querySelector('#live') === null && document.querySelector('.verdict') !== null"
        )
        assert browser.said == []


@pytest.mark.chromium
def test_chromium_opens_the_timeline_at_what_is_clicked(unet_run: Run, tmp_path: Path) -> None:
    of = f"of={unet_run.session.name}"
    with serving(str(unet_run.session), directory=tmp_path) as server, browsing(server, tmp_path) as browser:
        browser.open(f"{server}/run?{of}")
        browser.until(f"{_READY} && document.querySelector('[data-strip]') !== null")
        links = browser.evaluate("[...document.querySelectorAll('main a')].map((a) => a.href)")
        assert any(f"/timeline?{of}&batch=" in each for each in links)
        (file, *_) = (each for each in links if f"/timeline?{of}&file=" in each)
        browser.evaluate("document.querySelector('[data-strip]').focus()")
        for key in ("ArrowRight", "ArrowRight", "Enter"):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        for address in ("", file):
            if address:
                browser.open(address)
            browser.until("location.pathname.includes('/ui/')")
            browser.until("document.body?.innerText.includes('Current Trace')")


@pytest.mark.chromium
def test_chromium_opens_the_timeline_at_a_step(unet_run: Run, tmp_path: Path) -> None:
    with serving(str(unet_run.session), directory=tmp_path) as server, browsing(server, tmp_path) as browser:
        browser.open(f"{server}/timeline?of={unet_run.session.name}&around=3")
        browser.until("location.pathname.includes('/ui/') && location.hash.includes('visStart')")
        browser.until("document.body?.innerText.includes('Current Trace')")


BAD = "<img src=x onerror=alert(1)>"
ATTACKER = f"""
import iotrace, time
names = [f"{BAD}{{number}}.bin" for number in range(3)]
for name in names:
    with open(name, "wb") as file:
        file.write(bytes(1 << 20))
def batches():
    for number in range(40):
        with open(names[number % 3], "rb") as file:
            yield file.read()
for number, batch in enumerate(iotrace.batches(batches())):
    with iotrace.region("{BAD}"):
        time.sleep(0.002)
    if number == 30:
        raise type("{BAD}", (Exception,), {{}})("{BAD}<script>alert(2)</script>")
"""


@pytest.mark.chromium
def test_chromium_runs_nothing_that_names_of_a_session_hold(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ATTACKER)
    runs = tmp_path / "runs"
    line = [sys.executable, "-m", "iotrace", "run", "-q", "-o", f"runs/{BAD[:-1]}", "--", sys.executable]
    done = subprocess.run([*line, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 1, done.stderr
    manifest = runs / BAD[:-1] / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"host": BAD}))
    shutil.copytree(runs / BAD[:-1], runs / "again")
    with serving("runs", directory=tmp_path) as server, browsing(server, tmp_path) as browser:
        todo = browser.evaluate(
            "[...document.querySelectorAll('.runs th a[href^=\"/run\"]')].map((a) => a.href)"
        )
        assert len(todo) == 2
        todo += [f"{server}/compare?" + "&".join(one.partition("?")[2] for one in todo), f"{server}/history"]
        seen = []
        while todo:
            address = todo.pop()
            seen.append(address)
            browser.open(address)
            browser.until(f"location.href === {json.dumps(address)} && {_READY}")
            links = browser.evaluate(
                "[...document.querySelectorAll('.uibar nav a:not([download])')]"
                ".map((a) => a.href).filter((each) => !each.includes('/timeline?'))"
            )
            todo += [link for link in links if link not in seen + todo]
            assert browser.evaluate("document.querySelectorAll('img').length") == 0, address
        shown = browser.evaluate("document.body.innerText")
        assert len(seen) > 8
        assert "onerror=alert(1)" in shown  # as text
        assert browser.said == []


@pytest.mark.parametrize(
    ("line", "headers", "code"),
    [
        ("GET / HTTP/1.1", {"Host": "evil.example"}, 403),
        ("GET / HTTP/1.1", {}, 400),
        ("GET / HTTP/1.1", {"Origin": "http://evil.example"}, 403),
        ("GET /static/../../../../etc/passwd HTTP/1.1", {}, 404),
        ("GET /timeline/x/ui/..%2f..%2f..%2fetc/passwd HTTP/1.1", {}, 404),
        ("GET /run?of=../secret HTTP/1.1", {}, 404),
        ("GET /run?of=link HTTP/1.1", {}, 404),
        ("POST /delete HTTP/1.1", {}, 403),
    ],
)
def test_attacks_on_the_wire_are_refused(
    tmp_path: Path, line: str, headers: dict[str, str], code: int
) -> None:
    """As they come over a socket: a client's library would tidy up paths and headers."""
    session(tmp_path / "secret")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "secret")
    with serving("runs", directory=tmp_path) as server:
        host, port = server.removeprefix("http://").split(":")
        own = {"Host": f"{host}:{port}", "Authorization": f"Bearer {TOKEN}", "Connection": "close"}
        if code == 400:
            del own["Host"]
        with socket.create_connection((host, int(port)), 60) as wire:
            text = "".join(f"{name}: {value}\r\n" for name, value in (own | headers).items())
            wire.sendall(f"{line}\r\n{text}\r\n".encode())
            answer = b"".join(iter(lambda: wire.recv(1 << 16), b""))
        assert int(answer.split()[1]) == code
        assert b"root:" not in answer


@pytest.mark.chromium
def test_chromium_compares_two_runs_step_by_step_and_opens_a_slow_step(unet_run: Run, tmp_path: Path) -> None:
    for name in ("before", "after"):
        shutil.copytree(unet_run.session, tmp_path / "runs" / name)
    with serving("runs", directory=tmp_path) as server, browsing(server, tmp_path) as browser:
        browser.evaluate("[...document.querySelectorAll('.runs input')].forEach((tick) => tick.click())")
        browser.evaluate("document.querySelector('#compare button').click()")
        browser.until(f"location.pathname === '/compare' && {_READY}")
        browser.until("document.querySelectorAll('#steps .side').length === 2")
        widths = browser.evaluate(
            "[...document.querySelectorAll('#steps .chart')].map((each) => each.getBoundingClientRect().x)"
        )
        assert widths[0] == widths[1]
        links = browser.evaluate("[...document.querySelectorAll('#steps h3 a')].map((a) => a.href)")
        assert links == [f"{server}/timeline?of={name}" for name in ("after", "before")] or links == [
            f"{server}/timeline?of={name}" for name in ("before", "after")
        ]
        assert browser.said == []
