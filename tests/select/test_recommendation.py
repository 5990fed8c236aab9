"""What a recommendation says: its table, its sentences, and that it has no number that nobody measured."""

import csv
import json
from dataclasses import replace

import pytest

from task2vec.select.recommendation import Recommendation, Row, format_interval, list_names, write_verdict

FIRST = Row(
    1, "vit_tiny", 0.039, 0.02, 0.07, gap=0.0, is_tied=True, images=100, seconds=3.2, params=5_700_000, gmacs=1.3
)
SECOND = Row(2, "resnet34", 0.041, 0.02, 0.079, 0.002, -0.03, 0.034, True, True, 100, 2.1, 21_300_000, 3.7)
THIRD = Row(3, "resnet18", 0.21, 0.14, 0.3, 0.171, 0.09, 0.25, images=100, seconds=1.0, license="mit", load="t2v.x")
LEFT = Row(4, "convnext", params=28_000_000, reason="covers what the first one misses")
FAILED = Row(5, "big", failure="out of memory")
ROWS = (FIRST, SECOND, THIRD, LEFT, FAILED)


def make(rows=ROWS, **more):
    choice = next((row.model for row in rows if row.is_choice), None)
    verdict = write_verdict(rows, prefer="cheapest", images=100, images_needed=None)
    return Recommendation("photos", rows, choice, verdict=verdict, images=100, classes=3, measured_images=100, **more)


def test_the_table_has_all_models_and_fits_the_page():
    text = make(seconds=6.3, budget=60.0, notes=("A note.",)).to_text(width=120)
    lines = text.splitlines()
    assert lines[0] == "photos: 100 images, 3 classes"
    assert lines[1] == "measured: 3 of 5 models in 6.3 s (budget: 60 s)"
    assert "A note." in lines
    table = {line.split()[1 if line[0] in "*=" else 0]: line for line in lines if "  " in line and line[:1] in "*= "}
    assert table["vit_tiny"].startswith("=") and table["resnet34"].startswith("*")
    assert "4.1%" in table["resnet34"] and "2.0 to 7.9%" in table["resnet34"] and "+0.2" in table["resnet34"]
    assert "failed" in table["big"] and "big could not be measured: out of memory" in lines
    assert "covers what" in table["convnext"]
    assert "%" not in table["convnext"] and "%" not in table["big"]
    for width in (30, 60, 80, 200):
        narrow = make().to_text(width=width)
        assert max(map(len, narrow.splitlines())) <= max(width, 40), width
    assert "and 3 more" in make().to_text(limit=2) and "resnet18" not in make().to_text(limit=2)


def test_plain_values_and_csv_have_an_error_only_where_one_was_measured(tmp_path):
    advice = make()
    document = json.loads(json.dumps(advice.to_dict(), allow_nan=False))
    assert "data" not in document and document["choice"] == "resnet34"
    for row in document["rows"]:
        known = {row[name] is not None for name in ("error", "low", "high", "gap", "images")}
        assert known == {row["model"] in ("vit_tiny", "resnet34", "resnet18")}
    with advice.to_csv(tmp_path / "models.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["error"] for row in rows] == ["0.039", "0.041", "0.21", "", ""]
    assert rows[-1]["failure"] == "out of memory"


def test_rows_are_found_by_name():
    advice = make()
    assert advice["resnet18"] is THIRD and next(iter(advice)) == "vit_tiny"
    assert repr(advice) == "Recommendation(photos: resnet34, 3 of 5 models measured)"
    assert str(advice).startswith("photos: 100 images")
    with pytest.raises(KeyError, match="vgg"):
        advice["vgg"]


@pytest.mark.parametrize(
    ("rows", "prefer", "needed", "words"),
    [
        (ROWS, "cheapest", None, "Start from resnet34: test error 4.1% (95% interval 2.0 to 7.9%); ties with vit_tiny, "
                                 "and is the cheaper one."),
        (ROWS, "cheapest", 350, "About 250 images more would tell vit_tiny and resnet34 apart."),
        (ROWS, "error", 90, "ties with vit_tiny, and is the better one."),
        ((FIRST, SECOND, replace(THIRD, is_tied=True)), "cheapest", None, "ties with vit_tiny and resnet18, and is the "
                                                                          "cheapest of them."),
        ((replace(FIRST, is_choice=True), THIRD), "cheapest", None, "its error is the lowest of 2 measured, and no "
                                                                    "other model ties with it."),
        ((SECOND, FAILED), "cheapest", None, "4.1% (95% interval 2.0 to 7.9%). No other model was measured."),
        ((FAILED,), "cheapest", None, "No model could be measured, so none is recommended. The first one: big: out of "
                                      "memory"),
    ],
)  # fmt: skip
def test_the_verdict_is_a_sentence(rows, prefer, needed, words):
    text = write_verdict(rows, prefer=prefer, images=100, images_needed=needed)
    assert text.endswith(words)


def test_nothing_is_said_of_images_that_are_there_already():
    assert "more would tell" not in write_verdict(ROWS, prefer="cheapest", images=100, images_needed=100)


def test_names_and_intervals():
    assert list_names(["a"]) == "a" and list_names(list("abcdef")) == "a, b, c, d and 2 more"
    assert format_interval(replace(FIRST, low=None)) == "test error 3.9%"


def test_names_are_printed_without_escape_sequences():
    row = replace(SECOND, model="x\x1b[31m", load="load\x1b[31m")
    text = make((row,)).to_text()
    assert "\x1b" not in text and "x\\x1b[31m" in text
