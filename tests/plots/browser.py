"""A browser without a window, driven over a pipe: the few lines of the DevTools protocol that our tests need.

No port is opened and nothing is installed beside the browser: messages are JSON with a zero byte after each, on file
descriptors 3 (to the browser) and 4 (from it).
"""

import base64
import io
import json
import os
import select
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip
# A shared machine may be busy; waits end at once when what they wait for happens.
PATIENCE = 90.0

CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}

# A shell puts our pipes where the browser looks for them, and becomes the browser.
START = 'exec "$@" 3<&0 4>&1 </dev/null >&2'


def find_browser() -> str | None:
    """The path of a browser that can be driven, if there is one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


class Browser:
    """A browser with one page open: a file, or one of the server at `address`, in the task space `space`."""

    def __init__(self, program: str, home: Path, *, address: str = ""):
        self.address, self.space, self.log = address, "", home / "browser.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", START, "sh", program, *FLAGS, f"--user-data-dir={home}/profile"], bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "HOME": str(home)},
            )  # fmt: skip
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
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (answer := self._receive(deadline)).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def list_events(self, event: str) -> list[dict]:
        """What all events of that name said since `events` was cleared."""
        self.run("0")  # what is under way arrives before the answer
        return [message["params"] for message in self.events if message.get("method") == event]

    def visit(self, address: str) -> None:
        """Open a page and wait until it is there."""
        before, deadline = len(self.events), time.monotonic() + PATIENCE
        assert "errorText" not in self.ask("Page.navigate", url=address)
        while not any(message.get("method") == "Page.loadEventFired" for message in self.events[before:]):
            self.events.append(self._receive(deadline))

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
        """Press and release a key, as a keyboard would."""
        letter = "\r" if key == "Enter" else key if len(key) == 1 else ""
        number = CODES.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            about = {"key": key, "code": key, "windowsVirtualKeyCode": number}
            about |= {"text": letter} if letter and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, **about)

    def picture(self) -> np.ndarray:
        """The pixels of the window."""
        content = base64.b64decode(self.ask("Page.captureScreenshot")["data"])
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the window."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def read(self, place: str = "", *, width: int = 1280, height: int = 800, theme: str = "light") -> None:
        """Open the page of the server at a place of it, in a window of that size, as on the first visit."""
        self.resize(width, height)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.visit("about:blank")  # else a new hash would not load the page anew
        where = "" if "space=" in place or not self.space else f"{'&' if place else '#'}space={self.space}"
        self.visit(f"{self.address}/{place}{where}")

    def complaints(self, *, is_refused: bool = False) -> list:
        """Errors of the console, breaches of the policy, dialogs; no refused requests where they are meant."""
        entries = [one["entry"] for one in self.list_events("Log.entryAdded")]
        return [
            *(one for one in entries if one["level"] == "error" and not (is_refused and one["source"] == "network")),
            *(one for one in self.list_events("Runtime.consoleAPICalled") if one["type"] in ("error", "warning")),
            *self.list_events("Runtime.exceptionThrown"),
            *self.list_events("Page.javascriptDialogOpening"),
        ]

    def hosts(self) -> set[str]:
        """Everybody who was asked for anything."""
        asked = (urlsplit(one["request"]["url"]) for one in self.list_events("Network.requestWillBeSent"))
        return {one.netloc for one in asked if one.scheme not in ("data", "about", "blob")}

    def text(self, selector: str) -> str:
        """The text of an element; empty where there is none."""
        return self.run(f"document.querySelector({selector!r})?.textContent ?? ''")

    def texts(self, selector: str) -> list[str]:
        """The texts of all such elements."""
        return self.run(f"[...document.querySelectorAll({selector!r})].map((one) => one.textContent)")

    def count(self, selector: str) -> int:
        """The number of such elements."""
        return self.run(f"document.querySelectorAll({selector!r}).length")

    def type(self, words: str) -> None:
        """Type letter by letter where the focus is."""
        for letter in words:
            self.press(letter)

    def click_on(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        box = self.run(
            f"(() => {{ const one = document.querySelector({selector!r}); one.scrollIntoView({{block: 'center'}}); "
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        self.click(*box)

    def close(self) -> None:
        """End the browser that this object started."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _receive(self, deadline: float) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            piece = self._process.stdout.read(1 << 16) if ready else b""
            assert piece, f"the browser {'said nothing' if not ready else 'is gone'}: {self.log.read_text()[-2000:]}"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
