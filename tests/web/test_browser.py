"""The page of `task2vec serve` in a real browser, against the real server.

Pictures of it are kept where the variable TASK2VEC_SCREENSHOTS says.
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.atlas.browser import find_browser
from tests.web.browser import NOTE_WORDS, Reader, answer_with, start_server
from tests.web.serving import WICKED, fill

SCRIPT = "<script>alert(2)<"
VIEWS = ("map", "list", "matrix", "experts", "embed")
DRAWN = "Number(document.getElementById('names').dataset.drawn) > 0"
MEASURED = 71
SHIPPED = "task2vec.state.points.find(({ origin }) => origin !== 'library')"
IN_SIGHT = "document.getElementById('panel').getBoundingClientRect().top < innerHeight / 2"
BLUE, INK = (0, 114, 178), (31, 45, 58)

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no browser to read the page in: install Debian's package chromium"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server of a library of six tasks, which may read a folder: a task of a wicked name, a ruined one, no task."""
    home = tmp_path_factory.mktemp("served")
    fill(home / "tasks")
    rng = np.random.default_rng(0)
    for kind, name in enumerate((SCRIPT, "green")):
        folder = home / "photos" / WICKED / name
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 90, (32, 32, 3))
            pixels[8:24, 8:24, kind] += 150
            Image.fromarray(pixels.astype("uint8")).save(folder / f"{number}.png")
        broken = home / "photos" / "ruined" / name
        broken.mkdir(parents=True)
        for number in range(6):
            (broken / f"{number}.png").write_bytes(b"no image")
    (home / "photos" / "holiday").mkdir()
    (home / "photos" / "holiday" / "0.png").write_bytes(b"no image")
    with start_server(home / "tasks", "--root", home / "photos") as place:
        yield place


@pytest.fixture(scope="module")
def window(tmp_path_factory, address):
    program, home = find_browser(), tmp_path_factory.mktemp("browser")
    assert program
    pictures = Path(os.environ.get("TASK2VEC_SCREENSHOTS") or home)
    pictures.mkdir(parents=True, exist_ok=True)
    reader = Reader(program, home, address=address, pictures=pictures)
    reader.read()
    reader.wait_until("window.task2vec?.state.status")
    reader.space = reader.run(f"task2vec.state.status.spaces.find(({{ tasks }}) => tasks === {MEASURED}).id")
    yield reader
    reader.close()


@pytest.fixture
def reader(window):
    """The browser; after every test, nothing has complained and nobody but the server was asked for anything."""
    window.forget()
    yield window
    assert window.complaints() == []
    assert window.hosts() == {window.address.removeprefix("http://")}


def open_first(reader, **how):
    """The page with the map drawn; its first task by name."""
    reader.read(**how)
    reader.wait_until(DRAWN)
    return reader.run("task2vec.state.points[0]")


def wait_for_task(reader, name):
    """Until the panel tells of a task: what it is, its neighbours and the experts for it."""
    reader.wait_until(f"document.querySelector('#panel h2')?.textContent === {name!r}")
    reader.wait_until("document.querySelectorAll('#nearest li').length > 0")
    reader.wait_until("document.querySelectorAll('#recommendation .experts li').length > 0")


def paint_count(picture, colour):
    """How many pixels have a colour, left of the panel."""
    return int((np.abs(picture[60:, :900] - colour).max(axis=2) < 12).sum())


def test_the_map_draws_every_task(reader):
    open_first(reader)
    assert reader.run("document.getElementById('names').dataset.drawn") == str(MEASURED)
    assert reader.run("document.getElementById('names').dataset.renderer") == "webgl"
    picture = reader.picture("map_light")
    assert paint_count(picture, BLUE) > 500 and paint_count(picture, INK) > 500, "marks, or names, are missing"
    reader.run("document.querySelector('#legend .groups button').click()")  # the largest group, in the first colour
    reader.wait_until(f"Number(document.getElementById('names').dataset.drawn) < {MEASURED}")
    assert paint_count(reader.picture(), BLUE) < 50


def test_ones_own_tasks_are_named_first(reader):
    """Three that had no room for their names have it when they are of the library."""
    with reader.prepared(NOTE_WORDS):
        open_first(reader)
        names = reader.run("words.map(({ text }) => text)")
        points = [one for one in reader.run("task2vec.state.points") if len(one["name"]) <= 30]
        nameless = [one for one in points if one["name"] not in names][:3]
        assert len(nameless) == 3
        ids = [one["id"] for one in nameless]
        script = f"for (const one of told.points) if ({ids}.includes(one.id)) one.origin = 'library'"
        with reader.prepared(answer_with("/map", script)):
            open_first(reader)
    assert {one["name"] for one in nameless} <= set(reader.run("words.map(({ text }) => text)"))
    reader.picture("own_light")


def test_the_map_draws_without_webgl(reader):
    script = "HTMLCanvasElement.prototype.getContext = ((get) => function (kind, ...more) { return kind === 'webgl2' ? null : get.call(this, kind, ...more); })(HTMLCanvasElement.prototype.getContext)"  # fmt: skip # noqa: E501
    with reader.prepared(script):
        open_first(reader)
    assert reader.run("document.getElementById('names').dataset.renderer") == "canvas"
    assert paint_count(reader.picture(), BLUE) > 500


def test_a_colour_for_every_question(reader):
    open_first(reader)
    for way in ("taxon", "error", "norm"):
        reader.run(f"(() => {{ const box = document.getElementById('colour-by'); box.value = '{way}'; box.dispatchEvent(new Event('change')); }})()")  # fmt: skip # noqa: E501
        assert reader.run("document.querySelectorAll('#legend .ramp').length") == (0 if way == "taxon" else 1)
    assert "%" not in reader.text("#legend .ends"), "a norm is no share"


def test_a_click_tells_what_a_task_is_like_and_what_to_use(reader):
    point = open_first(reader)
    x, y = reader.run(f"task2vec.whereIs({point['id']!r})")
    reader.point("mouseMoved", x, y)
    reader.wait_until("!document.getElementById('tip').hidden")
    assert point["name"] in reader.text("#tip")
    reader.click(x, y)
    wait_for_task(reader, point["name"])
    assert reader.run("location.hash").startswith(f"#task={point['id']}")
    assert reader.run("document.querySelectorAll('#nearest li').length") == 10
    apart = reader.run("[...document.querySelectorAll('#nearest .number')].map((one) => Number(one.textContent))")
    assert apart == sorted(apart) and apart[0] > 0
    assert reader.text("#recommendation .sentence").startswith("Start from")
    assert reader.run("document.querySelectorAll('#recommendation .interval').length") >= 3
    reader.picture("task_light")


def test_search_is_worked_by_the_keyboard(reader):
    open_first(reader)
    reader.press("/")
    reader.type("flowers_L")
    reader.wait_until("document.querySelectorAll('#found [role=option]').length > 1")
    found = reader.run("[...document.querySelectorAll('#found [role=option] .word')].map((one) => one.textContent)")
    assert all(name.startswith("flowers_L") for name in found)
    reader.press("ArrowDown")
    assert reader.run("document.querySelector('#found [aria-selected=true] .word').textContent") == found[1]
    reader.press("Enter")
    wait_for_task(reader, found[1])
    assert reader.run("document.getElementById('found').hidden")
    reader.press("/")
    reader.type("no such thing")
    reader.wait_until("document.getElementById('found').textContent.startsWith('No task')")
    reader.press("Escape")
    assert reader.run("document.getElementById('found').hidden")


def test_two_tasks_are_compared(reader):
    point = open_first(reader)
    reader.read(f"#task={point['id']}")
    wait_for_task(reader, point["name"])
    distance = reader.text("#nearest li .number")
    reader.click_on("#nearest li .small")
    reader.wait_until("document.querySelectorAll('#layers li').length > 0")
    assert reader.text("#panel .figure").startswith(distance)
    assert f"task={point['id']}&with=" in reader.run("location.hash")
    shares = reader.run("[...document.querySelectorAll('#layers .number')].map((one) => parseFloat(one.textContent))")
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 100.5
    reader.run("history.back()")
    wait_for_task(reader, point["name"])


def test_a_comparison_begins_with_what_the_distance_means(reader):
    open_first(reader)
    first, second = reader.run("task2vec.state.points.filter((_, k) => k === 3 || k === 50).map(({ id }) => id)")
    reader.read(f"#task={first}&with={second}")
    reader.wait_until("document.getElementById('meaning')?.textContent.endsWith('of all pairs of tasks on this map.')")
    assert reader.run("document.querySelector('#panel .figure').previousElementSibling.id") == "meaning"
    ids = "task2vec.state.points.map(({ id }) => id).join(',')"
    address = f"`api/v1/matrix?space={reader.space}&ids=${{{ids}}}`"
    table = np.array(reader.run(f"fetch({address}).then((answer) => answer.json()).then(({{ values }}) => values)"))
    pairs = table[np.triu_indices(len(table), 1)]
    farther = float((pairs > float(reader.run("parseFloat(document.querySelector('.figure').textContent)"))).mean())
    told, words = float(re.findall(r"(\d+) %", said := reader.text("#meaning"))[0]), ("nearer", "farther apart")
    assert abs(told - 100 * max(farther, 1 - farther)) < 2 and words[farther < 0.5] in said, (said, farther)
    reader.picture("two_light")


def test_a_second_task_is_picked_from_the_list(reader):
    point = open_first(reader)
    reader.read(f"#task={point['id']}&view=list")
    wait_for_task(reader, point["name"])
    reader.click_on("#panel .actions button")
    assert "Pick the second task" in reader.text("#picking")
    other = reader.run("task2vec.state.points[1]")
    reader.run(f"[...document.querySelectorAll('#view-list td button')].find((one) => one.textContent === {other['name']!r}).click()")  # fmt: skip # noqa: E501
    reader.wait_until("document.querySelectorAll('#layers li').length > 0")
    assert reader.run("task2vec.state.with") == other["id"]
    assert reader.run("document.getElementById('picking').hidden")


def test_the_list_holds_what_the_map_holds(reader):
    open_first(reader)
    reader.read("#view=list")
    reader.wait_until("document.querySelectorAll('#view-list tbody tr').length > 0")
    names = "[...document.querySelectorAll('#view-list tbody tr td:first-child')].map((one) => one.textContent)"
    assert sorted(reader.run(names)) == sorted(reader.run("task2vec.state.points.map(({ name }) => name)"))


def test_a_cell_of_the_matrix_compares(reader):
    reader.read("#view=matrix", height=1000)
    reader.wait_until("window.task2vec?.state.points.length > 0")  # then it is drawn anew
    reader.wait_until("document.querySelector('#view-matrix canvas')?.dataset.drawn === '60'")
    reader.run("document.querySelector('#view-matrix canvas').focus()")
    for key in ("ArrowDown", "ArrowDown"):
        reader.press(key)
    said = reader.text(".cell-note")
    assert " and " in said
    reader.picture("matrix_light")
    reader.press("Enter")
    reader.wait_until("document.querySelectorAll('#layers li').length > 0")
    assert reader.text("#panel .figure").startswith(said.rsplit(": ", 1)[1])


def test_the_choice_of_the_matrix_stands(reader):
    """Whoever comes with an open task sees it there, and may still choose the first sixty."""
    open_first(reader)
    last = reader.run("task2vec.state.points.at(-1).id")
    reader.read(f"#task={last}&view=matrix")
    reader.wait_until("document.querySelector('#view-matrix canvas')?.dataset.drawn === '31'")
    assert reader.run("document.getElementById('which').value") == "around"
    reader.run("(() => { const box = document.getElementById('which'); box.focus(); box.value = 'first'; box.dispatchEvent(new Event('change')); })()")  # fmt: skip # noqa: E501
    reader.wait_until("document.querySelector('#view-matrix canvas')?.dataset.drawn === '60'")
    assert reader.run("document.getElementById('which').value") == "first"
    assert reader.run("document.activeElement.id") == "which"


@pytest.mark.parametrize("width", [1280, 360])
def test_no_name_below_the_matrix_is_cut(reader, width):
    rename = "told.names = told.names.map((name, k) => `${k} wide words, many more of them than fit here`)"
    with reader.prepared(NOTE_WORDS), reader.prepared(answer_with("/matrix", rename)):
        reader.read("#view=matrix", width=width)
        reader.wait_until("document.querySelector('#view-matrix canvas')?.dataset.drawn === '60'")
    reader.run("document.querySelector('.matrix .wide').scrollLeft = 9999")
    reader.picture(f"matrix_end_{width}")
    ends = "words.filter(({ canvas }) => canvas.isConnected && !canvas.id).map(({ right, low }) => [right, low])"
    ends = np.array(reader.run(ends))
    size = reader.run("(({ width, height }) => [width, height])(document.querySelector('#view-matrix canvas'))")
    assert len(ends) == 120 and (ends < np.array(size) - 4).all(), (ends.max(axis=0), size)


def test_experts_are_sorted_by_a_click(reader):
    reader.read("#view=experts")
    column = (
        "[...document.querySelectorAll('#view-experts tbody tr')].map((row) => parseFloat(row.children[3].textContent))"
    )
    reader.wait_until("document.querySelectorAll('#view-experts tbody tr').length > 10")
    assert reader.run("document.querySelectorAll('#view-experts th')[3].getAttribute('aria-sort')") == "ascending"
    up = reader.run(column)
    reader.click_on("#view-experts th:nth-child(4) button")
    assert reader.run("document.querySelectorAll('#view-experts th')[3].getAttribute('aria-sort')") == "descending"
    assert up == sorted(up) and reader.run(column) == sorted(up, reverse=True)


def test_names_of_strangers_are_text(reader):
    """Tasks of another space, one of them with a name that would like to be more."""
    open_first(reader)
    other = "task2vec.state.status.spaces.find((one) => one.name.startsWith('net')).id"
    reader.read(f"#view=list&space={reader.run(other)}")
    reader.wait_until("document.querySelectorAll('#view-list tbody tr').length === 6")
    assert WICKED in reader.run("[...document.querySelectorAll('#view-list td button')].map((one) => one.textContent)")
    assert reader.run("document.querySelectorAll('img, main script').length") == 0


def test_a_link_to_a_task_of_another_space_opens_that_space(reader):
    open_first(reader)
    spaces = f"task2vec.state.status.spaces.filter((one) => one.tasks === {MEASURED} && one.id !== {reader.space!r})"
    reader.read(f"#space={(other := reader.run(spaces)[0]['id'])}")
    reader.wait_until(DRAWN)
    point = reader.run("task2vec.state.points[0]")
    reader.read(f"#task={point['id']}")
    wait_for_task(reader, point["name"])
    reader.wait_until(f"task2vec.state.points.some(({{ id }}) => id === {point['id']!r})")
    assert reader.run("document.getElementById('space').value") == other


def test_a_folder_of_tasks_is_offered_last_and_says_so(reader):
    reader.read("#view=embed")
    reader.wait_until("document.querySelector('#view-embed form')")
    rows = reader.run("[...document.querySelectorAll('.folders label')].map((one) => [one.querySelector('.word').textContent, !one.querySelector('input').disabled, one.querySelector('.hint')?.textContent ?? ''])")  # fmt: skip # noqa: E501
    assert [row[:2] for row in rows] == [["photos", False], [WICKED, True], ["ruined", True], ["photos", True]]
    assert [bool(row[2]) for row in rows] == [False, False, False, True]
    assert "look like tasks themselves" in rows[-1][2]
    assert reader.run("document.querySelectorAll('.folders :checked').length") == 0
    assert reader.text("#unlisted").endswith("1 folder with images but without two class folders: photos/holiday.")


def test_a_folder_is_embedded_and_appears(reader):
    reader.read("#view=embed")
    reader.wait_until("document.querySelector('#view-embed form')")
    assert WICKED in reader.text(".folders")
    reader.picture("embed_light")
    reader.click_on(".folders input:not(:disabled)")
    reader.click_on("#view-embed button[type=submit]")
    reader.wait_until("document.querySelector('#progress progress')")
    assert WICKED in reader.text("#job-name")
    reader.wait_until(f"document.querySelector('#panel h2')?.textContent === {WICKED!r}")
    wait_for_task(reader, WICKED)
    reader.wait_until(f"document.getElementById('names').dataset.drawn === '{MEASURED + 1}'")
    point = reader.run("task2vec.state.points.find((one) => one.id === task2vec.state.task)")
    assert (point["name"], point["origin"], point["images"], point["classes"]) == (WICKED, "library", 12, 2)
    assert SCRIPT in reader.text("#panel .counts")
    assert reader.run("document.querySelectorAll('img, main script').length") == 0
    reader.picture("embedded_light")


def test_an_embedding_is_cancelled(reader):
    reader.read("#view=embed")
    reader.wait_until("document.querySelector('#view-embed form')")
    reader.click_on(".folders input:not(:disabled)")
    reader.click_on("#task-name")
    reader.type("in vain")
    reader.press("Enter")
    reader.wait_until("document.getElementById('cancel')")
    reader.click_on("#cancel")
    reader.wait_until("document.getElementById('progress').textContent.includes('was cancelled')")
    assert reader.run("task2vec.state.points.every(({ name }) => name !== 'in vain')")


def test_an_embedding_that_fails_says_why_and_is_forgotten(reader):
    reader.read("#view=embed")
    reader.wait_until("document.querySelector('#view-embed form')")
    reader.click_on("#folder-filter")
    reader.type("ruined")
    reader.wait_until("document.querySelectorAll('.folders input:not(:disabled)').length === 1")
    reader.click_on(".folders input:not(:disabled)")
    reader.click_on("#view-embed button[type=submit]")
    reader.wait_until("document.querySelector('#progress .problem')")
    assert "12 of 12 images cannot be read" in reader.text("#progress .problem .what")
    assert reader.run("document.querySelectorAll('#progress .problem p').length") >= 2
    reader.picture("failed_light")
    reader.click_on("#progress button")
    assert reader.run("document.getElementById('progress').hidden")
    assert reader.run("task2vec.state.points.every(({ name }) => name !== 'ruined')")


def test_the_next_embedding_waits_and_is_followed_in_its_turn(reader):
    reader.read("#view=embed")
    reader.wait_until("document.querySelector('#view-embed form')")
    assert reader.text("#turn") == ""
    for number, name in enumerate(("the first", "the next")):  # of these, the next cannot be read
        reader.run(f"document.querySelectorAll('.folders input:not(:disabled)')[{number}].click()")
        reader.run(f"document.getElementById('task-name').value = {name!r}")
        reader.click_on("#view-embed button[type=submit]")
        reader.wait_until(f"document.getElementById('turn').textContent.includes('“{name}”')")
    assert reader.text("#turn").startswith("“the first” is being embedded, then “the next”. What you start now waits")
    reader.picture("waiting_light")
    reader.click_on("#cancel")
    reader.wait_until("document.querySelector('#progress .problem')")
    assert "“the first” was cancelled" in reader.text("#progress"), "what was told of the first is gone"
    assert "12 of 12 images cannot be read" in reader.text("#progress .problem .what")
    reader.wait_until("document.getElementById('turn').textContent === ''")
    for _ in range(2):
        reader.click_on("#progress button")
    assert reader.run("document.getElementById('progress').hidden")


def test_an_unknown_task_is_told_in_plain_words(window):
    window.forget()
    window.read("#task=l-nobody")
    window.wait_until("document.querySelector('#panel .problem')")
    assert len(window.text("#panel .problem .what")) > 10
    assert window.run("document.querySelectorAll('#panel .problem p').length") >= 2
    assert window.complaints(is_refused=True) == []


def test_a_server_without_a_folder_says_how_to_get_one(reader):
    with reader.prepared(answer_with("/status", "Object.assign(told, { can_embed: false, roots: [] })")):
        reader.read("#view=embed")
    reader.wait_until("document.querySelector('#view-embed pre')")
    assert reader.text("#view-embed pre") == "task2vec serve --root DIR"


def test_dark_is_kept(reader):
    open_first(reader)
    light = reader.picture()
    reader.click_on("#theme")
    assert reader.run("document.getElementById('dark').media") == "all"
    reader.read()
    reader.wait_until(DRAWN)
    dark = reader.picture("map_dark")
    reader.run("localStorage.clear()")
    assert light[400, 5].min() > 240 and dark[400, 5].max() < 40


@pytest.mark.parametrize("view", VIEWS)
def test_narrow_screens_scroll_one_way_only(reader, view):
    point = open_first(reader, width=360, height=740)
    reader.read(f"#view={view}&task={point['id']}", width=360, height=740, theme="dark")
    wait_for_task(reader, point["name"])
    reader.wait_until(f"document.querySelectorAll('#view-{view} *').length > 3")
    assert reader.run("document.documentElement.scrollWidth") <= 360
    reader.picture(f"{view}_narrow")


def test_narrow_screens_scroll_to_the_answer(reader):
    note = "window.moves = []; Element.prototype.scrollIntoView = ((move) => function (how) { if (this.id === 'panel') moves.push(how.behavior); move.call(this, how); })(Element.prototype.scrollIntoView)"  # fmt: skip # noqa: E501
    with reader.prepared(note):
        open_first(reader, width=360, height=740)
        point = reader.run(SHIPPED)
        reader.click(*reader.run(f"task2vec.whereIs({point['id']!r})"))
        wait_for_task(reader, point["name"])
        reader.wait_until(IN_SIGHT)
        assert reader.run("[moves, document.activeElement.id]") == [["smooth"], "names"]
        reader.picture("answer_narrow")
        reader.press("ArrowRight")  # the keys still go to the map: it comes back
        reader.wait_until("document.getElementById('names').getBoundingClientRect().bottom > 200")
        open_first(reader, width=360, height=740, is_calm=True)
        reader.press("/")
        reader.type(point["name"])
        reader.wait_until("document.querySelectorAll('#found [role=option]').length > 0")
        found = reader.text("#found [role=option] .word")
        reader.press("Enter")
        wait_for_task(reader, found)
        assert reader.run(IN_SIGHT) and reader.run("moves") == ["auto"]
        open_first(reader)
        reader.click(*reader.run(f"task2vec.whereIs({point['id']!r})"))
        wait_for_task(reader, point["name"])
        assert reader.run("moves") == [], "a wide screen shows the panel anyway"


def test_words_of_the_trade_are_explained_where_they_stand(reader):
    open_first(reader)
    point = reader.run(SHIPPED)
    reader.run("document.querySelector('#spaces summary').focus()")
    reader.press("Enter")
    assert reader.run("document.querySelector('#spaces details').open")
    assert "by the same network" in reader.text("#spaces details")
    reading = reader.text("#legend details")
    assert "t-SNE is a method that" in reading and "perplexity is" in reading
    assert "perplexity" not in reader.run("document.body.innerText"), "it stands where nobody has asked"
    reader.read(f"#task={point['id']}&view=experts")
    wait_for_task(reader, point["name"])
    reader.wait_until("document.querySelectorAll('#view-experts tbody tr').length > 3")
    assert "comes with task2vecits makers" in reader.text("#panel .meaning")
    assert "as it comes from ImageNet" in reader.text("#view-experts .meaning")
    assert "measured by us" not in reader.text("body")
    assert reader.run("document.querySelectorAll('#panel .tag[title]').length") == 0


def test_keys_alone_are_enough(reader):
    """From the skip link through the header to the map, to a task, and back out; each stop can be seen."""
    open_first(reader)
    stops = []
    for _ in range(10):
        reader.press("Tab")
        stop, has_ring = reader.run(
            "(() => { const one = document.activeElement; return [one.id || one.textContent.trim(), "
            "getComputedStyle(one).outlineStyle !== 'none']; })()"
        )
        assert has_ring, f"nobody sees that '{stop}' has the focus"
        stops.append(stop)
        if stop == "names":
            break
    assert stops[0] == "Skip to the content" and stops[-1] == "names", stops
    assert {"Map", "List", "Matrix", "Experts", "Embed", "search", "theme"} <= set(stops)
    reader.press("ArrowRight")
    reader.wait_until("!document.getElementById('tip').hidden")
    reader.press("ArrowRight")
    name = reader.text("#tip .name")
    reader.press("Enter")
    wait_for_task(reader, name)
    reader.press("Escape")
    assert reader.run("task2vec.state.task") is None
