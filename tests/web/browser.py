"""Drives a Chromium that is installed, by its debugging protocol over two pipes."""

import base64
import importlib.util
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from supervisor.clock import monotonic
from tests.lengths import LONG, PATIENCE

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
_AXE = importlib.util.find_spec("axe_playwright_python")
#: The script that looks for what keeps people out. The package is asked for nothing else, and needs none of its own.
AXE = Path(_AXE.origin).with_name("axe.min.js") if _AXE and _AXE.origin else None
#: The marks of tests that drive a browser.
MARKS = [
    pytest.mark.skipif(not LONG, reason="takes a browser: TEST_FULL=1"),
    pytest.mark.skipif(PROGRAM is None, reason="this machine has no Chromium"),
    pytest.mark.slow,
]
_LONGEST_S = 60.0 * PATIENCE
#: Keys with their code, and the text that they type.
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "/": (191, "/")}


class Browser:
    """One tab. `faults`: what its console says of errors, and of what the policy of a page has refused."""

    def __init__(self, send: int, receive: int) -> None:
        self._send = send
        self._receive = receive
        self._read = b""
        self._number = 0
        self._session = ""
        self._is_loaded = False
        self.faults: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def resize(self, width: int, height: int = 844) -> None:
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, theme: str) -> None:
        """Set what the system prefers: light or dark."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def hide_scrollbars(self) -> None:
        self._ask("Emulation.setScrollbarsHidden", hidden=True)

    def picture(self, kind: str) -> bytes:
        """Return what the tab shows, as webp or png."""
        quality = {"quality": 80} if kind == "webp" else {}
        shown = self._ask("Page.captureScreenshot", format=kind, **quality)
        return base64.b64decode(shown["data"])

    def open(self, url: str) -> None:
        """Load a page, and wait until all of it is there."""
        with self._loading():
            self._ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page, or that of its promise."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def submit(self, selector: str, button: str = "null") -> None:
        """Press the button of a form, and wait for the page that it leads to. `button` is an expression."""
        with self._loading():
            self.value(f"document.querySelector({json.dumps(selector)}).requestSubmit({button})")

    def fill(self, selector: str, value: str) -> None:
        """Write into a field."""
        self.value(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")

    def type(self, text: str) -> None:
        """Type into the field with the focus."""
        self._ask("Input.insertText", text=text)

    def press(self, key: str, *, loads: bool = False) -> None:
        """Press a key. `loads`: it leads to another page, which is waited for."""
        code, text = _KEYS[key]
        about = {"key": key, "windowsVirtualKeyCode": code}
        with self._loading() if loads else nullcontext():
            self._ask("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
            self._ask("Input.dispatchKeyEvent", type="keyUp", **about)

    def log_in(self, address: str, token: str) -> None:
        self.open(f"{address}/login")
        self.fill("#token", token)
        self.submit("form.login")

    def wait_for_address(self, url: str) -> None:
        """Wait until the tab shows this page."""
        give_up_at = monotonic() + _LONGEST_S
        while (shown := self._ask("Page.getFrameTree")["frameTree"]["frame"]["url"]) != url:
            assert monotonic() < give_up_at, shown

    def wait_for(self, words: str) -> None:
        """Wait until the page says these words."""
        self.wait_until(f"document.body.innerText.includes({json.dumps(words)})")

    def wait_until(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        give_up_at = monotonic() + _LONGEST_S
        while not self.value(condition):
            assert monotonic() < give_up_at, (condition, self.value("document.body.innerText"))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._send, json.dumps(asked).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Wait until the page is loaded that the block begins to load. That may be before the browser answers."""
        self._is_loaded = False
        yield
        while not self._is_loaded:
            self._next()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            assert select.select([self._receive], [], [], _LONGEST_S)[0], "the browser says nothing"
            chunk = os.read(self._receive, 1 << 20)
            assert chunk, "the browser has ended"
            self._read += chunk
        packed, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(packed)
        entry = message.get("params", {}).get("entry", {})
        if entry.get("level") == "error":
            self.faults.append(f"{entry['text']} {entry.get('url', '')}")
        if message.get("method") == "Page.loadEventFired":
            self._is_loaded = True
        if message.get("method") == "Runtime.exceptionThrown":
            self.faults.append(str(message["params"]))
        return message


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start a browser, and end it."""
    theirs_in, send = os.pipe()
    receive, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads from descriptor 3 and writes to 4.
        command = (
            f"exec 3<&{theirs_in} 4>&{theirs_out}; exec {PROGRAM} --headless --no-sandbox --disable-gpu"
            f" --disable-dev-shm-usage --remote-debugging-pipe --user-data-dir={profile} about:blank"
        )
        process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(send, receive)
        finally:
            os.close(send)  # which ends it, with all its processes
            process.wait(_LONGEST_S)
            os.close(receive)
