"""A browser without a window, driven over a pipe: the few lines of the DevTools protocol that our tests need.

No port is opened and nothing is installed beside the browser: messages are JSON with a zero byte after each, on file
descriptors 3 (to the browser) and 4 (from it).
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip
# A shared machine may be busy; waits end at once when what they wait for happens.
PATIENCE = 90.0

# Puts the two pipes where the browser looks for them, and becomes the browser.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_browser() -> str | None:
    """The path of a browser that can be driven, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """A browser with one page open."""

    def __init__(self, program: str, home: Path, *, flags: tuple[str, ...] = FLAGS):
        ours, theirs = _make_pipes()
        self._write, self._read = ours
        self._words = (home / "browser.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, theirs), program, *flags, f"--user-data-dir={home}/profile"],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=self._words, stderr=self._words,
            env={**os.environ, "HOME": str(home)},
        )  # fmt: skip
        for end in theirs:
            os.close(end)
        self.log = home / "browser.log"
        self.events: list[dict] = []
        self._rest, self._last, self._session = b"", 0, None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params) -> dict:
        """The browser's answer to a command."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (answer := self._receive(deadline)).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait_for(self, event: str) -> dict:
        """The first event of that name since the last visit."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.list_events(event)):
            self.events.append(self._receive(deadline))
        return found[0]

    def list_events(self, event: str) -> list[dict]:
        """What the events of that name said."""
        return [message["params"] for message in self.events if message.get("method") == event]

    def visit(self, address: str) -> None:
        """Open a page and wait until it is there."""
        self.events.clear()
        assert "errorText" not in self.ask("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")

    def run(self, script: str):
        """The value of a script on the page; a promise is awaited."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, claim: str) -> None:
        """Wait, frame by frame, until a claim in the page's own words holds."""
        self.run(
            f"new Promise((done, fail) => {{ const end = Date.now() + {1000 * PATIENCE * 0.9}; const look = () => "
            f"({claim}) ? done() : Date.now() > end ? fail(new Error('never: ' + {json.dumps(claim)})) "
            ": requestAnimationFrame(look); look(); })"
        )

    def point(self, kind: str, x: float, y: float, **more) -> None:
        """Move or press the mouse."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.point(kind, x, y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key by its name."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def close(self) -> None:
        """End the browser that this object started."""
        for end in (self._write, self._read):
            os.close(end)
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self._read, 1 << 16) if ready else b""
            assert piece, f"the browser {'said nothing' if not ready else 'is gone'}: {self.log.read_text()[-2000:]}"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def _make_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Our ends and the browser's; its ends are well above 4, so that moving them to 3 and 4 treads on nothing."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    theirs = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, from_write))
    os.close(to_read)
    os.close(from_write)
    return (to_write, from_read), theirs
