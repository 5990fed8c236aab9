"""The report on a task: what was planted is found, and the page shows it safely."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import ImageDraw

import task2vec as t2v
from task2vec.audit import report as module
from task2vec.errors import DataChangedError
from task2vec.tasks.images import ChosenImages
from tests.audit.material import COLOURS, make_folder, paint, plant, save
from tests.failures import fail
from tests.plots.browser import NO_BROWSER, Browser, Page, find_browser
from tests.tiny_probe import make_tiny

SETTINGS = t2v.EmbedSettings(max_samples=12)
SECTIONS = ["At a glance", "What to do next", "Labels", "Copies", "Similar tasks", "Start from"]


def make_report(what, **options):
    return t2v.report(what, make_tiny(), settings=SETTINGS, device="cpu", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return plant(make_folder(tmp_path_factory.mktemp("photos") / "things"))


@pytest.fixture(scope="module")
def found(folder):
    return make_report(folder)


def test_what_was_planted_is_found_and_suggestions_have_evidence_and_a_command(found, folder):
    assert [(issue.image, issue.label, issue.suggested) for issue in found.label_issues] == [
        ("green/wrong.jpg", "green", "red")
    ]
    groups = {frozenset(group.images): group for group in found.copies}
    exact, near = ({"red/00.jpg", "red/same.jpg"}, {"blue/03.jpg", "blue/mirrored.jpg"})
    assert set(groups) == {frozenset(exact), frozenset(near)} and found.n_copies == 2
    assert groups[frozenset(exact)].is_exact and not groups[frozenset(near)].is_exact
    assert [bad.path for bad in found.bad] == ["blue/broken.jpg"]
    assert found.formats == {"jpg": len(found.task)} and set(map(tuple, found.sizes.tolist())) == {(64, 48)}
    assert found.error.low <= found.error.error <= found.error.high < 0.2
    assert found.classes[0].name == "green" and found.classes[0].error == pytest.approx(1 / 15, abs=0.02)
    assert all(found.task.targets[number] == found.task.classes.index("green") for number in found.classes[0].typical)
    texts = [one.text for one in found.suggestions]
    for words in ("1 suspected label error", "2 groups of copies", "1 unreadable file"):
        assert any(words in text for text in texts), texts
    assert 3 <= len(texts) <= 5 and all(one.evidence and str(folder) in one.command for one in found.suggestions)


def test_the_numbers_are_those_of_the_embedding(found, folder):
    alone = t2v.embed(folder, make_tiny(), settings=SETTINGS, device="cpu")
    assert found.embedding.fisher.tolist() == alone.fisher.tolist()
    assert found.embedding.stages() == alone.stages()
    assert found.recommendation.choice is None and len(found.recommendation) > 10  # nothing was measured
    assert "All known tasks count alike" in found.recommendation.notes[0]  # by another probe
    assert found.neighbours == () and found.rank("error") is None


def test_near_copies_with_different_labels_are_not_to_be_removed_and_hide_no_error():
    """As from a camera that stands still: on each of ten scenes the classes differ by a small thing."""
    rows = []
    for number in range(40):
        image, label = paint("red", number % 10).resize((96, 72)), number // 10 % 2
        draw = ImageDraw.Draw(image)
        draw.point([(number, 2)], (255, 255, 255))  # no two images have the same pixels
        if label:
            draw.rectangle((8, 8, 9, 9), (90, 220, 60))
        rows.append((image, label))
    found = make_report(t2v.from_dataset(rows, name="trap"))
    assert [(group.has_conflict, len(group.images)) for group in found.copies] == 10 * [(True, 4)]
    texts = [one.text for one in found.suggestions]
    assert any("10 groups of copies with different labels" in text for text in texts)
    assert not any("Keep one" in text for text in texts) and found.error is not None


def test_an_error_that_cannot_be_measured_is_not_shown():
    """Each class is one image, many times over."""
    images = [paint("red", 1), paint("blue", 2)]
    rows = [(images[number % 2].resize((64 + number, 48)), number % 2) for number in range(12)]
    found = make_report(t2v.from_dataset(rows, name="video"))
    assert found.error is None and found.rank("error") is None and found.beats_chance is None
    assert "cannot be measured" in found.suggestions[0].text and found.to_dict()["error"] is None
    page = Page(found.to_html()).text
    assert "cannot be measured" in page and "Difficulty: error" not in page


def test_labels_by_chance_are_called_so():
    """Frames of 20 clips, whose labels are random: an embedding keeps exact copies together alone, and is deceived."""
    labels = np.random.default_rng(0).integers(0, 2, 20)
    rows = [
        (paint("red", clip).resize((64 + frame, 48)), int(labels[clip])) for clip in range(20) for frame in range(4)
    ]
    found = make_report(t2v.from_dataset(rows, name="clips"))
    assert found.embedding.provenance["head"]["cv_error"] < 0.3 < found.error.error and not found.beats_chance
    assert any("how the labels were assigned" in one.text for one in found.suggestions)


def test_images_of_a_test_split_that_are_in_the_training_split_are_a_leak(tmp_path):
    make_folder(tmp_path / "train", images=8)
    make_folder(tmp_path / "test", images=4, start=50)
    save(paint("green", 2).resize((96, 72)), tmp_path / "test" / "green" / "leak.jpg")
    splits = t2v.read_splits(tmp_path)
    found = make_report(splits["train"], test=splits["test"])
    (group,) = found.copies
    assert group.is_leak and set(group.images) == {"green/02.jpg", "test: green/leak.jpg"}
    assert set(group.splits) == {"", "test"} and "1 group" in found.suggestions[0].text and found.n_copies == 0
    assert len(found.task) == 24 and "leak between splits" in found.to_html()
    rows = list(csv.DictReader(found.to_csv(tmp_path / "images.csv").read_text().splitlines()))
    assert len(rows) == 25 and (rows[-1]["image"], rows[-1]["copies"]) == ("test: green/leak.jpg", "green/02.jpg")
    again = make_report(str(tmp_path))
    assert again.copies == found.copies and again.task.name.endswith("(train)")


def test_the_table_and_the_plain_values_have_all_of_it(found, tmp_path):
    rows = list(csv.DictReader(found.to_csv(tmp_path / "images.csv").read_text().splitlines()))
    assert len(rows) == len(found.task) and rows[0]["image"] == "green/wrong.jpg"
    assert (rows[0]["predicted"], rows[0]["is_suspected"]) == ("red", "True")
    assert {row["copies"] for row in rows if row["image"] == "red/00.jpg"} == {"red/same.jpg"}
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["label_issues"][0]["suggested"] == "red" and values["classes"][0]["images"] == 15
    assert len(values["copies"]) == 2 and values["classes"][0]["typical"][0].startswith("green/")


def test_the_library_keeps_embedding_and_page(folder, tmp_path, monkeypatch):
    with t2v.Library.open(tmp_path) as library:
        first = make_report(folder, library=library)
        path = first.keep(library)
        assert path == library.report_file(first.task.fingerprint) and first.to_html() == path.read_text()
        monkeypatch.setattr("task2vec.embedding.single.Job.embed", lambda *_: pytest.fail("computed again"))
        assert make_report(folder, library=library).embedding.norm() == first.embedding.norm()
        library.remove("things")
        assert not path.exists()


def test_attributes_and_images_in_memory(tmp_path):
    """An attribute that is wrong for one image; classes are attributes, and there are no files."""
    kinds = [*COLOURS] * 10
    rows = [(paint(kind, number), [kind == "red", kind != "blue"]) for number, kind in enumerate(kinds)]
    rows[3] = (rows[3][0], [False, True])  # it is red
    found = make_report(t2v.from_dataset([(image, np.array(row, dtype=int)) for image, row in rows], name="pairs"))
    assert found.task.is_multilabel and found.confused == () and found.formats == {}
    (issue,) = found.label_issues
    assert (issue.image, issue.label, issue.suggested) == ("item 3", "0: no", "0: yes")
    assert 'report.to_csv("images.csv")' in {one.command for one in found.suggestions}
    assert "item 3" in Page(found.to_html()).text


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_self_contained_and_does_not_say_where_the_images_are(found, folder):
    text = found.to_html()
    assert str(folder) in found.suggestions[0].command and str(folder.parent) not in text
    page = Page(text)
    assert re.findall("|".join(SECTIONS), page.text)[:6] == SECTIONS
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "iframe", "object", "embed", "form", "base"}
    images = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert images and all(url.startswith("data:image/jpeg;base64,") for url in images)
    links = [value for _, attrs in page.tags for name, value in attrs.items() if name == "href"]
    assert all(link == "data:," or link.startswith("#") for link in links)
    for words in ("green/wrong.jpg", "red?", "task2vec report things --out images.csv"):
        assert words in page.text
    ((tag, attrs),) = Page(found._repr_html_()).tags  # in a notebook
    assert tag == "iframe" and attrs["sandbox"] is None and attrs["srcdoc"] == text


def test_images_are_limited_left_out_or_gone(found, monkeypatch):
    few, none = (Page(found.to_html(max_thumbnails=most)) for most in (5, 0))
    assert len({attrs["src"] for tag, attrs in few.tags if tag == "img"}) == 5
    monkeypatch.setattr("task2vec.tasks.images.ChosenImages.load", fail(DataChangedError("gone")))
    for page in (none, Page(found.to_html())):
        assert not [tag for tag, _ in page.tags if tag == "img"] and "green/wrong.jpg" in page.text


HOSTILE = "<img src=x onerror=document.title='taken'>\"'&\u202e</style><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    kinds, rows = [HOSTILE, "plain & simple"], []
    for number in range(12):
        rows.append((paint(("red", "blue")[number % 2], number), number % 2))
    rows.append((paint("red", 99), 1))
    found = make_report(t2v.from_dataset(rows, classes=kinds, name=HOSTILE))
    images = ChosenImages((found.images,), [(0, number) for number in range(13)], (HOSTILE,))
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    replace(found, images=images, notes=(HOSTILE,)).to_html(path)
    return path


def test_hostile_names_are_text(hostile):
    page = Page(hostile.read_text())
    assert not {tag for tag, _ in page.tags} & {"script"} and page.text.count("document.title") > 5
    assert not [attrs for _, attrs in page.tags if "onerror" in attrs] and "\u202e" not in page.text


@pytest.mark.skipif(find_browser() is None, reason=NO_BROWSER)
def test_a_browser_opens_it_asks_for_nothing_and_runs_nothing(hostile):
    browser = Browser()
    try:
        for width in (360, 1200):
            browser.resize(width, 800)
            browser.forget()
            browser.visit(hostile.as_uri())
            browser.wait_until("document.readyState === 'complete'")
            assert browser.run("[...document.querySelectorAll('h2')].map(one => one.innerText)")[:6] == SECTIONS
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert "taken" not in browser.run("document.title").split("'")[0]
            assert {url for url in browser.requests if not url.startswith("data:")} == {hostile.as_uri()}
            assert browser.run("[...document.images].every(one => one.naturalWidth > 0)")
    finally:
        browser.close()


def test_a_map_and_ranks_where_known_tasks_can_be_compared(found, monkeypatch):
    """The bundled tasks are by another probe: tasks of the same one stand in for them."""
    noise, others = np.random.default_rng(0).lognormal(size=(9, len(found.embedding))), []
    for number, factors in enumerate(noise):
        about = found.embedding.provenance | {"task_fingerprint": f"task {number}"}
        others.append(replace(found.embedding, fisher=found.embedding.fisher * factors, provenance=about))
    monkeypatch.setattr(module, "list_bundled", lambda _: [found.embedding, *others])
    known, place = module._draw_map(found.embedding)
    near = module._find_neighbours(found.embedding, None)
    assert len(known) == 9 and len(place) == 2 and len(near) == module.MAX_NEIGHBOURS
    distances = [t2v.distance.symmetric(found.embedding, one) for one in others]
    assert near[0].distance == pytest.approx(min(distances)) and near[0].floor > 0
    blank = [replace(one, stderr=np.full(len(one), np.nan), halves=None) for one in others]
    monkeypatch.setattr(module, "list_bundled", lambda _: [found.embedding, *blank])
    near[1:] = module._find_neighbours(found.embedding, None)[1:]  # as bundled tasks are: of unknown noise
    assert near[1].floor is near[1].corrected is None and near[1].distance > near[0].distance
    report = replace(found, known=known, place=place, neighbours=tuple(near))
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["neighbours"][1]["floor"] is None
    page = Page(report.to_html())
    assert page.text.count("unknown") >= 2 * (len(near) - 1) and "nan" not in page.text.split()
    assert len([tag for tag, attrs in page.tags if tag == "circle" and attrs["class"] == "own"]) == 3
    assert f"of {len(known)} known tasks" in page.text
    easier = tuple(one | {"norm": found.embedding.norm() * (0.5 if at < 3 else 2)} for at, one in enumerate(known))
    assert replace(found, known=easier).rank("norm") == pytest.approx(3 / 9)
