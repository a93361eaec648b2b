"""Headless Chromium over its debugging pipe (DevTools protocol): a page as a person sees and uses
it.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
AXE = Path(os.environ.get("RAYDPZV_AXE", "no axe"))
"""The file axe.min.js of the package axe-core, which `.ci/run` fetches."""
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-extensions --hide-scrollbars --mute-audio --disable-dev-shm-usage "
    "--remote-debugging-pipe"
)
_READY = "document.readyState === 'complete'"


class Tab:
    """One tab: what it logs and asks of a network is kept, and its scripts' values are returned."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out, self._rest, self._count = into, out, b"", 0
        self._session: dict[str, str] = {}
        self.logged: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {
            "sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
        }
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._count += 1
        sent = {"id": self._count, "method": method, "params": parameters} | self._session
        os.write(self._into, json.dumps(sent).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._count:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = os.read(self._out, 1 << 20)
            assert chunk, "the browser has gone"
            self._rest += chunk
        first, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        return found

    def _note(self, message: Mapping[str, Any]) -> None:
        what, found = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.logged.append(
                str(found["exceptionDetails"].get("exception", {}).get("description", found))
            )
        elif what == "Runtime.consoleAPICalled":
            self.logged.append(f"{found['type']}: {[a.get('value') for a in found['args']]}")
        elif what == "Log.entryAdded":
            self.logged.append(found["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.asked.append(found["request"]["url"])

    def open(self, page: Path, width: int = 1280, height: int = 800, *, dark: bool = False) -> Self:
        """Open a file in a window of this size and colour scheme; return when its charts are
        drawn.
        """
        self.logged.clear()
        self.asked.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.run(f"{_READY} && location.href.startsWith('file')"):
            pass
        self.run(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )
        return self

    def run(self, script: str) -> Any:
        """Return the value of a script's expression, or of its promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def key(self, name: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move or press the mouse at a place of the window: kind is "Moved", "Pressed" or
        "Released".
        """
        held = {} if kind == "Moved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **held)

    def picture(self, out: Path, *, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        out.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def tab() -> Iterator[Tab]:
    """Start a browser with a profile of its own, and give its tab; the browser ends with the
    block.
    """
    assert CHROMIUM
    (browser_reads, into), (out, browser_writes) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # the protocol is on descriptors 3 and 4
        shell = f'exec 3<&{browser_reads} 4>&{browser_writes}; exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", CHROMIUM, *_FLAGS.split(), f"--user-data-dir={profile}"],
            pass_fds=(browser_reads, browser_writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(browser_reads)
        os.close(browser_writes)
        try:
            found = Tab(into, out)
            yield found
            found._session = {}
            with suppress(OSError, AssertionError):
                found.call("Browser.close")
        finally:
            os.close(into)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
            os.close(out)
