"""The page of a report: self-contained, small, safe, and one that can be worked with."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import task2vec as t2v
from task2vec.audit import html
from task2vec.audit.analysis import CopyGroup, LabelIssue
from task2vec.errors import DataChangedError
from task2vec.tasks.images import ChosenImages
from tests.audit.material import make_folder, make_report, paint, plant
from tests.failures import fail
from tests.plots.browser import NO_BROWSER, Browser, Page, find_browser

SECTIONS = [
    "At a glance",
    "What to do next",
    "Copies",
    "Labels",
    "Classes",
    "More images",
    "Start from",
    "Similar tasks",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return plant(make_folder(tmp_path_factory.mktemp("photos") / "things", images=20))


@pytest.fixture(scope="module")
def result(folder):
    return make_report(folder)


@pytest.fixture(scope="module")
def large():
    """A report on 1,000 images that compress badly, with 400 suspects and 150 groups of copies."""
    noise = np.random.default_rng(0).integers(0, 255, (10, 45, 60, 3), dtype=np.uint8)
    rows = [
        (Image.fromarray(np.roll(noise[n % 10], n // 10, axis=n % 2)).resize((400, 300)), n % 40) for n in range(1000)
    ]
    made = make_report(t2v.from_dataset(rows, name="noise"))
    names = made.images.name
    issues = [LabelIssue(names(n), str(n % 40), str((n + 1) % 40), 0.5, n % 5 == 0, n) for n in range(400)]
    groups = [
        CopyGroup("copy", tuple(map(names, numbers)), ("1",) * 3, ("",) * 3, numbers)
        for numbers in ((n, n + 1, n + 2) for n in range(500, 950, 3))
    ]
    return replace(made, label_issues=tuple(issues), copies=tuple(groups), expected=0.5)


@pytest.fixture(scope="module")
def large_page(large):
    return large.to_html()


def list_pictures(page):
    return [attrs for tag, attrs in page.tags if tag == "image"]


def test_the_page_is_self_contained_and_does_not_say_where_the_images_are(result, folder):
    text = result.to_html()
    assert str(folder) in result.suggestions[0].command and str(folder.parent) not in text
    page = Page(text)
    assert re.findall("|".join(SECTIONS), page.text)[:8] == SECTIONS
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "iframe", "object", "embed", "form", "base"}
    pictures = list_pictures(page)
    assert pictures and all(attrs["href"].startswith("data:image/webp;base64,") for attrs in pictures)
    links = [attrs["href"] for tag, attrs in page.tags if tag in ("a", "use", "link")]
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert all(link == "data:," or link.removeprefix("#") in ids for link in links)
    assert len(ids) == len([attrs for _, attrs in page.tags if "id" in attrs])
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "script" not in policy
    assert (
        "norm" not in page.text.split("@media print")[1] and result.task.fingerprint[:8] not in text
    )  # they stay in the data
    ((tag, attrs),) = Page(result._repr_html_()).tags  # in a notebook
    assert tag == "iframe" and attrs["sandbox"] is None and attrs["srcdoc"] == text


def test_a_suspect_has_its_path_labels_line_and_typical_images_of_both_classes(result):
    page = result.to_html()
    article = page[page.index('id="l1"') : page.index("</article>", page.index('id="l1"'))]
    text = " ".join(Page(f"<article {article}").text.split())
    for words in ("labelled green, suggested red", "green/wrong.jpg", "green/wrong.jpg,green,red,label,relabel,,"):
        assert words in text, text
    assert text.count("typical") == 4 and article.count("<use ") == 5
    typical = {facts.name: facts.typical for facts in result.classes}
    for name in ("green", "red"):
        assert all(f'href="#p{number}"' in article for number in typical[name][:2])


@pytest.mark.long
def test_look_alikes_are_marked_and_the_precision_is_in_words(large):
    page = large.to_html(max_bytes=0)
    assert "About 200 of these 400 are probably wrong" in page
    assert page.count("look-alikes") == 80


def test_all_findings_are_on_pages_of_25(large):
    page = Page(large.to_html(max_bytes=0))
    articles = [attrs["id"] for tag, attrs in page.tags if tag == "article"]
    assert articles == [f"c{n}" for n in range(1, 151)] + [f"l{n}" for n in range(1, 401)]
    pages = [attrs["id"] for tag, attrs in page.tags if attrs.get("class") == "page"]
    assert pages == [f"copies-{n}" for n in range(1, 7)] + [f"labels-{n}" for n in range(1, 17)]
    for issue in large.label_issues:
        assert issue.image in page.text


def test_a_page_of_a_thousand_images_is_under_two_megabytes(large, large_page):
    pictures = [attrs["href"] for attrs in list_pictures(Page(large_page))]
    assert 1_000_000 < len(large_page.encode()) <= html.MAX_BYTES < 2_000_000 and len(pictures) > 100
    ids = [attrs["id"] for attrs in list_pictures(Page(large_page))]
    assert len(ids) == len({*ids})  # each is stored once, however often it is shown


def test_few_pictures_are_large_and_many_are_small(large, large_page):
    few = replace(large, label_issues=(), copies=large.copies[:2], classes=large.classes[:2]).to_html()
    first, second = (
        max(max(int(attrs["width"]), int(attrs["height"])) for attrs in list_pictures(Page(page)))
        for page in (few, large_page)
    )
    assert first == html.SIDES[0] > second == html.SIDES[-1]


def test_images_are_left_out_or_gone(result, monkeypatch):
    none = Page(result.to_html(max_bytes=0))
    monkeypatch.setattr("task2vec.tasks.images.ChosenImages.load", fail(DataChangedError("gone")))
    for page in (none, Page(result.to_html())):
        assert not list_pictures(page) and "green/wrong.jpg" in page.text


@pytest.mark.parametrize("classes", [2, 24, pytest.param(200, marks=pytest.mark.long)])
def test_the_confusion_picture_has_every_mistake(classes):
    rows = [(paint("red", 1000 * (n % classes) // 3 + n), n % classes) for n in range(3 * classes)]
    made = make_report(t2v.from_dataset(rows, name="many"))
    page = made.to_html(max_bytes=0)
    cells = re.findall(r'<rect class="(right|wrong)"', page)
    assert cells.count("wrong") == len(made.confused) > 0 and cells.count("right") == classes
    picture = page[page.index('<svg class="confusion"') :]
    assert len(re.findall("<text", picture[: picture.index("</svg>")])) == (
        0 if classes == 200 else 2 * classes + len(cells)
    )


HOSTILE = "<img src=x onerror=document.title='taken'>\"'&\u202e</style><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    kinds, rows = [HOSTILE, "plain & simple"], []
    for number in range(40):
        rows.append((paint(("red", "blue")[number % 2], number), number % 2))
    rows.append((paint("red", 99), 1))
    made = make_report(t2v.from_dataset(rows, classes=kinds, name=HOSTILE))
    images = ChosenImages((made.images,), [(0, number) for number in range(41)], (HOSTILE,))
    issue = LabelIssue(HOSTILE, HOSTILE, HOSTILE, 0.9, True, 0)
    issues = (issue, *(replace(issue, number=number) for number in range(1, 30)))
    group = CopyGroup("scene", (HOSTILE,) * 2, (HOSTILE,) * 2, ("", HOSTILE), (1, 2))
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    replace(made, images=images, notes=(HOSTILE,), label_issues=issues, copies=(group,), unseen=(HOSTILE,)).to_html(
        path
    )
    return path


def test_hostile_names_are_text(hostile):
    page = Page(hostile.read_text())
    assert not {tag for tag, _ in page.tags} & {"script"} and page.text.count("document.title") > 5
    assert not [attrs for _, attrs in page.tags if "onerror" in attrs] and "\u202e" not in page.text


@pytest.mark.skipif(find_browser() is None, reason=NO_BROWSER)
def test_a_browser_opens_it_asks_for_nothing_and_runs_nothing(hostile):
    browser = Browser()
    try:
        for width in (400, 1280):
            browser.resize(width, 800)
            browser.forget()
            browser.visit(hostile.as_uri())
            browser.wait_until("document.readyState === 'complete'")
            assert browser.run("[...document.querySelectorAll('h2')].map(one => one.innerText)")[:8] == SECTIONS
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert "taken" not in browser.run("document.title").split("'")[0]
            assert {url for url in browser.requests if not url.startswith("data:")} == {hostile.as_uri()}
    finally:
        browser.close()


@pytest.mark.skipif(find_browser() is None, reason=NO_BROWSER)
def test_pictures_are_enlarged_and_pages_turned_without_a_script(hostile):
    browser, shown = Browser(), "[...document.querySelectorAll('#labels .page')].map(page => page.offsetHeight > 0)"
    try:
        browser.resize(1280, 800)
        browser.visit(hostile.as_uri())
        assert browser.run(shown) == [True, False]
        browser.page.click("#labels-1 .pager a")
        assert browser.run(shown) == [False, True]
        width = "document.querySelector('#l27 svg').getBoundingClientRect().width"
        small = browser.run(width)
        browser.page.click("#l27-0")
        assert browser.run(width) == 1280 > 5 * small and browser.run(shown) == [False, True]
        browser.page.click("#l27-0 + .close", position={"x": 5, "y": 5})
        assert browser.run(width) == small and browser.run(shown) == [False, True]
        browser.page.emulate_media(media="print")
        assert browser.run(shown) == [True, True]
    finally:
        browser.close()
