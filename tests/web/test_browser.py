"""The page of `task2vec serve` in a real browser, against the real server."""

import re
import time
from dataclasses import replace

import numpy as np
import pytest

import task2vec
from task2vec import EmbedSettings, ErrorProtocol, Expert, Library, MeasuredError
from task2vec.web import ServeSettings, make_app
from tests.cli.material import paint
from tests.plots.browser import NO_BROWSER, PATIENCE, Browser, find_browser
from tests.select.material import TASKS, make_world
from tests.tiny_probe import make_tiny
from tests.web.serving import WICKED, fill, keep_report, listening

SCRIPT = "<script>alert(2)<"
BUNDLED = 103
BLUE, INK, OWN = (0, 114, 178), (31, 45, 58), (214, 0, 42)
DRAWN = "Number(document.getElementById('map').dataset.drawn) > 0"
CANVAS = "document.querySelector('#view-matrix canvas')?.dataset.drawn"
pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason=NO_BROWSER),
    pytest.mark.allow_hosts(["127.0.0.1"]),
]


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    """The browser, and a server of six tasks, one of them with a hostile name, and a model."""
    folder = tmp_path_factory.mktemp("served") / "tasks"
    fill(folder)
    with Library.open(folder) as library:
        lucky = MeasuredError(library.task("own 0").fingerprint, "lucky", 0.001, ErrorProtocol("half").key, 0)
        library.add(Expert("lucky", "timm", "resnet18"), lucky)
    with listening(make_app(ServeSettings(library=folder))) as (_, (host, port)):
        reader = Browser(f"http://{host}:{port}")
        try:
            reader.library = folder
            reader.read()
            reader.wait_until("window.task2vec?.state.status")
            spaces = reader.run("task2vec.state.status.spaces")
            reader.space = next(space["id"] for space in spaces if space["name"].startswith("tf_eff"))
            yield reader
        finally:
            reader.close()


@pytest.fixture
def reader(window):
    """The browser; after every test, there was no error but the refusals it asked for, and nobody else was asked."""
    window.forget()
    window.is_refused = False
    yield window
    assert window.complaints(is_refused=window.is_refused) == []
    assert window.hosts() == {window.address.removeprefix("http://")}


def open_first(reader, **how):
    """The page with the map drawn; its first task by name."""
    reader.read(**how)
    reader.wait_until(DRAWN)
    return reader.run("task2vec.state.points[0]")


def open_task(reader, number, view="map"):
    """The page with that task of the map chosen."""
    open_first(reader)
    point = reader.run(f"task2vec.state.points[{number}]")
    reader.run(f"location.hash = '#task={point['id']}&view={view}&space={reader.space}'")
    wait_for_task(reader, point["name"])
    return point


def wait_for_task(reader, name):
    """Until the panel shows a task, its neighbours and the recommended models."""
    reader.wait_until(f"document.querySelector('#panel h2')?.textContent === {name!r}")
    for selector in ("#nearest li", "#recommendation .models li"):
        reader.wait_until(f"document.querySelector('{selector}')")


def read_frame(reader, script):
    """The value of a script in the frame of a report, once it is loaded; the browser gives it a process of its own."""
    reader.wait_until("document.querySelector('#tabpanel-report:not([hidden]) iframe')")
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        frames = [frame for frame in reader.page.frames if frame.url.endswith("/report")]
        if frames and frames[-1].evaluate("document.readyState === 'complete' && document.body?.childElementCount > 0"):
            return frames[-1].evaluate(script)
        reader.page.wait_for_timeout(30)
    raise AssertionError("the frame does not load")


def choose(reader, name, value):
    """Chooses an option of a select element."""
    reader.page.select_option(f"#{name}", value)


def count_pixels(picture, colour):
    """How many pixels have a colour, left of the panel."""
    return int((np.abs(picture[60:, :900] - colour).max(axis=2) < 12).sum())


def test_the_map_draws_every_task_in_the_chosen_colours(reader):
    open_first(reader)
    assert reader.run("document.getElementById('map').dataset.drawn") == str(BUNDLED)
    picture = reader.picture()
    assert count_pixels(picture, BLUE) > 500 and count_pixels(picture, INK) > 500, "marks, or names, are missing"
    assert reader.count("#legend > div > .groups button") == 6 and "more groups with" in reader.text("#legend summary")
    reader.click_on("#legend .groups button")  # the largest group, in the first colour
    reader.wait_until(f"Number(document.getElementById('map').dataset.drawn) < {BUNDLED}")
    assert count_pixels(reader.picture(), BLUE) < 0.2 * count_pixels(picture, BLUE)  # 35 datasets: colours recur
    for way in ("taxon", "error", "norm"):
        choose(reader, "colour-by", way)
        assert reader.count("#legend .ramp") == (0 if way == "taxon" else 1)
    assert "%" not in reader.text("#legend .ends"), "a norm is not a fraction"
    reader.click_on("#theme")
    open_first(reader)
    dark = reader.picture()
    reader.run("localStorage.clear()")
    assert picture[400, 5].min() > 240 and dark[400, 5].max() < 40, "the dark theme is not kept"


def test_a_click_shows_a_task_its_neighbours_and_models(reader):
    point = open_first(reader)
    x, y = reader.run(f"task2vec.whereIs({point['id']!r})")
    reader.page.mouse.move(x, y)
    reader.wait_until("!document.getElementById('tip').hidden")
    assert point["name"] in reader.text("#tip")
    reader.page.mouse.click(x, y)
    wait_for_task(reader, point["name"])
    assert reader.run("location.hash").startswith(f"#task={point['id']}")
    apart = [float(text) for text in reader.texts("#nearest .number")]
    assert apart == sorted(apart) and apart[0] > 0 and reader.count("#nearest li") == 10
    assert len(reader.text("#recommendation .sentence")) > 20 and reader.count("#recommendation .models li") >= 5
    assert "bundled with task2vecembedded by the authors" in reader.text("#panel .meaning")
    assert "t-SNE is a method that" in reader.text("#legend > details")
    assert "perplexity" not in reader.run("document.body.innerText"), "explanations are folded"


def test_models_are_proposed_with_reasons_and_the_command_that_measures_them(reader):
    point = open_task(reader, 3)
    answer = reader.run(f"fetch('api/v1/tasks/{point['id']}/recommendation').then((one) => one.json())")
    assert not answer["is_measured"] and reader.count("#recommendation .interval") == 0
    shown = reader.texts("#recommendation .models .word")
    assert shown == [row["model"] for row in answer["rows"]][: len(shown)] and len(shown) >= 5
    assert reader.texts("#recommendation .models .why")[0] == answer["rows"][0]["reason"]
    assert answer["command"] in reader.texts("#recommendation pre")


def test_measured_models_have_intervals_and_hostile_names_are_text(reader, monkeypatch):
    def recommend(*given, **options):
        advice = task2vec.recommend(*given, **options)
        measured = {"error": 0.1, "low": 0.05, "high": 0.2, "gap": 0.0, "is_tied": True}
        rows = [replace(row, model=f"{row.rank} {WICKED}", load=SCRIPT, **measured) for row in advice.rows[:3]]
        rows = (replace(rows[0], is_choice=True), *rows[1:], *advice.rows[3:])
        return replace(advice, rows=rows, choice=rows[0].model)

    monkeypatch.setattr("task2vec.web.routes.recommend", recommend)
    open_task(reader, 7)
    assert reader.count("#recommendation .models li") == reader.count("#recommendation .models .interval") == 3
    assert WICKED in reader.text("#recommendation .models") and SCRIPT in reader.text("#recommendation pre")
    assert "recommended" in reader.text("#recommendation .models li") and reader.count("img, main script") == 0


def test_search_works_by_keyboard_and_fits_a_narrow_screen(reader):
    open_first(reader, width=390, height=740)
    reader.press("/")
    reader.page.keyboard.type("flowers_L")
    reader.wait_until("document.querySelectorAll('#found [role=option]').length > 1")
    box = reader.run("document.getElementById('found').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0 and box["right"] <= 390
    assert box["top"] >= reader.run("document.getElementById('search').getBoundingClientRect().bottom")
    found = reader.texts("#found [role=option] .word")
    assert all(name.startswith("flowers_L") for name in found)
    reader.press("ArrowDown")
    assert reader.text("#found [aria-selected=true] .word") == found[1]
    reader.press("Enter")
    wait_for_task(reader, found[1])
    assert reader.run("document.getElementById('found').hidden")
    reader.press("/")
    reader.page.keyboard.type("no such thing")
    reader.wait_until("document.getElementById('found').textContent.startsWith('No task')")
    reader.press("Escape")
    assert reader.run("document.getElementById('found').hidden")


def test_two_tasks_are_compared_from_the_list_and_the_distance_is_explained(reader):
    point = open_task(reader, 0, "list")
    names = reader.texts("#view-list tbody tr td:first-child")
    assert sorted(names) == sorted(reader.run("task2vec.state.points.map(({ name }) => name)"))
    reader.click_on("#panel .actions button")
    assert "Pick the second task" in reader.text("#picking")
    other = reader.run("task2vec.state.points[50]")
    rows = "[...document.querySelectorAll('#view-list td button')]"
    reader.run(f"{rows}.find((one) => one.textContent === {other['name']!r}).click()")
    reader.wait_until("document.querySelectorAll('#layers li').length > 0")
    assert reader.run("task2vec.state.with") == other["id"] and reader.run("document.getElementById('picking').hidden")
    shares = [float(text.rstrip("%")) for text in reader.texts("#layers .number")]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 100.5
    reader.wait_until("document.getElementById('meaning')?.textContent.endsWith('of all pairs of tasks on this map.')")
    ids = "task2vec.state.points.map(({ id }) => id).join(',')"
    address = f"`api/v1/matrix?space={reader.space}&ids=${{{ids}}}`"
    table = np.array(reader.run(f"fetch({address}).then((answer) => answer.json()).then(({{ values }}) => values)"))
    pairs = table[np.triu_indices(len(table), 1)]
    farther = float((pairs > float(reader.run("parseFloat(document.querySelector('.figure').textContent)"))).mean())
    told, words = float(re.findall(r"(\d+)%", said := reader.text("#meaning"))[0]), ("nearer", "farther apart")
    assert abs(told - 100 * max(farther, 1 - farther)) < 2 and words[farther < 0.5] in said, (said, farther)
    reader.run("history.back()")
    wait_for_task(reader, point["name"])


def test_a_cell_of_the_matrix_compares_and_the_choice_of_tasks_stays(reader):
    reader.page.mouse.move(640, 500)  # where the matrix appears: a pointer at rest marks no cell
    reader.read("#view=matrix", height=1000)
    reader.wait_until("window.task2vec?.state.points.length > 0")  # then it is drawn anew
    until, cell = time.monotonic() + PATIENCE, "document.querySelector('.cell-note')?.textContent.includes(' and ')"
    while not reader.run(f"Boolean({cell})"):  # keys are lost while a job of another test, just ended, draws it anew
        assert time.monotonic() < until, reader.text("#view-matrix")
        reader.wait_until(f"{CANVAS} === '60'")
        reader.run("document.querySelector('#view-matrix canvas')?.focus()")
        reader.press("ArrowDown")
    said = reader.text(".cell-note")
    reader.run("document.querySelector('#view-matrix canvas').isOld = true")
    reader.run("(task2vec.state.status.revision = 'of yesterday', dispatchEvent(new Event('focus')))")
    reader.wait_until("document.activeElement.dataset.drawn === '60' && !document.activeElement.isOld")
    assert reader.text(".cell-note") == said, "a new drawing keeps the marked cell and the keyboard"
    reader.press("Enter")
    reader.wait_until("task2vec.state.with")
    reader.wait_until("document.querySelectorAll('#layers li').length > 0")
    assert reader.text("#panel .figure").startswith(said.rsplit(": ", 1)[1])
    reader.read(f"#task={reader.run('task2vec.state.points.at(-1).id')}&view=matrix")
    reader.wait_until(f"{CANVAS} === '31'")
    assert reader.run("document.getElementById('which').value") == "around"
    choose(reader, "which", "first")
    reader.wait_until(f"{CANVAS} === '60'")
    assert reader.run("document.getElementById('which').value") == "first"
    assert reader.run("document.activeElement.id") == "which"


def test_a_late_answer_about_an_earlier_task_is_dropped(reader):
    open_first(reader)
    names, ids = zip(*reader.run("task2vec.state.points.slice(3, 5).map(({ name, id }) => [name, id])"), strict=True)
    late = "{ const answer = await real(...given); await new Promise((end) => setTimeout(end, 900)); return answer; }"
    late = f"window.fetch = (...given) => {{ window.fetch = real; return (async () => {late})(); }};"
    reader.run(f"(() => {{ const real = window.fetch; {late} }})()")  # the next answer alone comes later
    for one in ids:
        reader.run(f"location.hash = '#task={one}'")
    wait_for_task(reader, names[1])
    time.sleep(1.5)
    assert reader.run("document.title").startswith(names[1])


def test_tasks_of_the_reader_stand_out_and_come_first(window):
    with listening(make_app(ServeSettings(library=window.library), metatask=make_world())) as (_, (host, port)):
        address = f"http://{host}:{port}"
        for view, claim in (("map", DRAWN), ("list", "document.querySelector('#view-list tbody tr')")):
            window.visit("about:blank")
            window.visit(f"{address}/#view={view}")
            window.wait_until(claim)
            if view == "map":
                assert window.texts("#legend .groups button")[0] == "your library6"
                assert count_pixels(window.picture(), OWN) > 500
                window.click_on("#legend .groups button")
                window.wait_until(f"document.getElementById('map').dataset.drawn === '{TASKS}'")
                assert count_pixels(window.picture(), OWN) < 100
                choose(window, "colour-by", "error")
                assert window.texts("#legend .groups button") == ["your library6"]
            else:
                names = window.texts("#view-list tbody tr td:first-child")
                assert [name.startswith("★") for name in names] == 6 * [True] + TASKS * [False]
        window.press("/")
        window.page.keyboard.type("o")  # of bundled tasks, too
        window.wait_until("document.querySelectorAll('#found [role=option]').length > 6")
        assert all(name.startswith("★") for name in window.texts("#found [role=option] .word")[:6])
        window.run("location.hash = '#view=matrix'")
        window.wait_until(f"{CANVAS} === '{TASKS + 6}'")
        window.visit("about:blank")


def test_models_are_sorted_by_a_click(reader):
    reader.read("#view=models")
    reader.wait_until("document.querySelectorAll('#view-models tbody tr').length > 5")
    for order in ("ascending", "descending"):
        assert reader.run("document.querySelectorAll('#view-models th')[3].getAttribute('aria-sort')") == order
        means = [float(text.split("%")[0]) for text in reader.texts("#view-models tbody td:nth-child(4)")]
        assert reader.text("#view-models tbody tr:last-child td") == "lucky", "its mean is of one task"
        assert means[:-1] == sorted(means[:-1], reverse=order == "descending") and means[-1] == 0.1
        reader.click_on("#view-models th:nth-child(4) button")
    assert "pretrained on ImageNet" in reader.text("#view-models .meaning")
    assert reader.run("fetch('api/v1/models?shots=2').then((one) => one.status)") == 200  # of small tasks


def test_hostile_names_are_text_and_a_link_opens_its_space(reader):
    open_first(reader)
    other = reader.run("task2vec.state.status.spaces.find((one) => one.name.startsWith('net')).id")
    reader.read(f"#view=list&space={other}")
    reader.wait_until("document.querySelectorAll('#view-list tbody tr').length === 6")
    assert WICKED in reader.texts("#view-list td button") and reader.count("img, main script") == 0
    spaces = f"task2vec.state.status.spaces.filter((one) => one.tasks === {BUNDLED} && one.id !== {reader.space!r})"
    reader.read(f"#space={(other := reader.run(spaces)[0]['id'])}")
    reader.wait_until(DRAWN)
    point = reader.run("task2vec.state.points[0]")
    reader.read(f"#task={point['id']}")
    wait_for_task(reader, point["name"])
    reader.wait_until(f"task2vec.state.points.some(({{ id }}) => id === {point['id']!r})")
    assert reader.run("document.getElementById('space').value") == other


def test_an_unknown_task_and_a_library_of_nothing_are_explained(window, tmp_path):
    window.forget()
    window.read("#task=l-nobody")
    window.wait_until("document.querySelectorAll('#panel .problem p').length >= 2")
    assert window.complaints(is_refused=True) == []
    with listening(make_app(ServeSettings(library=tmp_path / "none"))) as (_, (host, port)):
        window.visit(f"http://{host}:{port}/")
        window.wait_until(DRAWN)
        assert "task2vec embed FOLDER" in window.text("#first-step")
        window.visit("about:blank")


def test_narrow_screens_scroll_one_way_only(reader):
    point = open_first(reader, width=360, height=740, theme="dark")
    for view in ("map", "list", "matrix", "models"):
        reader.run(f"location.hash = '#view={view}&task={point['id']}'")
        wait_for_task(reader, point["name"])
        reader.wait_until(f"document.querySelectorAll('#view-{view} *').length > 3")
        assert reader.run("document.documentElement.scrollWidth") <= 360, view


def test_keys_alone_are_enough(reader):
    """From the skip link through the header to the map, to a task, and back out; every focus is visible."""
    open_first(reader)
    stops = []
    while "map" not in stops and len(stops) < 15:
        reader.press("Tab")
        stops.append(reader.run("document.activeElement.id || document.activeElement.textContent.trim()"))
        assert reader.run("getComputedStyle(document.activeElement).outlineStyle") != "none", stops
    assert stops[0] == "Skip to content" and stops[-1] == "map", stops
    assert {"Map", "List", "Matrix", "Models", "search", "theme"} <= set(stops)
    reader.press("ArrowRight")
    reader.wait_until("!document.getElementById('tip').hidden")
    reader.press("ArrowRight")
    name = reader.text("#tip .name")
    reader.press("Enter")
    wait_for_task(reader, name)
    reader.press("Escape")
    assert reader.run("task2vec.state.task") is None


# --- the report on a task ---------------------------------------------------------------------------------------------


SECTIONS = ["At a glance", "What to do next", "Copies", "Labels"]
SECTIONS += ["Classes", "More images", "Start from", "Similar tasks"]


def find_task(reader, name):
    """The id of a task, asked from the page."""
    reader.read()
    return reader.run(f"fetch('api/v1/tasks?q={name}').then((answer) => answer.json())")["tasks"][0]["id"]


def is_selected(window):
    return window.run("[...document.querySelectorAll('[role=tab]')].map((one) => one.ariaSelected)")


def test_a_report_is_a_tab_with_an_address_of_its_own(reader, tmp_path):
    folder = paint(tmp_path / "reported", {SCRIPT: 60, "green": 120}, seed=1)
    with Library.open(reader.library) as library:
        library.add(task2vec.embed(folder, make_tiny(), settings=EmbedSettings(l2=0.1)))
        task2vec.report(folder, make_tiny(), library=library).keep(library)
    reader.read(f"#task={find_task(reader, 'reported')}")
    reader.wait_until("document.querySelector('#tab-overview')")
    assert is_selected(reader) == ["true", "false"] and reader.count("iframe") == 0
    reader.run("document.getElementById('tab-overview').focus()")
    reader.press("ArrowRight")
    assert reader.run("document.activeElement.id") == "tab-report" and is_selected(reader) == ["false", "true"]
    assert "tab=report" in reader.run("location.hash")
    assert reader.run("document.getElementById('nearest').checkVisibility()") is False
    assert read_frame(reader, "[...document.querySelectorAll('section h2')].map((one) => one.textContent)") == SECTIONS
    assert SCRIPT in read_frame(reader, "document.body.innerText")
    assert read_frame(reader, "document.scripts.length") == 0
    assert reader.run("document.querySelector('#panel iframe').getAttribute('sandbox')") == ""
    address = reader.run("document.querySelector('#tabpanel-report a').href")
    reader.press("ArrowRight")
    assert reader.run("document.activeElement.id") == "tab-overview" and "tab=" not in reader.run("location.hash")
    reader.run("history.back()")
    reader.wait_until("document.getElementById('tab-report').ariaSelected === 'true'")
    reader.visit(address)  # as a window of its own, too
    assert reader.texts("section h2") == SECTIONS


def test_a_report_that_is_written_later_appears_and_runs_no_script(reader):
    reader.is_refused = True
    reader.read(f"#task={find_task(reader, 'own 2')}&tab=report")
    reader.wait_until("document.querySelector('#tabpanel-report pre')")
    assert reader.text("#tabpanel-report pre") == "task2vec report FOLDER --library DIR"
    assert "no report" in reader.text("#tabpanel-report p") and "tasks" in reader.text("#tabpanel-report p")
    code = "document.title = 'run'; parent.document.title = 'run'"
    page = f'<title>calm</title><body><script>{code}</script><img src=x onerror="{code}"><svg onload="{code}"></svg>'
    keep_report(reader.library, "own 2", page + f'<a href="javascript:{code}" id=link>b</a>')
    reader.run("dispatchEvent(new Event('focus'))")
    assert read_frame(reader, "(document.getElementById('link').click(), document.title)") == "calm"
    assert reader.run("document.title").startswith("own 2")
    reader.read(f"#task={find_task(reader, 'flowers_L')}&tab=report")
    reader.wait_until("document.querySelector('#tabpanel-report .empty')")
    assert "without its images" in reader.text("#tabpanel-report") and reader.count("#tabpanel-report pre") == 0
