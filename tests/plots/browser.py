"""Debian's chromium without a window, driven by Playwright, and what went wrong on its page."""

import io
import shutil
import time
from html.parser import HTMLParser
from importlib.util import find_spec
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "no browser: install Debian's package chromium, and Playwright: pip install 'task2vec[test]'"
# The browser itself must not reach the network, whatever the page does.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
)  # fmt: skip
# What the console says of a request that the server refuses, and of a script in a frame that may run none.
REFUSALS = ("Failed to load resource: the server responded", "Blocked script execution in")
# A shared machine may be busy; waits end at once when what they wait for happens.
PATIENCE = 90.0


def find_browser() -> str | None:
    """The path of a browser that can be driven, if there is one, and Playwright to drive it."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None) if find_spec("playwright") else None


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
    """A browser with one page: a file, or one of the server at `address`, in the task space `space`.

    Attributes:
        page: of Playwright.
        requests: the address of every request since `forget`.
        responses: the address of every response since then.
    """

    def __init__(self, address: str = ""):
        from playwright.sync_api import sync_playwright

        self.address, self.space = address, ""
        self._playwright = sync_playwright().start()
        self._chromium = self._playwright.chromium.launch(executable_path=find_browser(), args=[*FLAGS])
        self.page = self._chromium.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.forget()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("response", lambda response: self.responses.append(response.url))
        self.page.on("console", self._read_console)
        self.page.on("pageerror", lambda error: self._complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)

    def forget(self) -> None:
        """Forgets all requests and complaints."""
        self.requests, self.responses, self._complaints, self._refused = [], [], [], []

    def _read_console(self, message) -> None:
        if message.type in ("error", "warning"):
            is_refused = message.text.startswith(REFUSALS) or message.text.endswith("The action has been blocked.")
            (self._refused if is_refused else self._complaints).append(message.text)

    def _dismiss(self, dialog) -> None:
        self._complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def complaints(self, *, is_refused: bool = False) -> list[str]:
        """Errors of the console, breaches of the policy, dialogs; refusals unless they are meant."""
        self.run("0")  # events under way arrive before the answer
        return self._complaints + ([] if is_refused else self._refused)

    def hosts(self) -> set[str]:
        """All hosts that were asked for anything."""
        addresses = map(urlsplit, self.requests)
        return {address.netloc for address in addresses if address.scheme not in ("data", "about", "blob")}

    def visit(self, address: str) -> None:
        """Opens a page and waits until it is there."""
        self.page.goto(address)

    def read(self, hash_: str = "", *, width: int = 1280, height: int = 800, theme: str = "light") -> None:
        """Opens the page of the server at a hash, in a window of that size, as on the first visit."""
        self.resize(width, height)
        self.page.emulate_media(color_scheme=theme)
        self.visit("about:blank")  # else a new hash would not load the page anew
        space = "" if "space=" in hash_ or not self.space else f"{'&' if hash_ else '#'}space={self.space}"
        self.visit(f"{self.address}/{hash_}{space}")

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the window."""
        self.page.set_viewport_size({"width": width, "height": height})

    def run(self, script: str):
        """The value of a script on the page; a promise is awaited."""
        return self.page.evaluate(script)

    def wait_until(self, claim: str) -> None:
        """Waits until a claim in the page's own words holds.

        Playwright's own waiting evaluates text on the page, which the policy of our page forbids.
        """
        end = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({claim})"):
            assert time.monotonic() < end, f"never: {claim}"
            self.page.wait_for_timeout(30)

    def picture(self) -> np.ndarray:
        """The pixels of the window."""
        return np.asarray(Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")).astype(int)

    def press(self, key: str) -> None:
        """Presses and releases a key."""
        self.page.keyboard.press(key)

    def text(self, selector: str) -> str:
        """The text of an element; empty where there is none."""
        return self.run(f"document.querySelector({selector!r})?.textContent ?? ''")

    def texts(self, selector: str) -> list[str]:
        """The texts of all such elements."""
        return self.page.locator(selector).all_text_contents()

    def count(self, selector: str) -> int:
        """The number of such elements."""
        return self.page.locator(selector).count()

    def click_on(self, selector: str) -> None:
        """Clicks the first such element with the mouse."""
        self.page.locator(selector).first.click()

    def close(self) -> None:
        """Ends the browser."""
        self._chromium.close()
        self._playwright.stop()
