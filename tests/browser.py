"""Pages in a real browser: Chromium without a window, driven over a pipe by its own DevTools protocol.

There is nothing to install but Chromium. Messages are JSON with a zero byte behind each; Chromium reads them from file
descriptor 3 and answers on 4.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 90.0
"""Seconds for one answer: Chromium may have to start on a machine that is busy."""
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # root has none, and continuous integration is root in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
# The pipe has to be at 3 and 4 in the browser. This does it in a process of its own, by way of numbers out of the way.
LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1:3]]
for place, end in enumerate(ends, 3):
    os.dup2(end, place)
os.closerange(5, 200)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """The program, or None. ``CHROMIUM`` names another one."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def require_chromium() -> str:
    """The program; where there is none the test is skipped, and says so."""
    program = find_chromium()
    if program is None:
        pytest.skip("NOT TESTED IN A BROWSER: there is no Chromium. Install it with: apt-get install chromium")
    return program


class Browser:
    """A Chromium that lives as long as the block.

    Example:
        with Browser() as browser, browser.open(path) as page:
            assert page.evaluate("document.title") == "Report"
    """

    def __enter__(self) -> Self:
        program = require_chromium()
        self._home = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        browser_reads, self._out = os.pipe()
        self._in, browser_writes = os.pipe()
        ends = (browser_reads, browser_writes)
        self._errors = Path(self._home.name, "stderr").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-ISc", LAUNCHER, *map(str, ends)),
                *(program, *FLAGS, f"--user-data-dir={self._home.name}/profile", "about:blank"),
            ],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, "HOME": self._home.name},
        )
        for end in ends:
            os.close(end)
        self._rest, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.send("Browser.close")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for end in (self._in, self._out):
            os.close(end)
        self._errors.close()
        self._home.cleanup()

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Call a method of the protocol and wait for its result. Events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        end = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def receive(self, end: float) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"Chromium did not answer within {PATIENCE:.0f} s."
            part = os.read(self._in, 1 << 20)
            assert part, f"Chromium ended: {Path(self._errors.name).read_text(errors='replace')[-2000:]}"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    @contextlib.contextmanager
    def open(self, path: Path, width: int = 1400, height: int = 900, *, dark: bool = False) -> Iterator["Page"]:
        """A file in a tab, loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        page.load(path)
        try:
            yield page
        finally:
            self.send("Target.closeTarget", targetId=target)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.address = ""

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol in this tab."""
        return self._browser.send(method, self._session, **parameters)

    def load(self, path: Path) -> None:
        """Go to a file, and wait until it is there."""
        self.address = path.resolve().as_uri()
        found = self.send("Page.navigate", url=self.address)
        assert "errorText" not in found, f"{self.address}: {found['errorText']}"
        end = time.monotonic() + PATIENCE
        while not self._events("Page.loadEventFired"):
            self._browser.events.append(self._browser.receive(end))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, of a promise its result."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        details = found.get("exceptionDetails")
        assert details is None, f"{expression[:200]}: {details.get('exception', details).get('description', details)}"
        return found["result"].get("value")

    def settle(self) -> None:
        """Wait until what was changed is drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")

    def press(self, key: str, times: int = 1, text: str = "") -> None:
        """Press a key where the focus is. ``text`` is what it types."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0), "text": text}
        for _ in range(times):
            self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event)
            self.send("Input.dispatchKeyEvent", type="keyUp", **event)
        self.settle()

    def screenshot(self, *, whole: bool = True) -> bytes:
        """The page as PNG."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def complaints(self) -> list[str]:
        """What went wrong so far: errors and warnings on the console, exceptions, refused loads."""
        console = self._events("Runtime.consoleAPICalled")
        entries = [event["entry"] for event in self._events("Log.entryAdded")]
        bad = ("error", "warning", "assert")
        return [
            *(f"console.{event['type']}: {event['args']}" for event in console if event["type"] in bad),
            *(f"exception: {event['exceptionDetails']}" for event in self._events("Runtime.exceptionThrown")),
            *(f"log: {entry['text']} {entry.get('url', '')}" for entry in entries if entry["level"] in bad),
        ]

    def requests(self) -> list[str]:
        """Addresses that the page asked for beside its own, and beside what is inside of it."""
        sent = [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]
        return [url for url in sent if url != self.address and not url.startswith(("data:", "blob:"))]

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == method
        ]
