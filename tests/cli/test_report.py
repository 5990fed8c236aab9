"""`task2vec report`: the files it writes, what it prints, and what it refuses."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

import task2vec
from tests.audit.material import make_folder, paint, plant, save
from tests.audit.test_report import check_schema
from tests.cli.material import SMALL, call, read, refuse
from tests.tiny_probe import make_tiny

QUICK = ("--model", "tf_efficientnet_lite0", "--budget", "30", "--device", "cpu")
pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    return plant(make_folder(tmp_path_factory.mktemp("data") / "things", images=20))


def test_a_page_is_written_and_kept_and_what_to_do_is_printed(things, opened):
    result = call("report", things)
    assert result.exit_code == 0, result.stderr
    page = Path("things-report.html").read_text()
    assert "<h1>things</h1>" in page and "data:image/webp" in page
    shown = " ".join(result.stdout.split())
    for words in (
        "63 images, 3 classes",
        "1 suspect, about 1 of these 1",
        "2 groups of one picture",
        "1. Review",
        "written: ",
    ):
        assert words in shown, shown
    assert "unreadable" in result.stderr and "broken.jpg" in result.stderr
    kept = opened.report_file(opened.task("things").fingerprint)
    assert kept.read_text() == page and json.loads(kept.with_suffix(".json").read_text())["task"] == "things"
    assert call("report", things, "--no-images").exit_code == 0  # its own page is replaced
    assert "data:image/" not in Path("things-report.html").read_text()
    opened.remove("things", with_errors=True)
    assert not kept.exists() and not kept.with_suffix(".json").exists()


def test_json_and_other_files(things):
    document = read("report", things, "--out", "a.json", "--out", "b.html", "--no-library")
    assert document["written"] == ["a.json", "b.html"] and document["label_issues"][0]["image"] == "green/wrong.jpg"
    assert not Path("things-report.html").exists()
    check_schema(document)
    check_schema(json.loads(Path("a.json").read_text()))
    assert read("report", things, "--out", "a.json", "--no-library")["failed"] == []  # its own data is replaced


def test_a_finding_fails_only_if_it_is_named(things):
    for checks, failed in (("leaks", []), ("copies, leaks", ["copies"]), ("copies,leaks,labels", ["copies", "labels"])):
        document = read("report", things, "--fail-on", checks, "--no-library", code=6 if failed else 0)
        assert document["failed"] == failed and Path("things-report.html").exists()
    refuse("not a check", "report", things, "--fail-on", "copys")
    result = call("report", things, "--fail-on", "labels", "--no-library")
    assert result.exit_code == 6 and "failed: 1 labels (--fail-on)" in result.stderr and "written:" in result.stdout


def test_corrections_become_a_table_that_reports_and_recommendations_read(things):
    assert call("report", things, "--corrections", "fix.csv").exit_code == 0
    text = Path("fix.csv").read_text()
    Path("fix.csv").write_text(text.replace("green,red,label,,", "green,red,label,relabel,"))
    refuse("--corrections 'fix.csv' exists", "report", things, "--corrections", "fix.csv")  # it holds decisions
    assert read("apply", "fix.csv", "--out", "fixed.csv")["relabelled"] == 1
    refuse("exists and would be overwritten", "apply", "fix.csv", "--out", "fixed.csv")
    result = call("apply", "fix.csv", "--out", "fixed.csv", "--force")
    command = result.stdout.splitlines()[-1].strip()
    assert (
        "kept 62, relabelled 1, removed 0" in result.stdout and command == "task2vec report fixed.csv --baseline last"
    )
    document = read(*shlex.split(command)[1:])
    assert [finding["kind"] for finding in document["changes"]["solved"]] == ["label"]
    assert document["label_issues"] == [] and document["images"] == 63
    assert read("embed", "fixed.csv", *SMALL)["task"] == "fixed"
    Path("fix.csv").write_text(text.replace("green,red,label,,", "green,red,label,perhaps,"))
    refuse("'perhaps' is unknown", "apply", "fix.csv", "--out", "again.csv", code=3)
    refuse("is not a CSV file", "apply", "fix.csv", "--out", "again.html")


def run_all(suggestions, **names):
    """Runs every suggested command: on the command line, or as Python."""
    assert suggestions
    for suggestion in suggestions:
        words = shlex.split(suggestion["command"])
        if words[0] == "task2vec":
            quick = {"recommend": QUICK, "embed": SMALL}.get(words[1], ())
            result = call(*words[1:], *quick, *(["--force"] if "--corrections" in words else []))
            assert result.exit_code == 0, (suggestion["command"], result.stderr)
        else:
            eval(suggestion["command"], {"t2v": task2vec, **names})


def list_commands(document):
    """Suggestions of a report, and the other commands that its page names."""
    (note,) = (note for note in document["recommendation"]["notes"] if note.startswith("To measure more models"))
    return [*document["suggestions"], {"command": note.partition(": ")[2]}, {"command": document["embed_command"]}]


def test_suggestions_for_a_folder_a_table_and_a_name_can_be_run(things):
    run_all(list_commands(read("report", things)))
    rows = [f"{path};{path.parent.name};x" for path in sorted(things.rglob("*.jpg"))]
    Path("my table.csv").write_text("\n".join(["where;what;other", *rows]))
    options = ("--path-column", "where", "--label-columns", "what")
    commands = list_commands(read("report", "my table.csv", *options))
    assert all("--label-columns what" in suggestion["command"] for suggestion in commands)
    run_all(commands)
    by_name = read("report", "things")
    assert by_name["task"] == "things" and by_name["images"] == 63
    run_all(list_commands(by_name))


def test_suggestions_for_what_is_in_memory_can_be_run(things, opened):
    task = task2vec.read_folder(things)
    rows = [(task.images.load(number), int(task.targets[number])) for number in range(len(task))]
    memory = task2vec.from_dataset(rows, name="memory")
    for subject in (task, memory):
        result = task2vec.report(subject, make_tiny(), device="cpu", library=opened)
        commands = list_commands(result.to_dict())
        assert all(suggestion["command"].startswith(("t2v.", "report.", "library.")) for suggestion in commands)
        names = {"task": subject, "report": result, "library": opened}
        heavy = ("t2v.recommend(task)", "library.add(t2v.embed(task))")
        run_all([row for row in commands if row["command"] not in heavy or subject is memory], **names)


def test_splits_are_compared(tmp_path):
    make_folder(tmp_path / "set" / "train", images=6)
    make_folder(tmp_path / "set" / "test", images=4, start=40)
    save(paint("blue", 1), tmp_path / "set" / "test" / "blue" / "leak.jpg")
    found = read("report", "set", "--no-library")
    assert found["task"] == "set (train)" and found["copies"][0]["images"][-1] == "test: blue/leak.jpg"
    other = read("report", "set/test", "set/train", "--no-library", "--out", "c.html")
    assert other["images"] == 13 and set(other["copies"][0]["splits"]) == {"", "train"}
    shown = call("report", "set", "--no-library", "--fail-on", "leaks")
    assert "--split NAME" in shown.stderr and shown.exit_code == 6 and "1 group in two splits" in shown.stdout
    command = next(
        line.strip() for line in shown.stdout.splitlines() if line.strip().endswith("--corrections corrections.csv")
    )
    assert call(*shlex.split(command)[1:]).exit_code == 0
    assert "set/test/blue/leak.jpg,blue,keep," in Path("corrections.csv").read_text()


def test_commands_have_the_options_of_this_one(things):
    rows = [f"{path};{path.parent.name};x" for path in sorted(things.rglob("*.jpg"))]
    Path("-my table.csv").write_text("\n".join(["where;what;other", *rows]))
    options = ("--path-column", "where", "--label-columns", "what", "--root", "/", "--no-library")
    result = call("report", *options, "--", "-my table.csv")
    assert result.exit_code == 0, result.stderr
    command = next(
        line.strip() for line in result.stdout.splitlines() if line.strip().endswith("--corrections corrections.csv")
    )
    assert shlex.split(command)[:3] == ["task2vec", "report", "./-my table.csv"]
    assert call(*shlex.split(command)[1:]).exit_code == 0 and Path("-my table-report.html").exists()


def test_a_split_in_the_current_folder_and_names_with_dots(tmp_path, monkeypatch):
    for number, name in enumerate(("v.1", "v.2")):
        make_folder(tmp_path / name, images=4, start=10 * number)
    monkeypatch.chdir(tmp_path / "v.2")
    assert read("report", "../v.1", ".", "--no-library")["images"] == 12
    assert Path("v.1-report.html").exists()


def test_nothing_is_lost_and_nothing_is_guessed(things):
    Path("things-report.html").write_text("my own notes")
    refuse("exists and would be overwritten", "report", things)
    assert Path("things-report.html").read_text() == "my own notes"
    refuse("unknown format", "report", things, "--out", "report.pdf")
    refuse("is not a CSV file", "report", things, "--corrections", "fix.html", "--out", "x.html")
    refuse("does not exist", "report", "nowhere")


def test_hugging_face_files_are_read(things):
    datasets = pytest.importorskip("datasets", reason="an extra: pip install 'task2vec[huggingface]'")
    files = sorted(path for path in things.rglob("*.jpg") if path.name != "broken.jpg")
    images = [{"bytes": path.read_bytes(), "path": None} for path in files]
    rows = {"image": images, "label": [path.parent.name for path in files]}
    made = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).class_encode_column("label")
    datasets.DatasetDict(train=made, test=made.select(range(0, 45, 3))).save_to_disk("saved")
    same = read("report", things, "--no-library")["fingerprint"]
    assert read("report", "saved", "--split", "train", "--no-library")["fingerprint"] == same
    made.to_parquet("one.parquet")
    assert read("report", "one.parquet", "--no-library")["fingerprint"] == same
    refuse("train", "report", "saved", "--no-library")


@pytest.mark.parametrize(
    "options",
    [
        ("sites", "--label-level", "2", "--group-level", "1"),
        ("sites", "--label-pattern", r"/(?P<label>[a-z]+)/\w+ ?", "--group", r"^(site '.')/"),
        ("my table.txt", "--no-header", "--separator", "space", "--path-column", "2", "--label-columns", "1"),
        ("my table.csv", "--root", ".", "--label-columns", "kind", "--group=-id"),
        ("flat", "--label-columns", "kind"),
    ],
    ids=lambda options: " ".join(options)[:30],
)
def test_suggested_commands_read_the_same_task(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    plant(make_folder(Path("sites", "site 'a'")))
    make_folder(Path("sites", "site 'b'"), start=50)
    files = sorted(path for path in Path("sites").rglob("*.jpg") if path.name != "broken.jpg")
    Path("flat").mkdir()
    for number, path in enumerate(files):
        shutil.copy(path, f"flat/{number}.jpg")
    rows = [(f"flat/{number}.jpg", path.parent.name, number // 3) for number, path in enumerate(files)]
    Path("my table.txt").write_text("".join(f"{kind} {path}\n" for path, kind, _ in rows))
    Path("my table.csv").write_text("path,kind,-id\n" + "".join(f"{path},{kind},{name}\n" for path, kind, name in rows))
    Path("flat", "about.csv").write_text("n,kind,size\n" + "".join(f"{n},{row[1]},3\n" for n, row in enumerate(rows)))
    document = read("report", *options, "--no-library")
    commands = {suggestion["command"] for suggestion in document["suggestions"]}
    (measuring,) = (command for command in commands if command.startswith("task2vec recommend "))
    (listing,) = (command for command in commands if "--corrections" in command)
    again = read(*shlex.split(listing)[1:], "--out", "again.html")
    assert again["fingerprint"] == document["fingerprint"]
    advice = read(*shlex.split(measuring)[1:], "--no-measure", "--offline")
    assert advice["images"] == document["images"]
