"""D11: data that changes while it is read. The result is of one state of every file, or an error that names one."""

import itertools
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from task2vec.embedding import EmbedSettings, embed
from task2vec.errors import DataChangedError, DataError
from task2vec.tasks import images, read_folder
from task2vec.tasks import task as task_module
from tests.embedding.test_methods import make_tiny
from tests.tasks.pictures import make_folder, paint

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of this kind are not there")


def write_new(place: Path) -> None:
    paint(place, 60_000)


def test_d11_a_file_that_changed_after_reading_stops_the_embedding_by_name(tmp_path):
    task = read_folder(make_folder(tmp_path, cats=8, dogs=8))
    victim = tmp_path / "dogs" / "003.png"
    whole, index = victim.read_bytes(), 11
    for change in (
        write_new,
        Path.unlink,
        lambda place: place.write_bytes(whole + b"\0"),
        lambda place: place.write_bytes(whole[:40]),
        lambda place: shutil.copyfile(place.with_name("001.png"), place),
    ):
        change(victim)
        with pytest.raises(DataChangedError, match=r"dogs/003\.png.*Read the task again") as caught:
            task.images.load(index)
        assert caught.value.exit_code == 3
    with pytest.raises(DataChangedError, match=r"dogs/003\.png"):
        embed(task, make_tiny(), settings=EmbedSettings(max_samples=8))


def test_d11_what_is_added_or_renamed_after_reading_is_not_in_the_task(tmp_path):
    task = read_folder(make_folder(tmp_path, cats=8, dogs=8))
    before = embed(task, make_tiny(), settings=EmbedSettings(max_samples=8))
    paint(tmp_path / "cats" / "new.png", 9)
    (tmp_path / "birds").mkdir()
    after = embed(task, make_tiny(), settings=EmbedSettings(max_samples=8))
    assert (before.fisher == after.fisher).all()
    assert after.provenance["counts"]["images"] == 16


def test_d11_a_folder_that_is_written_to_all_the_time_gives_one_state_or_an_error(tmp_path):
    """Whoever writes leaves half a file for a moment, as most programs do."""
    make_folder(tmp_path, cats=4, dogs=4)
    victim, is_over = tmp_path / "cats" / "002.png", threading.Event()
    Image.new("RGB", (6, 6), (1, 1, 1)).save(tmp_path / "other.png")
    states = [victim.read_bytes(), (tmp_path / "other.png").read_bytes()]
    pixels = [(2, 0, 7), (1, 1, 1)]

    def write_again_and_again():
        for number in itertools.count():
            place = victim if number % 5 == 0 else tmp_path / "new.png"
            place.write_bytes(states[number % 2])
            os.replace(place, victim)
            time.sleep(0.001)
            if is_over.is_set():
                return

    writer = threading.Thread(target=write_again_and_again)
    writer.start()
    n_whole = 0
    try:
        for _ in range(25):
            task = read_folder(tmp_path, allow_bad=True)
            if task.bad:
                assert [bad.path for bad in task.bad] == ["cats/002.png"]  # caught half-written, and named
                continue
            n_whole += 1
            expected = pixels[[images.hashlib.sha256(state).hexdigest() for state in states].index(task.digests[2])]
            try:
                assert task.images.load(2).getpixel((0, 0)) == expected  # the very state that was hashed
            except DataChangedError as error:
                assert "cats/002.png" in str(error)
    finally:
        is_over.set()
        writer.join()
    assert n_whole


def change_before_reading(monkeypatch, victim, change):
    """Lets `change` happen to a file after it was looked at, and before it is read."""
    read_as_seen = images._read_as_seen

    def change_then_read(place, seen):
        if place == victim:
            change(victim)
        return read_as_seen(place, seen)

    monkeypatch.setattr(images, "_read_as_seen", change_then_read)


@needs_links
@pytest.mark.parametrize("stranger", ["pipe", "link", "file"])
def test_d11_what_takes_the_place_of_a_file_between_look_and_read_is_not_read(tmp_path, monkeypatch, stranger):
    root = make_folder(tmp_path.resolve() / "root", cats=3, dogs=3)
    secret = paint(tmp_path / "secret.png", 5)

    def swap(victim):
        victim.rename(root / "kept")
        {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(secret), "file": write_new}[stranger](victim)

    change_before_reading(monkeypatch, root / "cats" / "001.png", swap)
    task = read_folder(root, allow_bad=True)
    (bad,) = task.bad
    assert bad.path == "cats/001.png" and ("another file" in bad.reason or "cannot be read" in bad.reason)
    assert task.counts.tolist() == [2, 3]


@pytest.mark.parametrize("size", [20, 2000])
def test_d11_a_file_that_grows_or_shrinks_while_it_is_read(tmp_path, monkeypatch, size):
    root = make_folder(tmp_path.resolve(), cats=3, dogs=3)
    change_before_reading(monkeypatch, root / "cats" / "001.png", lambda victim: os.truncate(victim, size))
    assert [bad.reason for bad in read_folder(root, allow_bad=True).bad] == ["its length changed while it was read"]


def test_d11_a_class_folder_that_goes_away_is_refused(tmp_path, monkeypatch):
    make_folder(tmp_path, cats=3, dogs=3)
    inspect_images = task_module.inspect_images

    def remove_then_inspect(*args, **options):
        for place in (tmp_path / "dogs").iterdir():
            place.unlink()
        return inspect_images(*args, **options)

    monkeypatch.setattr(task_module, "inspect_images", remove_then_inspect)
    with pytest.raises(DataError, match=r"3 of 6 images cannot be read.*dogs/000.png.*no such file"):
        read_folder(tmp_path)
