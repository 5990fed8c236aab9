"""Acting on a report: the table of decisions, the corrected table, and what a later report says of both."""

import csv
import json
import shutil

import pytest

import task2vec as t2v
from task2vec.audit.analysis import CopyGroup
from task2vec.audit.corrections import COLUMNS, apply_corrections, format_relative, suggest_decisions
from task2vec.errors import DataError, UsageError
from tests.audit.material import make_folder, make_report, paint, plant, save
from tests.audit.test_report import check_schema


@pytest.fixture
def folder(tmp_path):
    return plant(make_folder(tmp_path / "data" / "things", images=20))


@pytest.fixture
def decide(folder, tmp_path):
    """Writes the table of corrections with decisions by (path, kind), and returns its path."""
    result = make_report(folder)

    def write(decisions, **changes):
        file = result.to_corrections(tmp_path / "data" / "fix.csv")
        rows = list(csv.DictReader(file.read_text().splitlines()))
        for row in rows:
            row["decision"] = decisions.get((row["path"], row["kind"]), "")
            row |= changes.get(row["path"], {})
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        return file

    return write


WRONG, SAME = "things/green/wrong.jpg", "things/red/same.jpg"


def test_the_table_has_what_was_found_first_and_then_every_other_image(folder, tmp_path):
    result = make_report(folder)
    rows = list(csv.reader(result.to_corrections(tmp_path / "fix.csv").read_text().splitlines()))
    assert rows[0] == [*COLUMNS] and rows[0][:5] == ["path", "label", "suggestion", "kind", "decision"]
    assert rows[1] == ["data/things/green/wrong.jpg", "green", "red", "label", "", "", ""]
    exact = [row for row in rows if row[3] == "exact"]
    assert [(row[0], row[2], row[5]) for row in exact] == [
        ("data/things/red/00.jpg", "keep", "1"),
        ("data/things/red/same.jpg", "remove", "1"),
    ]
    assert {row[0] for row in rows[1:]} == {f"data/things/{result.images.name(n)}" for n in range(len(result.task))}
    assert all(row[4] == "" for row in rows[1:])
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    assert str(folder) in result.to_corrections(elsewhere / "fix.csv").read_text()  # absolute from there


def test_decisions_make_a_table_that_can_be_read_and_nothing_is_moved(decide, folder, tmp_path):
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    file = decide({(WRONG, "label"): "relabel", (SAME, "exact"): "remove"})
    applied = apply_corrections(file, tmp_path / "fixed.csv")
    assert (applied.kept, applied.relabelled, applied.removed) == (61, 1, 1)
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    task = t2v.read_table(tmp_path / "fixed.csv")
    labels = dict(zip(map(task.images.name, range(len(task))), (task.classes[n] for n in task.targets), strict=True))
    assert labels["data/things/green/wrong.jpg"] == "red" and "data/things/red/same.jpg" not in labels
    assert len(task) == 62 and set(task.classes) == {"red", "green", "blue"}
    result = make_report(tmp_path / "fixed.csv")
    assert result.label_issues == () and not [group for group in result.copies if group.kind == "exact"]


def test_another_label_may_be_written_and_formulas_are_harmless(decide, tmp_path):
    file = decide({(WRONG, "label"): "Relabel"}, **{WRONG: {"suggestion": "=cmd|' /C calc'!A0"}})
    apply_corrections(file, tmp_path / "fixed.csv")
    rows = list(csv.reader((tmp_path / "fixed.csv").read_text().splitlines()))
    assert ["data/things/green/wrong.jpg", "'=cmd|' /C calc'!A0"] in rows
    assert format_relative(tmp_path / "-x" / "@.jpg", tmp_path) == "./-x/@.jpg"


def test_numbers_as_labels_stay_what_they_are(tmp_path):
    for number in range(12):
        save(paint("red" if number % 2 else "blue", number), tmp_path / str(-(number % 2)) / f"{number}.jpg")
    (tmp_path / "0" / "again.jpg").write_bytes((tmp_path / "0" / "0.jpg").read_bytes())
    file = make_report(tmp_path).to_corrections(tmp_path / "fix.csv")
    apply_corrections(file, tmp_path / "fixed.csv")
    assert set(t2v.read_table(tmp_path / "fixed.csv").classes) == {"0", "-1"}


@pytest.mark.parametrize(
    ("decisions", "changes", "words"),
    [
        ({(WRONG, "label"): "delete"}, {}, "'delete' is unknown.*keep, relabel, remove"),
        ({(WRONG, "label"): "relabel"}, {WRONG: {"suggestion": ""}}, "no label is suggested"),
        ({(SAME, "exact"): "relabel"}, {}, "no label is suggested"),
        ({}, {WRONG: {"path": "things/green/gone.jpg"}}, "line 2: there is no file 'things/green/gone.jpg'"),
        ({(SAME, "exact"): "remove", (SAME, "label"): "keep"}, {"things/red/00.jpg": {"path": SAME, "kind": "label",
          "decision": "keep"}}, "contradicts"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_its_row(decide, tmp_path, decisions, changes, words):
    file = decide(decisions, **changes)
    with pytest.raises(DataError, match=words) as refused:
        apply_corrections(file, tmp_path / "fixed.csv")
    assert "line " in str(refused.value) and not (tmp_path / "fixed.csv").exists()


def test_a_table_of_something_else_is_refused(tmp_path):
    (tmp_path / "other.csv").write_text("path,label\na.jpg,cat\n")
    with pytest.raises(UsageError, match=r"no column suggestion.*--corrections other\.csv"):
        apply_corrections(tmp_path / "other.csv", tmp_path / "fixed.csv")


def test_of_one_picture_the_largest_is_kept_and_a_scene_loses_nothing():
    group = CopyGroup("copy", ("a", "b", "c"), ("x",) * 3, ("",) * 3, (0, 1, 2))
    assert suggest_decisions(group, [10, 30, 30]) == ["remove", "keep", "remove"]
    leak = CopyGroup("copy", ("a", "b", "c"), ("x",) * 3, ("", "test", "val"), (0, 1, 2))
    assert suggest_decisions(leak, [90, 0, 0]) == ["remove", "keep", "keep"]
    conflict = CopyGroup("exact", ("a", "b"), ("x", "y"), ("", ""), (0, 1))
    assert suggest_decisions(conflict, [1, 1]) == ["", ""] and "Decide" in conflict.advice
    scene = CopyGroup("scene", ("a", "b"), ("x", "y"), ("", "test"), (0, 1))
    assert suggest_decisions(scene, [1, 1]) == ["one split"] * 2 and scene.is_leak and "delete nothing" in scene.advice
    alike = CopyGroup("alike", ("a", "b"), ("x", "y"), ("", "test"), (0, 1))
    assert suggest_decisions(alike, [1, 1]) == ["", ""] and not alike.is_leak and "nothing follows" in alike.advice


# --- since last time --------------------------------------------------------------------------------------------------


def test_a_later_report_says_what_was_solved_and_how_the_error_changed(decide, folder, tmp_path):
    with t2v.Library.open(tmp_path / "library") as library:
        first = make_report(folder, library=library)
        first.keep(library)
        again = make_report(folder, library=library, baseline="last")
        assert again.changes.new == again.changes.solved == () and again.changes.error == 0
        file = decide({(WRONG, "label"): "relabel", (SAME, "exact"): "remove"})
        apply_corrections(file, tmp_path / "fixed.csv")
        second = make_report(tmp_path / "fixed.csv", library=library, baseline="last")
    changes = second.changes
    assert changes.since == first.made and not [finding for finding in changes.new if finding.kind != "alike"]
    assert {(finding.kind, finding.images[0]) for finding in changes.solved} >= {
        ("label", "green/wrong.jpg"),
        ("exact", "red/00.jpg"),
    }
    losses = [{row["digest"]: row["loss"] for row in made.to_dict()["table"]} for made in (first, second)]
    common = losses[0].keys() & losses[1].keys()
    assert changes.images == 62  # the copy that was removed is still there once
    assert changes.error == pytest.approx(sum(losses[1][digest] - losses[0][digest] for digest in common) / 62)
    assert changes.low < changes.error < changes.high and changes.error < 0
    assert "Since last time" in second.to_html()
    check_schema(second.to_dict())


def test_a_baseline_is_a_file_of_an_earlier_report(folder, tmp_path):
    first = make_report(folder)
    first.to_json(tmp_path / "first.json")
    shutil.copy(folder / "blue" / "05.jpg", folder / "blue" / "new.jpg")
    second = make_report(folder, baseline=tmp_path / "first.json")
    assert [(finding.kind, finding.images) for finding in second.changes.new if finding.kind == "exact"] == [
        ("exact", ("blue/05.jpg", "blue/new.jpg"))
    ]
    other = json.loads((tmp_path / "first.json").read_text())
    other["model"]["size"] = 999
    (tmp_path / "other.json").write_text(json.dumps(other))
    changes = make_report(folder, baseline=tmp_path / "other.json").changes
    assert changes.error is changes.low is None and changes.solved == second.changes.solved
    (tmp_path / "no.json").write_text('{"table": []}')
    for name in ("no.json", "nowhere.json"):
        with pytest.raises(DataError, match=r"is not an earlier report.*--out FILE\.json"):
            make_report(folder, baseline=tmp_path / name)
    with pytest.raises(UsageError, match="no earlier report"):
        make_report(folder, baseline="last")
