"""A headless Chromium that tests drive through its DevTools pipe: no driver and no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab. `complaints` gathers what the console and the page's scripts complain of, and what fails to load."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer, self._calls, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._calls:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url: str, width: int, *, dark: bool = False, media: str = "screen") -> None:
        """Load `url` in a window of that width and wait until it has loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=url)
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            pass

    def until(self, expression: str, seconds: float = 20) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        wanted = {"expression": expression, "returnByValue": True, "awaitPromise": True, "userGesture": True}
        result = self.call("Runtime.evaluate", **wanted)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=9)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._from], [], [], 60)[0], "the browser says nothing"
            more = os.read(self._from, 1 << 20)
            assert more, "the browser has gone"
            self._buffer += more
        text, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"].split(",")[0])
        elif method in ("Runtime.exceptionThrown", "Network.loadingFailed", "Log.entryAdded"):
            self.complaints.append(json.dumps(parameters))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with a profile of its own, gone afterwards."""
    assert CHROMIUM is not None
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        # The browser reads commands from descriptor 3 and answers on 4.
        command = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
        ends = [str(browser_reads), str(browser_writes)]
        browser = subprocess.Popen(
            ["bash", "-c", command, *ends, CHROMIUM, "--remote-debugging-pipe", f"--user-data-dir={profile}", *flags],
            pass_fds=(browser_reads, browser_writes),
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        try:
            yield Page(we_write, we_read)
        finally:
            os.close(we_write)
            os.close(we_read)
            browser.terminate()
            browser.wait(timeout=20)
