"""The report on a task: what was planted is found, there is one error, and every suggestion can be run."""

import json
from dataclasses import replace

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import task2vec as t2v
from task2vec.audit.corrections import apply_corrections
from task2vec.audit.findings import list_issues
from task2vec.audit.labels import LabelJudgement
from task2vec.errors import DataError, UsageError
from tests.audit.material import COLOURS, make_folder, make_report, paint, plant
from tests.cli.material import read
from tests.documents import ROOT
from tests.plots.browser import Page
from tests.web.serving import ask, serving

VALIDATOR = Draft202012Validator(json.loads((ROOT / "docs/reference/report.schema.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return plant(make_folder(tmp_path_factory.mktemp("photos") / "things", images=20))


@pytest.fixture(scope="module")
def found(folder):
    return make_report(folder)


def check_schema(document):
    """The document is what the documentation says, as it would be read from a file."""
    VALIDATOR.validate(json.loads(json.dumps(document, allow_nan=False)))


def test_what_was_planted_is_found_and_suggestions_have_evidence_and_a_command(found, folder):
    assert [(issue.image, issue.label, issue.suggested) for issue in found.label_issues] == [
        ("green/wrong.jpg", "green", "red")
    ]
    assert found.format_precision() == "about 1 of these 1 are probably wrong"
    exact = next(group for group in found.copies if group.kind == "exact")
    assert set(exact.images) == {"red/00.jpg", "red/same.jpg"} and "Keep one" in exact.advice
    assert [bad.path for bad in found.bad] == ["blue/broken.jpg"]
    assert found.formats == {"jpg": len(found.task)} and set(map(tuple, found.sizes.tolist())) == {(64, 48)}
    assert found.model.low <= found.model.error <= found.model.high < 0.2
    assert found.classes[0].name == "green" and found.classes[0].error == pytest.approx(1 / 21)
    assert [(cell.label, cell.predicted, cell.images) for cell in found.confused] == [("green", "red", 1.0)]
    assert all(found.task.targets[number] == found.task.classes.index("green") for number in found.classes[0].typical)
    assert not {issue.number for issue in found.label_issues} & {*found.classes[0].typical}
    texts = [suggestion.text for suggestion in found.suggestions]
    for words in ("1 suspected label error", "of copies", "1 unreadable file"):
        assert any(words in text for text in texts), texts
    assert 3 <= len(texts) <= 5
    assert all(suggestion.evidence and str(folder) in suggestion.command for suggestion in found.suggestions)


def test_errors_of_classes_are_those_of_the_measurement(found):
    """The mean over the images of a class is its error, so that the mean over classes by images is the error."""
    sizes = np.array([facts.images for facts in found.classes])
    errors = np.array([facts.error for facts in found.classes])
    assert (sizes * errors).sum() / sizes.sum() == pytest.approx(found.model.error)
    for facts in found.classes:
        missed = sum(cell.share for cell in found.confused if cell.label == facts.name)
        assert missed == pytest.approx(facts.error, abs=1e-6)


def test_an_error_that_cannot_be_measured_is_not_shown():
    """Each class is one image, many times over."""
    rows = [(paint(("red", "blue")[number % 2], 1), number % 2) for number in range(12)]
    found = make_report(t2v.from_dataset(rows, name="video"))
    assert found.model.error is None and found.beats_chance is None and found.judged == 0
    assert any("no error can be measured" in suggestion.text for suggestion in found.suggestions)
    check_schema(found.to_dict())
    assert "cannot be measured" in Page(found.to_html()).text


def test_labels_by_chance_are_called_so():
    labels = np.random.default_rng(0).integers(0, 2, 60)
    found = make_report(t2v.from_dataset([(paint("red", n), int(label)) for n, label in enumerate(labels)], name="x"))
    assert found.model.error > 0.3 and not found.beats_chance
    assert any("how the labels were assigned" in suggestion.text for suggestion in found.suggestions)


def test_images_of_a_test_split_that_are_in_the_training_split_are_a_leak(tmp_path):
    make_folder(tmp_path / "train", images=8)
    make_folder(tmp_path / "test", images=4, start=50)
    (tmp_path / "test" / "green" / "leak.jpg").write_bytes((tmp_path / "train" / "green" / "02.jpg").read_bytes())
    splits = t2v.read_splits(tmp_path)
    found = make_report(splits["train"], test=splits["test"])
    group = found.copies[0]
    assert group.is_leak and set(group.images) == {"green/02.jpg", "test: green/leak.jpg"}
    assert set(group.splits) == {"", "test"} and "Separate the splits" in found.suggestions[0].text
    assert len(found.task) == 24 and "leak between splits" in found.to_html()
    again = make_report(str(tmp_path))
    assert again.copies == found.copies and again.task.name.endswith("(train)") and again.splits == ("test",)
    check_schema(again.to_dict())
    assert [row["image"] for row in again.to_dict()["table"]][-1] == "test: green/leak.jpg"
    found.to_corrections(tmp_path / "fix.csv")
    lines = [line for line in (tmp_path / "fix.csv").read_text().splitlines() if ",exact," in line]
    assert lines == ["train/green/02.jpg,green,remove,exact,,1,", "test/green/leak.jpg,green,keep,exact,,1,test"]
    (tmp_path / "fix.csv").write_text((tmp_path / "fix.csv").read_text().replace("keep,exact,,", "keep,exact,remove,"))
    with pytest.raises(DataError, match="--split test"):
        apply_corrections(tmp_path / "fix.csv", tmp_path / "fixed.csv")


def test_attributes_and_images_in_memory():
    """Classes are attributes, and there are no files; a suspect is named by the attribute in question and its value."""
    kinds = [*COLOURS] * 10
    rows = [(paint(kind, n), np.array([kind == "red", kind != "blue"], dtype=int)) for n, kind in enumerate(kinds)]
    found = make_report(t2v.from_dataset(rows, name="pairs"))
    assert found.task.is_multilabel and found.confused == () and found.formats == {}
    number = next(number for number in range(30) if found.images.name(number) == "item 4")  # green
    doubts, nothing = np.zeros(30), np.zeros(30, dtype=bool)
    asked = np.full(30, found.task.classes.index("0"))
    (issue,) = list_issues(found.task, LabelJudgement(asked, doubts, doubts, (number,), 1.0, nothing))
    assert (issue.image, issue.label, issue.suggested) == ("item 4", "0: no", "0: yes")
    assert np.mean([facts.error for facts in found.classes]) == pytest.approx(found.model.error)
    check_schema(found.to_dict())
    assert "item 4" in Page(replace(found, label_issues=(issue,)).to_html()).text
    with pytest.raises(UsageError, match="attributes instead of classes"):
        found.to_corrections("fix.csv")


# --- one source of every number ---------------------------------------------------------------------------------------


def test_report_recommend_the_library_and_its_page_have_the_same_numbers(folder, tmp_path, monkeypatch):
    """Of one model: measured by the report, and found by all others, which measure nothing again."""
    probe = t2v.load_probe(size=32)
    with t2v.Library.open(tmp_path) as library:
        found = t2v.report(folder, probe, library=library, device="cpu")
        model, document = found.model, found.to_dict()
        assert document["recommendation"]["rows"][0] == document["model"]
        page = Page(found.to_html()).text
        assert f"{100 * model.error:.1f}%" in page and f"{model.params / 1e6:.1f} M" in page
        library.add(t2v.embed(folder, probe, settings=t2v.EmbedSettings(max_samples=8), device="cpu"))
        found.keep(library)
        monkeypatch.setattr("task2vec.select.measure.compute_features", lambda *_, **__: pytest.fail("measured again"))
        (row,) = t2v.recommend(str(folder), models=[probe], library=library).rows
        numbers = ("error", "low", "high", "images", "params", "gmacs", "size", "license")
        assert [getattr(row, name) for name in numbers] == [getattr(model, name) for name in numbers]
        (stored,) = library.errors()
        assert (stored.error, stored.low, stored.high) == (model.error, model.low, model.high)
        (expert,) = library.experts()
        assert expert.parameters == model.params
    shown = read("library", "show", "things", "--library", tmp_path)
    assert [(error["error"], error["low"], error["high"]) for error in shown["errors"]] == [
        (model.error, model.low, model.high)
    ]
    assert shown["images"] == document["images"] and len(shown["classes"]) == len(document["classes"])
    with serving(tmp_path) as client:
        task = ask(client, f"/tasks/{ask(client, '/tasks')['tasks'][0]['id']}")
        assert task["best_error"] == model.error and task["has_report"]


def test_what_the_library_had_measured_counts(folder, tmp_path):
    """A report after a recommendation shows the error of that one, and all models that it measured."""
    small, large = t2v.load_probe(size=32), t2v.load_probe(size=48)
    with t2v.Library.open(tmp_path) as library:
        advice = t2v.recommend(str(folder), models=[small, large], library=library)
        found = t2v.report(folder, small, library=library, device="cpu")
        before = next(row for row in advice.rows if row.size == 32)
        assert (found.model.error, found.model.low, found.model.high) == (before.error, before.low, before.high)
        assert len(library.errors()) == 2
