"""`task2vec report`: the files it writes, what it prints, and what it refuses."""

import shlex
import shutil
from pathlib import Path

import pytest

from tests.audit.material import make_folder, paint, plant, save
from tests.cli.material import call, read, refuse

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    return plant(make_folder(tmp_path_factory.mktemp("data") / "things"))


def test_a_page_is_written_and_kept_and_what_to_do_is_printed(things, opened):
    result = call("report", things)
    assert result.exit_code == 0, result.stderr
    page = Path("things-report.html").read_text()
    assert "<h1>things</h1>" in page and "data:image/jpeg" in page
    shown = " ".join(result.stdout.split())
    for words in ("45 images, 3 classes", "1 suspected error", "2 images in 2 groups", "1. Review", "written: things-"):
        assert words in shown, shown
    assert "unreadable" in result.stderr and "broken.jpg" in result.stderr
    assert opened.report_file(opened.task("things").fingerprint).read_text() == page
    assert call("report", things, "--no-images").exit_code == 0  # its own page is replaced
    assert "data:image" not in Path("things-report.html").read_text()


def test_json_and_other_files(things):
    found = read("report", things, "--out", "a.csv", "--out", "b.html", "--no-library")
    assert found["written"] == ["a.csv", "b.html"] and found["label_issues"][0]["image"] == "green/wrong.jpg"
    assert len(Path("a.csv").read_text().splitlines()) == 46 and not Path("things-report.html").exists()


def test_splits_are_compared(tmp_path):
    make_folder(tmp_path / "set" / "train", images=6)
    make_folder(tmp_path / "set" / "test", images=4, start=40)
    save(paint("blue", 1), tmp_path / "set" / "test" / "blue" / "leak.jpg", quality=80)
    found = read("report", "set", "--no-library")
    assert found["task"] == "set (train)" and found["copies"][0]["images"][-1] == "test: blue/leak.jpg"
    other = read("report", "set/test", "set/train", "--no-library", "--out", "c.html")
    assert other["images"] == 13 and set(other["copies"][0]["splits"]) == {"", "train"}
    shown = call("report", "set", "--no-library")
    assert "--split NAME" in shown.stderr
    (command,) = {line.strip() for line in shown.stdout.splitlines() if line.strip().endswith("--out images.csv")}
    assert call(*shlex.split(command)[1:]).exit_code == 0 == call(*shlex.split(command)[1:]).exit_code
    assert "test: blue/leak.jpg" in Path("images.csv").read_text()


def test_commands_have_the_options_of_this_one(things):
    rows = [f"{path};{path.parent.name};x" for path in sorted(things.rglob("*.jpg"))]
    Path("-my table.csv").write_text("\n".join(["where;what;other", *rows]))
    options = ("--path-column", "where", "--label-columns", "what", "--root", "/", "--no-library")
    result = call("report", *options, "--", "-my table.csv")
    assert result.exit_code == 0, result.stderr
    command = next(line.strip() for line in result.stdout.splitlines() if line.strip().endswith("--out images.csv"))
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
    (listing,) = (command for command in commands if "--out images.csv" in command)
    again = read(*shlex.split(listing)[1:], "--out", "again.html")
    assert again["fingerprint"] == document["fingerprint"]
    advice = read(*shlex.split(measuring)[1:], "--no-measure", "--offline")
    assert advice["images"] == document["images"]
