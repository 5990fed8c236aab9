"""The page as a file: whole, self-contained, and deaf to what strangers write into names."""

import json
import re

import numpy as np
import pytest
from PIL import ImageColor

from task2vec.errors import ResourceError, UsageError
from task2vec.plots import COLOURS, choose_looks, lay_out, write_page
from task2vec.plots.page import format_script_data
from tests.failures import refuse
from tests.plots.browser import NO_BROWSER, Browser, Page, find_browser
from tests.plots.spaces import make_space

HOSTILE = [
    "</script><script>alert(1)", "<!--<script>", "]]>", '"><img src=x onerror=alert(1)>', "{{data}}{{script}}",
    "a\u2028b\u2029c", "\u202egnp.exe", "\x00\x1b[31m", "\udc80", "&lt;b&gt;", "__proto__", "日本語", "x" * 5000, "",
]  # fmt: skip


def data_of(text):
    return text.split('id="data">')[1].split("</script>")[0]


def make_page(path, names, **options):
    distances, groups = make_space(len(names))
    places = np.random.default_rng(0).normal(size=(len(names), 2))
    page = write_page(places, names, path=path, distances=distances, **{"groups": groups, **options})
    return page.read_text(encoding="utf-8"), distances, places


def test_hostile_names_stay_inside_the_data(tmp_path):
    plain, _, _ = make_page(tmp_path / "plain.html", [f"n{number}" for number in range(len(HOSTILE))])
    text, _, _ = make_page(tmp_path / "hostile.html", HOSTILE, groups=HOSTILE[::-1], title=HOSTILE[0], note=HOSTILE[3])
    assert Page(text).tags == Page(plain).tags
    assert text.count("</script>") == 2
    assert "alert(1)</h1>" in text and "<img" not in text
    tasks = json.loads(data_of(text))["tasks"]
    assert [tasks[n]["name"] for n in (0, 4, 6)] == [HOSTILE[0], HOSTILE[4], "\N{REPLACEMENT CHARACTER}gnp.exe"]
    assert max(len(task["name"]) for task in tasks) <= 200
    assert data_of(text).isascii() and not set("<>&") & set(data_of(text))


def test_nothing_on_it_points_elsewhere(tmp_path):
    text, _, _ = make_page(tmp_path / "map.html", ["a", "b", "c"])
    assert not re.search(r"https?:|//[a-z]+\.|url\(|import\(|fetch\(|XMLHttp|innerHTML|eval\(", text)
    policy = next(tag[1]["content"] for tag in Page(text).tags if tag[1].get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:")
    assert [attrs["href"] for _, attrs in Page(text).tags if "href" in attrs] == ["data:,"]
    assert not [tag for tag in Page(text).tags if "src" in tag[1]]
    assert re.findall(r'"(#[0-9a-f]{6})"', text.split("const COLOURS = [")[1].split("]")[0]) == list(COLOURS)


def test_the_data_is_what_was_given(tmp_path):
    odd = {"error": float("nan"), "norm": float("inf")}
    facts = [{"images": 12, "classes": 3, "error": 0.25, "norm": 7.5}, odd, {}]
    text, distances, places = make_page(tmp_path / "map.html", ["a", "b", "c"], facts=facts)
    data = json.loads(data_of(text))
    np.testing.assert_allclose([[task["x"], task["y"]] for task in data["tasks"]], places, rtol=1e-5)
    assert facts[0].items() <= data["tasks"][0].items() and dict.fromkeys(facts[0]).items() <= data["tasks"][1].items()
    for number, task in enumerate(data["tasks"]):
        order = sorted((other for other in range(3) if other != number), key=lambda other: distances[number, other])
        assert [near for near, _ in task["nearest"]] == order
        np.testing.assert_allclose([apart for _, apart in task["nearest"]], distances[number, order], rtol=1e-5)


def test_what_does_not_belong_together_is_refused(tmp_path):
    path = tmp_path / "map.html"
    refuse(ValueError, "JSON", format_script_data, float("nan"))
    refuse(UsageError, "1 facts", make_page, path, ["a", "b"], facts=[{}])
    refuse(UsageError, "shape", write_page, np.eye(2), ["a"], path=path, distances=np.zeros((1, 1)))
    refuse(ResourceError, "nowhere", make_page, tmp_path / "nowhere" / "map.html", ["a", "b"])
    assert list(tmp_path.iterdir()) == []


NAME, COUNT = "</script><script>document.title='taken'", 24


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if find_browser() is None:
        pytest.skip(NO_BROWSER)
    browser = Browser()
    distances, groups = make_space(COUNT)
    names = [NAME, *(f"task {number}" for number in range(1, COUNT))]
    usual = {"classes": 3, "error": 0.125, "norm": 4.5}
    facts = [usual | {"images": 1000 + number} for number in range(COUNT)]
    more = {"distances": distances, "groups": groups, "facts": facts, "title": "24 tasks"}
    path = tmp_path_factory.mktemp("page") / "m.html"
    browser.file, browser.groups = write_page(lay_out(distances).positions, names, path=path, **more), groups
    yield browser
    browser.close()


@pytest.fixture
def opened(browser):
    """The browser, with a fresh page of 1000 x 700 pixels."""
    browser.resize(1000, 700)
    browser.forget()
    browser.visit(browser.file.as_uri())
    browser.wait_until("document.getElementById('map').dataset.drawn === '24'")
    return browser


def find(browser, index):
    """Where a task stands in the window."""
    return browser.run(
        f"(() => {{ const box = document.getElementById('map').getBoundingClientRect(), at = taskMap.where({index}); "
        "return [box.left + at[0], box.top + at[1]]; })()"
    )


def test_points_are_drawn_and_hovering_describes_them(opened):
    pixels = opened.picture()[:, :700]
    for look in choose_looks(opened.groups).values():
        assert (abs(pixels - ImageColor.getrgb(look.colour)).max(axis=-1) < 8).sum() > 100
    opened.page.mouse.move(*find(opened, 0))
    opened.wait_until("!document.getElementById('tip').hidden")
    shown = opened.run("document.getElementById('tip').innerText")
    assert all(words in shown for words in (NAME, "1,000", "12.5%", "4.5", "nearest: task"))
    opened.page.mouse.move(5, 300)
    opened.wait_until("document.getElementById('tip').hidden")
    assert opened.run("[taskMap.count, document.title]") == [COUNT, "24 tasks"]
    assert opened.complaints() == []
    assert {address for address in opened.requests if not address.startswith("data:")} == {opened.file.as_uri()}


def test_a_task_is_selected_by_mouse_keys_and_search(opened):
    opened.page.mouse.click(*find(opened, 5))
    opened.wait_until("document.querySelector('#chosen h2')?.textContent === 'task 5'")
    assert opened.run("document.querySelectorAll('#chosen .nearest li').length") == 6
    opened.run("document.getElementById('map').focus()")
    opened.press("Escape")
    opened.wait_until("!document.querySelector('#chosen h2')")
    opened.press("ArrowRight")
    opened.wait_until("!document.getElementById('tip').hidden")
    opened.press("Enter")
    opened.wait_until("document.querySelector('#chosen h2')")
    opened.run("document.getElementById('search').focus()")
    opened.page.keyboard.insert_text("TASK 17")
    opened.wait_until("document.querySelectorAll('#found button').length === 1")
    opened.press("Enter")
    opened.wait_until("document.querySelector('#chosen h2')?.textContent === 'task 17'")
    reachable = "[...document.querySelectorAll('button, input, canvas#map')].every(one => one.tabIndex >= 0)"
    assert opened.run(reachable)


def test_wheel_and_drag_move_the_map_and_the_legend_hides_a_group(opened):
    x, y = find(opened, 3)
    apart = np.subtract(find(opened, 4), (x, y))
    opened.page.mouse.move(x, y)
    opened.page.mouse.wheel(0, -400)
    opened.wait_until(f"Math.abs(taskMap.where(4)[0] - taskMap.where(3)[0]) > {1.3 * abs(apart[0])}")
    np.testing.assert_allclose(find(opened, 3), (x, y), atol=1)  # the point under the wheel stays
    opened.page.mouse.move(100, 400)
    opened.page.mouse.down()
    opened.page.mouse.move(160, 430)
    opened.page.mouse.up()
    np.testing.assert_allclose(find(opened, 3), (x + 60, y + 30), atol=1)
    opened.run("document.querySelector('[aria-label=\"Show the whole map\"]').click()")
    opened.run("document.querySelector('#legend button').click()")
    left = sum(group != opened.groups[0] for group in opened.groups)
    opened.wait_until(f"document.getElementById('map').dataset.drawn === '{left}'")
    assert opened.run("document.querySelector('#legend button').getAttribute('aria-pressed')") == "false"


def test_the_policy_stops_every_request_that_a_script_would_make(opened):
    stopped = opened.run("""
        (async () => {
            const stopped = new Set();
            document.addEventListener("securitypolicyviolation", (event) => stopped.add(event.effectiveDirective));
            const failed = await fetch("http://127.0.0.1:9/").then(() => false, () => true);
            for (const tag of ["img", "script", "iframe"])
                document.body.append(Object.assign(document.createElement(tag), { src: "http://127.0.0.1:9/" }));
            while (stopped.size < 4) await new Promise(requestAnimationFrame);
            return [failed, [...stopped].sort()];
        })()
    """)
    assert stopped == [True, ["connect-src", "frame-src", "img-src", "script-src-elem"]]
    assert not [address for address in opened.responses if address.startswith("http")]
