"""`iotrace open` in Chromium: what Perfetto's own pages show first, and how they get the trace."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.chromium import Chromium
from tests.support.runs import Run

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(900)]
# Each title stands there twice: as it is, and as it is shortened.
_TITLES = """[...document.querySelectorAll('.pf-track__title')].map(
    title => title.innerText.replace(/\\s+/g, ' ').trim()).map(text => text.slice(0, text.length / 2))"""
# ui.perfetto.dev as far as the page knows it: it answers PING, and takes a trace.
_STUB = b"""<!doctype html><title>stub</title><script>
addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) {
    const {title, fileName, buffer} = event.data.perfetto;
    document.title = [title, fileName, buffer.byteLength].join("|");
  }
});
</script>"""


@contextmanager
def opened(*words: str) -> Iterator[str]:
    """Run `iotrace open` until its address is no longer needed."""
    line = [sys.executable, "-m", "iotrace", "open", *words]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = next(text.split()[1] for text in process.stdout if text.startswith("open "))
    try:
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_perfetto_shows_the_wait_and_its_worker(unet_run: Run, tmp_path: Path) -> None:
    """The wait and its worker are open, each track once; the pages ask no other host for anything."""
    with opened(str(unet_run.session), "--offline") as address, Chromium(tmp_path / "profile") as browser:
        browser.size(1700, 1100)
        browser.open(address)
        browser.until(f"['batches', 'torch.profiler'].every(name => {_TITLES}.includes(name))")
        titles = browser.evaluate(_TITLES)
        assert titles[:2] == [unet_run.session.name, "rank 0"]
        assert titles[2].startswith("main (")
        assert [titles.count(name) for name in ("steps", "data wait")] == [1, 1]
        workers = [title for title in titles if title.startswith("worker ")]
        assert len(workers) == 2
        # What torch.profiler recorded stands shut: the workers are near.
        assert titles.index("torch.profiler") == titles.index(workers[0]) - 1
        assert titles.index("counters") > titles.index("batches") > titles.index(workers[0])
        # Below the tracks stands what the report says first.
        assert browser.until("document.body.innerText.match(/\\bTrust\\b/)")
        picture = tmp_path / "perfetto.png"
        browser.picture(picture)
        assert picture.stat().st_size > 20_000
        host = urlsplit(address).netloc
        answered = [urlsplit(url) for url in browser.answered]
        assert {url.netloc for url in answered if url.scheme.startswith("http")} == {host}


def test_the_page_hands_the_trace_to_perfettos_tab(unet_run: Run, tmp_path: Path) -> None:
    with perfetto_stub(tmp_path) as port, opened(str(unet_run.session)) as address:
        options = (
            f"--host-resolver-rules=MAP ui.perfetto.dev:443 127.0.0.1:{port}",
            "--ignore-certificate-errors",
        )
        with Chromium(tmp_path / "profile", *options) as browser:
            browser.open(address)
            browser.until("document.readyState === 'complete' && document.getElementById('open') !== null")
            browser.evaluate("document.getElementById('open').click()")
            browser.until("document.getElementById('said').textContent === 'Perfetto has the trace.'")
            browser.go_to_tab("https://ui.perfetto.dev/")
            trace = unet_run.session / "out" / "timeline.pftrace"
            wanted = f"{unet_run.session.name}|{trace.name}|{trace.stat().st_size}"
            assert browser.until("document.title !== 'stub' && document.title") == wanted
            fragment = browser.evaluate("location.hash")
            assert all(
                f"{name}=" in fragment for name in ("visStart", "visEnd", "ts", "dur", "startupCommands")
            )


@contextmanager
def perfetto_stub(directory: Path) -> Iterator[int]:
    """Serve the stub over TLS; yields its port."""
    openssl = shutil.which("openssl")
    assert openssl, "apt install openssl"
    key, certificate = directory / "key.pem", directory / "cert.pem"
    made = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=ui.perfetto.dev", "-days", "2"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = HTTPServer(("127.0.0.1", 0), _Stub)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Stub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(_STUB)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
