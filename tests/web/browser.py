"""The server as a stranger starts it, and a browser that reads its page, types, and remembers who was asked."""

import base64
import io
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from tests.atlas.browser import FLAGS, PATIENCE, Browser
from tests.command import START

# WebGL by the processor: machines without a graphics card draw the same marks.
DRAWING = tuple(flag for flag in FLAGS if flag != "--disable-gpu")
DRAWING += ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")
CODES = {
    "Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32,
}  # fmt: skip
LETTERS = {"Enter": "\r", " ": " "}
# Notes in `words` what stands on canvases, and where each word ends.
NOTE_WORDS = """
window.words = [];
const pens = CanvasRenderingContext2D.prototype, { clearRect, fillText } = pens;
pens.clearRect = function (...box) {
  window.words = words.filter(({ canvas }) => canvas !== this.canvas);
  clearRect.apply(this, box);
};
pens.fillText = function (text, x, y, ...most) {
  const wide = Math.min(this.measureText(text).width, ...most);
  const { x: right, y: low } = this.getTransform().transformPoint({ x: x + wide, y });
  words.push({ text, right, low, canvas: this.canvas });
  fillText.call(this, text, x, y, ...most);
};
"""


def answer_with(path: str, change: str) -> str:
    """A script that changes what the server answers to requests whose address has `path` in it: JSON as `told`."""
    return (
        "window.fetch = ((ask) => async (path, ...more) => { const answer = await ask(path, ...more); "
        f"if (!path.includes({path!r}) || answer.status !== 200) return answer; const told = await answer.json(); "
        f"{change}; return new Response(JSON.stringify(told)); }})(window.fetch)"
    )


@contextmanager
def start_server(library: Path, *options: object):
    """The address of `task2vec serve` in a process of its own, which ends with the block."""
    command = [sys.executable, "-c", START, "serve", "--no-open", "--library", str(library), *map(str, options)]
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "TASK2VEC_TOKEN")}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        encoding="utf-8", env={**kept, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout
    watch = threading.Timer(PATIENCE, process.kill)
    watch.start()
    drain = None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise AssertionError(f"the server never said where it is: {''.join(said)}")
        watch.cancel()
        drain = threading.Thread(target=process.stdout.read, daemon=True)  # a full pipe would stop the server
        drain.start()
        yield found.group().rstrip("/")
    finally:
        watch.cancel()
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if drain:
            drain.join(timeout=15)
        process.stdout.close()


class Reader(Browser):
    """A browser with the page of a server in it."""

    def __init__(self, program: str, home: Path, *, address: str, pictures: Path):
        super().__init__(program, home, flags=DRAWING)
        self.address, self.pictures, self.space = address, pictures, ""
        self._past: list[dict] = []

    def read(
        self, place: str = "", *, width: int = 1280, height: int = 800, theme: str = "light", is_calm: bool = False
    ) -> None:
        """Open the page at a place of it, in a window of that size, as on the first visit; of the space chosen."""
        wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce" if is_calm else "no-preference"}
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": key, "value": wishes[key]} for key in wishes])
        self.visit("about:blank")  # else a new hash would not load the page anew
        where = "" if "space=" in place or not self.space else f"{'&' if place else '#'}space={self.space}"
        self.visit(f"{self.address}/{place}{where}")

    @contextmanager
    def prepared(self, script: str):
        """Pages that are opened in the block begin with a script of ours."""
        number = self.ask("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
        try:
            yield
        finally:
            self.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=number)

    def visit(self, address: str) -> None:
        """Open a page; what was seen before is kept."""
        self._past += self.events
        super().visit(address)

    def forget(self) -> None:
        """Begin a new memory."""
        self._past.clear()
        self.events.clear()

    def remember(self, event: str) -> list[dict]:
        """What all events of that name said since `forget`."""
        self.run("0")  # what is under way arrives before the answer
        return [message["params"] for message in self._past + self.events if message.get("method") == event]

    def complaints(self, *, is_refused: bool = False) -> list:
        """Errors of the console, breaches of the policy, dialogs; no refused requests where they are meant."""
        entries = [one["entry"] for one in self.remember("Log.entryAdded")]
        return [
            *(one for one in entries if one["level"] == "error" and not (is_refused and one["source"] == "network")),
            *(one for one in self.remember("Runtime.consoleAPICalled") if one["type"] in ("error", "warning")),
            *self.remember("Runtime.exceptionThrown"),
            *self.remember("Page.javascriptDialogOpening"),
        ]

    def hosts(self) -> set[str]:
        """Everybody who was asked for anything."""
        asked = (urlsplit(one["request"]["url"]) for one in self.remember("Network.requestWillBeSent"))
        return {one.netloc for one in asked if one.scheme not in ("data", "about", "blob")}

    def text(self, selector: str) -> str:
        """The text of an element; empty where there is none."""
        return self.run(f"document.querySelector({selector!r})?.textContent ?? ''")

    def press(self, key: str, *, is_shifted: bool = False) -> None:
        """Press and release a key, as a keyboard would."""
        letter = LETTERS.get(key, key if len(key) == 1 else "")
        number = CODES.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            more = {"text": letter} if letter and kind == "keyDown" else {}
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=number,
                modifiers=8 if is_shifted else 0, **more,
            )  # fmt: skip

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

    def picture(self, name: str | None = None) -> np.ndarray:
        """The pixels of the window; kept as a file where it has a name."""
        content = base64.b64decode(self.ask("Page.captureScreenshot")["data"])
        if name:
            (self.pictures / f"{name}.png").write_bytes(content)
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
