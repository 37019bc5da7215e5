"""A real browser under the control of a test, by the Chrome DevTools Protocol."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from websockets.sync.client import ClientConnection, connect

from tests.support.browser import FLAGS, browser_program
from tests.support.waiting import wait_until


class NoDocument(Exception):
    """The page has no document at the moment, because it navigates."""


class Tab:
    """One page of the browser.

    Attributes:
        problems: Messages of the browser about errors, such as blocked resources.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Send a command, and return its result. Keeps error messages in `problems`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": arguments}
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(timeout=60))
            if answer.get("id") == self._number:
                if "context" in answer.get("error", {}).get("message", ""):
                    raise NoDocument(answer["error"])
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: Mapping[str, Any]) -> None:
        details = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(details["exceptionDetails"]["text"])
        if event.get("method") == "Log.entryAdded" and details["entry"]["level"] == "error":
            self.problems.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")

    def open(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        """Open a page in a window of `width` pixels, and wait until it has loaded."""
        self.look(width=width, dark=dark)
        self.send("Page.navigate", url=url)
        self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    def look(self, *, width: int = 1280, dark: bool = False) -> None:
        """Change the width of the window and the colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def hurry(self, factor: int) -> None:
        """Let the timers of pages that are opened later run faster by a factor."""
        source = f"const slow = setTimeout; setTimeout = (work, ms) => slow(work, ms / {factor})"
        self.send("Page.addScriptToEvaluateOnNewDocument", source=source)

    def press(self, key: str, code: int) -> None:
        """Press a key of the keyboard, such as `Tab` with the code 9."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    def press_until(self, key: str, code: int, expression: str, most: int = 100) -> None:
        """Press a key until a JavaScript expression is true, at most `most` times."""
        for _ in range(most):
            self.press(key, code)
            if self.value(f"Boolean({expression})"):
                return
        raise AssertionError(f"{expression} is false after {most} times {key}")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        result = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 60.0) -> None:
        """Wait until a JavaScript expression is true.

        An expression that throws is not true yet. For example, a document that is loading has no
        body.
        """

        def holds() -> Any:
            try:
                return self.value(f"(() => {{ try {{ return {expression} }} catch {{}} }})()")
            except NoDocument:
                return False

        wait_until(holds, timeout_s=timeout_s, what=expression)

    def screenshot(self, file: Path, tallest: int) -> None:
        """Write a picture of the page's content, at most `tallest` pixels high, as PNG."""
        width, height = self.value("[innerWidth, document.body.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, tallest), "scale": 1}
        taken = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def chromium_tab(folder: Path) -> Iterator[Tab]:
    """Run a browser with a profile in `folder`, and stop it afterwards."""
    log = folder / "chromium.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                browser_program(),
                *FLAGS,
                f"--user-data-dir={folder / 'profile'}",
                "--remote-debugging-port=0",
                "about:blank",
            ],
            stderr=output,
            stdout=output,
        )
    try:
        found: list[str] = []

        def listens() -> bool:
            found[:] = re.findall(r"ws://(127\.0\.0\.1:\d+)/devtools", log.read_text())
            return bool(found)

        wait_until(listens, timeout_s=60, what="the port of the browser")
        pages = httpx2.get(f"http://{found[0]}/json", trust_env=False).json()
        address = next(page for page in pages if page["type"] == "page")["webSocketDebuggerUrl"]
        with connect(address, max_size=None, proxy=None) as connection:
            yield Tab(connection)
    finally:
        process.terminate()
        process.wait(timeout=30)
