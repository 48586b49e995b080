"""Chromium without a window, driven over a pipe: pages opened, scripts run, pictures taken."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_SECONDS = 300.0
_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


class Chromium:
    """A browser with one page; `answered` are the addresses that gave it something, `said` its log."""

    def __init__(self, profile: Path, *options: str) -> None:
        browser = shutil.which("chromium")
        assert browser, "apt install chromium"
        # The browser reads commands from descriptor 3 and answers on descriptor 4.
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [
            browser,
            "--headless",
            "--remote-debugging-pipe",
            *_QUIET,
            f"--user-data-dir={profile}",
            *options,
        ]
        line = f'exec 3<&{theirs_in} 4>&{theirs_out} "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in, self._rest, self._number = ours_out, ours_in, b"", 0
        self.answered: list[str] = []
        self.said: list[str] = []
        made = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._attach(made)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(_SECONDS)

    def call(self, method: str, **arguments: Any) -> Any:
        """Ask the page, as the DevTools protocol has it."""
        return self._send(method, self._session, **arguments)

    def open(self, address: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=address)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str, seconds: float = _SECONDS) -> Any:
        """Wait for an expression to be true, and return its value."""
        end = time.monotonic() + seconds
        while not (found := self.evaluate(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.1)
        return found

    def size(self, width: int, height: int, phone: bool = False) -> None:
        """Show the page on a screen of so many px."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def media(self, kind: str = "", **features: str) -> None:
        """Show the page as on a medium: print; prefers_color_scheme="dark"."""
        found = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=kind, features=found)

    def picture(self, path: Path, **clip: float) -> None:
        """Take a picture of what is shown; of a part of the page with x, y, width, height."""
        more = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"]))

    def go_to_tab(self, address: str) -> None:
        """Go on with the tab whose address begins so."""
        tabs = self._send("Target.getTargets")["targetInfos"]
        self._session = self._attach(next(tab["targetId"] for tab in tabs if tab["url"].startswith(address)))

    def _attach(self, target: str) -> str:
        session: str = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._send(f"{domain}.enable", session)
        return session

    def _send(self, method: str, session: str = "", **arguments: Any) -> Any:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": arguments}
        if session:
            asked["sessionId"] = session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while (answer := self._next(end)).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _note(self, event: dict[str, Any]) -> None:
        found = event.get("params", {})
        if event.get("method") == "Network.responseReceived":
            self.answered.append(found["response"]["url"])
        elif event.get("method") == "Log.entryAdded":
            self.said.append(found["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(each.get("value", "")) for each in found["args"]))

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, "Chromium ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found
