"""A real headless Chromium, driven over a pipe by the DevTools protocol.

`--remote-debugging-pipe` speaks JSON with a NUL after every message on two inherited files, so the
standard library is all it takes: no driver, no browser bundle, no websocket.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
EXECUTABLE = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Page:
    """One page. Use as a context manager."""

    def __init__(self, width: int = 1280, height: int = 1200) -> None:
        assert EXECUTABLE is not None
        self._profile = tempfile.mkdtemp(prefix="coop-chromium-")
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # The browser reads file 3 and writes file 4.
        script = f'exec "$@" 3<&{commands} 4>&{answers}'
        flags = (*FLAGS, f"--user-data-dir={self._profile}", f"--window-size={width},{height}")
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", EXECUTABLE, *flags],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []  # the addresses that the page asked for
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        self._size = width, height
        self.resize()

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, method: str) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], 60)
            assert ready, f"no answer to {method} in a minute"
            more = os.read(self._read, 1 << 20)
            assert more, f"the browser ended during {method}"
            self._pending += more
        content, self._pending = self._pending.split(b"\0", 1)
        message: dict[str, Any] = json.loads(content)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"]))
        return message

    def resize(self, width: int = 0, height: int = 0) -> None:
        """The page gets this size; 0: its first one."""
        size = {"width": width or self._size[0], "height": height or self._size[1]}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path: Path) -> None:
        """Opens a report, and waits until it is drawn."""
        self.call("Page.navigate", url=path.as_uri())
        self.wait("window.coopReport && window.coopReport.timing.frames > 0")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until a JavaScript condition is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not in {seconds} s: {condition}; {self.errors}"
            time.sleep(0.05)

    def next_frame(self) -> None:
        """Until what was changed is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A real event of the mouse: mousePressed, mouseMoved, mouseReleased or mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
