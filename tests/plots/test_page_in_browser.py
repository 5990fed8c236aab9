"""The page in a real browser: points are there, the mouse and the keys find them, and nothing leaves the page."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from task2vec.atlas import TaskFacts, lay_out, write_page
from task2vec.atlas.palette import choose_looks
from tests.atlas.browser import Browser, find_browser
from tests.atlas.spaces import make_space

HOSTILE = "</script><script>document.title='taken'"
COUNT = 24

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no browser to try the map in: install Debian's package chromium"
)


@pytest.fixture(scope="module")
def groups():
    return make_space(COUNT)[1]


@pytest.fixture(scope="module")
def page(tmp_path_factory, groups):
    distances, _ = make_space(COUNT)
    names = [HOSTILE, *(f"task {number}" for number in range(1, COUNT))]
    facts = [TaskFacts(1000 + number, 3, 0.125, 4.5) for number in range(COUNT)]
    places = lay_out(distances).places
    path = tmp_path_factory.mktemp("page") / "map.html"
    return write_page(places, names, path=path, distances=distances, groups=groups, facts=facts, title="24 tasks")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    assert program
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, page):
    """The browser, with a fresh page of 1000 x 700 pixels."""
    set_size(browser, 1000, 700)
    browser.visit(page.as_uri())
    browser.wait_until("document.getElementById('map').dataset.drawn === '24'")
    return browser


def set_size(browser, width, height):
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


def find(browser, index):
    """Where a task stands in the window."""
    return browser.run(
        f"(() => {{ const box = document.getElementById('map').getBoundingClientRect(), at = taskMap.where({index}); "
        "return [box.left + at[0], box.top + at[1]]; })()"
    )


def look(browser):
    answer = browser.ask("Page.captureScreenshot", format="png")
    with Image.open(io.BytesIO(base64.b64decode(answer["data"]))) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def count_colour(pixels, colour):
    rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return int((abs(pixels - rgb).max(axis=-1) < 8).sum())


def test_points_are_drawn_in_their_colours(opened, groups):
    pixels = look(opened)
    for look_of_group in choose_looks(groups).values():
        assert count_colour(pixels[:, :700], look_of_group.colour) > 100
    assert opened.run("taskMap.count") == COUNT
    assert opened.run("document.title") == "24 tasks"
    assert opened.list_events("Runtime.exceptionThrown") == []


def test_hovering_tells_the_task(opened):
    opened.point("mouseMoved", *find(opened, 0))
    opened.wait_until("!document.getElementById('tip').hidden")
    told = opened.run("document.getElementById('tip').innerText")
    for words in (HOSTILE, "1,000", "12.5 %", "4.50", "nearest: task"):
        assert words in told
    opened.point("mouseMoved", 5, 300)
    opened.wait_until("document.getElementById('tip').hidden")
    assert opened.run("document.title") == "24 tasks"


def test_a_click_keeps_a_task_and_escape_lets_it_go(opened):
    before = look(opened)[60:, :700]
    x, y = find(opened, 5)
    opened.click(x, y)
    opened.wait_until("document.querySelector('#chosen h2')?.textContent === 'task 5'")
    assert opened.run("document.querySelectorAll('#chosen .nearest li').length") == 6
    opened.point("mouseMoved", 5, 300)
    opened.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert (look(opened)[60:, :700] != before).any(axis=-1).sum() > 50  # the lines to its nearest
    opened.run("document.getElementById('map').focus()")
    opened.press("Escape")
    opened.wait_until("!document.querySelector('#chosen h2')")


def test_the_keyboard_reaches_every_kind_of_thing(opened):
    opened.run("document.getElementById('map').focus()")
    opened.press("ArrowRight")
    opened.wait_until("!document.getElementById('tip').hidden")
    opened.press("Enter")
    opened.wait_until("document.querySelector('#chosen h2')")
    reachable = "[...document.querySelectorAll('button, input, canvas#map')].every(one => one.tabIndex >= 0)"
    assert opened.run(reachable)


def test_search_finds_and_chooses(opened):
    opened.run("document.getElementById('search').focus()")
    opened.ask("Input.insertText", text="TASK 17")
    opened.wait_until("document.querySelectorAll('#found button').length === 1")
    opened.press("Enter")
    opened.wait_until("document.querySelector('#chosen h2')?.textContent === 'task 17'")


def test_the_legend_hides_a_group(opened, groups):
    opened.run("document.querySelector('#legend button').click()")
    left = sum(group != groups[0] for group in groups)
    opened.wait_until(f"document.getElementById('map').dataset.drawn === '{left}'")
    assert opened.run("document.querySelector('#legend button').getAttribute('aria-pressed')") == "false"


def test_wheel_and_drag_move_the_map(opened):
    x, y = find(opened, 3)
    apart = np.subtract(find(opened, 4), (x, y))
    opened.point("mouseWheel", x, y, deltaX=0, deltaY=-400)
    opened.wait_until(f"Math.hypot(taskMap.where(4)[0] - taskMap.where(3)[0], 1e-9) > {1.3 * abs(apart[0])}")
    np.testing.assert_allclose(find(opened, 3), (x, y), atol=1)  # the point under the wheel stays
    opened.point("mousePressed", 100, 400, button="left", clickCount=1)
    opened.point("mouseMoved", 160, 430, button="left", buttons=1)
    opened.point("mouseReleased", 160, 430, button="left", clickCount=1)
    np.testing.assert_allclose(find(opened, 3), (x + 60, y + 30), atol=1)


def test_a_narrow_window_needs_no_scrolling_sideways(opened):
    set_size(opened, 360, 740)
    opened.wait_until("innerWidth === 360 && document.documentElement.scrollWidth <= 360")
    opened.wait_until("document.getElementById('map').clientHeight >= 240")
    opened.wait_until(
        "Array.from({length: taskMap.count}, (_, index) => taskMap.where(index)).every(([x, y]) => x > 0 && y > 0 "
        "&& x < document.getElementById('map').clientWidth && y < document.getElementById('map').clientHeight)"
    )


def test_a_dark_room_gets_a_dark_page(opened):
    def corner():
        return look(opened)[400, 3].mean()

    assert corner() > 200
    opened.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        opened.wait_until("matchMedia('(prefers-color-scheme: dark)').matches")
        assert corner() < 60
    finally:
        opened.ask("Emulation.setEmulatedMedia", features=[])


def test_no_request_leaves_the_page(opened, page):
    opened.point("mouseMoved", *find(opened, 2))
    opened.wait_until("!document.getElementById('tip').hidden")
    asked = {event["request"]["url"] for event in opened.list_events("Network.requestWillBeSent")}
    assert page.as_uri() in asked
    assert all(address == page.as_uri() or address.startswith("data:") for address in asked)
    assert [event for event in opened.list_events("Log.entryAdded") if event["entry"]["level"] == "error"] == []


def test_the_policy_stops_a_request_that_a_script_would_make(opened):
    stopped = opened.run("""
        (async () => {
            const stopped = [];
            document.addEventListener("securitypolicyviolation", (event) => stopped.push(event.effectiveDirective));
            const all = ["connect-src", "img-src", "script-src-elem", "frame-src"];
            const done = new Promise((done) => document.addEventListener("securitypolicyviolation",
                () => all.every((one) => stopped.includes(one)) && done()));
            const failed = fetch("http://127.0.0.1:9/").then(() => false, () => true);
            for (const [tag, name] of [["img", "src"], ["script", "src"], ["iframe", "src"]]) {
                const element = document.createElement(tag);
                element[name] = "http://127.0.0.1:9/";
                document.body.append(element);
            }
            await done;
            return [await failed, [...new Set(stopped)].sort()];
        })()
    """)
    assert stopped == [True, ["connect-src", "frame-src", "img-src", "script-src-elem"]]
    answered = [event["response"]["url"] for event in opened.list_events("Network.responseReceived")]
    assert not [address for address in answered if address.startswith("http")]
