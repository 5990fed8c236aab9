"""Data attacks D1 to D11: whatever lies in a folder, a table or a dataset, the answer is defined and named."""

import csv
import io
import itertools
import os
import re
import shutil
import struct
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from task2vec.distance import DistanceMatrix
from task2vec.embedding import EmbedSettings, embed
from task2vec.errors import BadImagesError, DataChangedError, DataError
from task2vec.metatask import MetaTask, ModelInfo, TaskInfo
from task2vec.tasks import from_dataset, images, read_folder, read_table
from task2vec.tasks.images import FORMATS, decode, digest_pixels
from tests.failures import refuse
from tests.hostile.workers import Worker, read_bad_folders
from tests.tasks.pictures import make_folder, paint
from tests.tasks.shades import facts
from tests.tiny_probe import make_tiny

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of this kind are not there")


# --- D1, D2, D3: folders that are no task ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: root / "nowhere", "nowhere does not exist"),
        (lambda root: paint(root / "x.png", 1), r"not a folder.*read_table"),
        (lambda root: root, "has no folder"),
        (lambda root: paint(root / "x.png", 1).parent, "1 images lie in it directly"),
        (lambda root: make_folder(root, a=0, b=0), "no images"),
        (lambda root: make_folder(root, cats=2, dogs=2, birds=0), r"1 of 3 classes have no readable image .'birds'"),
    ],
)
def test_d1_what_is_no_folder_of_classes_is_refused(tmp_path, make, message):
    refuse(DataError, message, read_folder, make(tmp_path))


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a process of its own says of a folder of one class, and of one with bombs; and its peak memory."""
    single, bombs = make_folder(tmp_path_factory.mktemp("one"), cats=3), tmp_path_factory.mktemp("bombs")
    make_folder(bombs, cats=20, dogs=20)
    assert write_bomb(bombs / "cats" / "900.png", 30_000, 30_000).stat().st_size < 150_000
    write_bomb(bombs / "dogs" / "144.png", 12_000, 12_000)
    worker = Worker(read_bad_folders, single=single, bombs=bombs)
    assert worker.wait() == 0, worker.said
    return worker.said


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_d2_one_class_is_refused_before_torch_is_needed(said):
    has_torch, words = said[0]
    assert not has_torch and "only one class ('cats')" in words


def test_d3_a_class_with_one_image_is_warned_of_and_left_out_when_decoding_empties_it(tmp_path):
    task = read_folder(make_folder(tmp_path, cats=10, dogs=10, owls=1))
    assert task.counts.tolist() == [10, 10, 1] and "single image: 'owls'" in task.warnings[0]
    (tmp_path / "owls" / "000.png").write_bytes(b"hoo")
    task = read_folder(tmp_path)
    assert (task.classes, task.counts.tolist()) == (("cats", "dogs"), [10, 10])
    assert [item.path for item in task.bad] == ["owls/000.png"]
    assert task.warnings == ("classes without an image, left out: 'owls'; their only image cannot be read",)
    make_folder(tmp_path / "two", cats=40, dogs=2, owls=2)
    for number in range(2):  # a class of several images is never left out
        ruin(tmp_path / "two" / "dogs" / f"00{number}.png", "garbage")
    refuse(DataError, r"'dogs'.*dogs/000.png.*not a JPEG", read_folder, tmp_path / "two", allow_bad=True)


# --- D4: unreadable files --------------------------------------------------------------------------------------------


def ruin(path: Path, how: str) -> None:
    ruins = {"truncated": path.read_bytes()[:40], "garbage": os.urandom(200), "empty": b"", "text": b"<html>404</html>"}
    path.write_bytes(ruins[how])


@pytest.mark.parametrize(
    ("how", "place"),
    [("truncated", "cats/000.png"), ("garbage", "dogs/009.png"), ("empty", "dogs/000.png"), ("text", "cats/009.png")],
)
def test_d4_an_unreadable_file_is_listed_and_moves_no_other_label(tmp_path, how, place):
    make_folder(tmp_path, cats=10, dogs=10)
    expected = {path: kind for path, kind in facts(read_folder(tmp_path)) if path != place}
    ruin(tmp_path / place, how)
    task = read_folder(tmp_path)
    assert [item.path for item in task.bad] == [place] and task.bad[0].reason
    assert dict(facts(task)) == expected
    for index in range(len(task)):
        shade = 1000 * task.targets[index] + int(task.images.name(index)[-7:-4])
        assert task.images.load(index).getpixel((0, 0)) == (shade % 256, shade // 256, 7)


def test_d4_more_than_five_percent_stop_the_reading_unless_it_is_a_single_file(tmp_path):
    make_folder(tmp_path / "small", cats=3, dogs=3)
    ruin(tmp_path / "small" / "cats" / "000.png", "truncated")
    task = read_folder(tmp_path / "small")
    assert (task.counts.tolist(), [item.path for item in task.bad]) == ([2, 3], ["cats/000.png"])
    ruin(tmp_path / "small" / "dogs" / "000.png", "truncated")
    refuse(BadImagesError, "2 of 6 images", read_folder, tmp_path / "small")
    root = make_folder(tmp_path / "large", cats=20, dogs=20)
    (root / "cats" / "002.png").rename(root / "cats" / "002.jpg")  # misnamed, and still an image
    for number in range(2):
        ruin(root / "cats" / f"{number:03}.png", "truncated")
    assert len(read_folder(root)) == 38  # exactly 5 %
    ruin(root / "dogs" / "000.png", "garbage")
    error = refuse(BadImagesError, r"3 of 40 images.*cats/000.png.*--allow-bad", read_folder, root)
    assert [item.path for item in error.bad] == ["cats/000.png", "cats/001.png", "dogs/000.png"]
    assert error.exit_code == 3
    task = read_folder(root, allow_bad=True)
    assert (task.counts.tolist(), len(task.bad)) == ([18, 19], 3)


@needs_links
def test_d4_a_pipe_or_a_file_of_terabytes_named_like_an_image_is_not_read(tmp_path):
    make_folder(tmp_path, cats=20, dogs=20)
    with (tmp_path / "cats" / "huge.png").open("wb") as file:
        file.truncate(2**40)
    os.mkfifo(tmp_path / "cats" / "pipe.png")
    os.mkfifo(tmp_path / "cats" / "pipe")
    huge, pipe = read_folder(tmp_path).bad
    assert "1099511627776 bytes" in huge.reason
    assert (pipe.path, pipe.reason) == ("cats/pipe.png", "it is not a regular file")
    assert "'cats/pipe'" in read_folder(tmp_path).warnings[0]


WHOLE = {}
for form in FORMATS:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)).save(buffer, form)
    WHOLE[form] = buffer.getvalue()
CHANGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@settings(max_examples=80, deadline=None)
@given(form=st.sampled_from(FORMATS), changes=CHANGES)
def test_d4_any_damage_gives_an_image_or_a_reason(form, changes):
    data = bytearray(WHOLE[form])
    for place, value in changes:
        data[place % (64 if place % 2 else len(data))] = value  # headers are where it hurts
    try:
        assert decode(bytes(data)).mode == "RGB"
    except DataError as error:
        assert str(error)


# --- D5: image bombs -------------------------------------------------------------------------------------------------


def write_bomb(path: Path, width: int, height: int) -> Path:
    """A black 1-bit PNG of the given size in a few kilobytes."""
    header, rows = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0), bytes((width // 8 + 1) * height)
    content = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + header, b"IDAT" + zlib.compress(rows), b"IEND"):
        content += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    path.write_bytes(content)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_d5_bombs_are_refused_at_the_header_in_little_memory(said):
    _, *bombs, (peak,) = said
    assert bombs == [
        ("cats/900.png", "its header claims more than 50 megapixels"),
        ("dogs/144.png", "its header claims 12000 x 12000 pixels, more than 50 megapixels"),
    ]
    assert peak < 120  # megabytes; promised is 1 GB, but decoding the smaller one would take 144 MB alone


def test_d5_a_bomb_in_a_dataset_is_refused_too(tmp_path):
    bomb = write_bomb(tmp_path / "x.png", 10_000, 6_000)
    with Image.open(bomb) as image:
        refuse(DataError, r"item 1: .*10000 x 6000", from_dataset, [(Image.new("RGB", (4, 4)), 0), (image, 1)])


# --- D6: links -------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    """A folder of two classes, with its links resolved, beside one that nobody was asked to read."""
    make_folder(tmp_path / "outside", secret=3)
    return make_folder(tmp_path.resolve() / "root", cats=30, dogs=30)


@needs_links
def test_d6_a_loop_of_links_is_not_followed(root):
    links = {"cats/loop": "", "cats/self": "cats", "round": "", "broken": "absent", "../alias": ""}
    links |= {"cats/gone.png": "absent.png", "cats/self.png": "cats/self.png"}
    for place, target in links.items():
        (root / place).symlink_to(root / target)
    task = read_folder(root / "../alias")  # a root that is a link is read
    assert (task.classes, len(task)) == (("cats", "dogs"), 60)
    assert "not followed: 3, such as 'cats/loop'" in task.warnings[1]
    gone, itself = task.bad
    assert (gone.path, gone.reason) == ("cats/gone.png", "there is no such file")
    assert itself.path == "cats/self.png" and "cannot be read" in itself.reason


@needs_links
def test_d6_links_out_of_the_root_are_bad(root):
    secret = root.parent / "outside" / "secret"
    for name, target in {"leak.png": secret / "000.png", "leak": secret, "plain": secret / "001.png"}.items():
        (root / "cats" / name).symlink_to(target)
    task = read_folder(root)
    assert (task.counts.tolist(), [item.path for item in task.bad]) == ([30, 30], ["cats/leak", "cats/leak.png"])
    assert all("out" in item.reason for item in task.bad) and "'cats/plain'" in task.warnings[0]
    (root / "birds").symlink_to(secret)
    refuse(DataError, "birds is a link that leads out", read_folder, root)


@needs_links
@pytest.mark.parametrize(("outside", "is_moved"), [("elsewhere", True), ("elsewhere", False), ("root2", False)])
def test_d6_a_folder_that_becomes_a_link_out_of_the_root_is_not_read(root, outside, is_moved):
    """Also to a place whose name begins like the root's."""
    assert images.read_inside(root, "cats/000.png")
    if is_moved:
        (root / "cats").rename(root.parent / outside)
    else:
        shutil.rmtree(root / "cats")
        make_folder(root.parent, **{outside: 3})  # a file system may give it the number of the other
    (root / "cats").symlink_to(root.parent / outside)
    refuse(DataError, "out of the root", images.read_inside, root, "cats/000.png")


def test_d6_a_table_cannot_reach_out_of_its_root(root):
    """If it has one: paths of the user's own table may lead anywhere."""
    escapes = ["../outside/secret/000.png", f"{root.parent}/outside/secret/001.png", "cats/\0.png", "x" * 5000]
    rows = [f"{path},b" for path in escapes] + ["cats/000.png,a", f"{root}/cats/001.png,b"]
    (root / "t.csv").write_text("\n".join(["path,kind", *rows]) + "\n")
    for made in (root / "t.csv", {"path": [row.split(",")[0] for row in rows], "kind": [row[-1] for row in rows]}):
        task = read_table(made, root=root, allow_bad=True)
        assert [item.path for item in task.bad] == escapes and len(task) == 2
        assert ["out of the root" in item.reason for item in task.bad] == [True, True, False, False]


def test_d6_a_table_that_is_found_beside_images_cannot_reach_out_of_their_folder(root):
    shutil.copytree(root / "cats", root / "flat")
    rows = [f"{name},{'ab'[number % 2]}" for number, name in enumerate(sorted(os.listdir(root / "flat")))]
    escapes = ["../../outside/secret/000.png", f"{root.parent}/outside/secret/001.png"]
    (root / "flat" / "labels.csv").write_text("\n".join(["file,kind", *rows, *(f"{path},a" for path in escapes)]))
    task = read_folder(root / "flat", allow_bad=True)
    assert (len(task), [item.path for item in task.bad]) == (30, escapes)
    assert all("out of the root" in item.reason for item in task.bad)
    secret = root.parent / "outside" / "labels.csv"
    secret.write_text("\n".join(["file,kind", *rows]))
    (root / "flat" / "labels.csv").unlink()
    (root / "flat" / "labels.csv").symlink_to(secret)
    refuse(DataError, "no table in it or beside it", read_folder, root / "flat")


@needs_links
def test_d6_the_users_own_table_names_any_regular_file_but_no_link_out_of_its_folder(root, monkeypatch):
    outside = root.parent / "outside" / "more"
    make_folder(outside, x=20)
    links = {
        "x/leak.png": root / "cats" / "000.png",
        "x/inner.png": outside / "x" / "000.png",
        "x/zero.png": "/dev/zero",
    }
    for link, target in links.items():
        (outside / link).symlink_to(target)
    (root / "cats" / "leak.png").symlink_to(outside / "x" / "000.png")
    os.mkfifo(outside / "x" / "pipe.png")
    good = [f"{outside}/x/{number:03}.png" for number in range(20)] + [
        f"../outside/more/x/{n:03}.png" for n in range(20)
    ]
    good += [f"{outside}/x/inner.png", "cats/000.png", f"{root}/cats/001.png"]
    bad = [f"{outside}/x/leak.png", f"{outside}/x/zero.png", f"{outside}/x/pipe.png", "cats/leak.png", "../\0/x.png"]
    rows = [(path, "ab"[number % 2]) for number, path in enumerate(good + bad)]
    (root / "t.csv").write_text("\n".join(["path,kind", *map(",".join, rows)]))
    monkeypatch.chdir(root)
    for made in (root / "t.csv", {"path": good + bad, "kind": [kind for _, kind in rows]}):
        task = read_table(made, allow_bad=True)
        assert (len(task), [item.path for item in task.bad]) == (len(good), bad)
        reasons = [item.reason for item in task.bad]
        assert ["out of the root" in reason for reason in reasons] == [True, True, False, True, False]
        assert "not a regular file" in reasons[2] and "null" in reasons[4]


# --- D7: odd images, one folder with all of them ---------------------------------------------------------------------


def test_d7_every_kind_of_image_has_a_defined_result(tmp_path):
    folder = make_folder(tmp_path, plain=2, odd=0) / "odd"
    turned = Image.Exif()
    turned[0x0112] = 6
    blue = {"save_all": True, "append_images": [Image.new("RGB", (4, 4), "blue")]}
    wanted = {}
    for name, image, size, colour, options in (
        ("16bit.png", Image.fromarray(np.full((4, 4), 257 * 40, dtype=np.uint16)), (4, 4), (40, 40, 40), {}),
        ("cmyk.tif", Image.new("CMYK", (4, 4), (0, 0, 255, 0)), (4, 4), (255, 255, 0), {}),
        ("rgba.png", Image.new("RGBA", (4, 4), (9, 9, 9, 0)), (4, 4), (255, 255, 255), {}),
        ("palette.png", Image.new("RGB", (4, 4), (1, 2, 3)).quantize(2), (4, 4), (1, 2, 3), {}),
        ("1bit.png", Image.new("1", (4, 4), 1), (4, 4), (255, 255, 255), {}),
        ("turned.png", Image.new("L", (8, 4), 5), (4, 8), (5, 5, 5), {"exif": turned}),
        ("animated.gif", Image.new("RGB", (4, 4), "red"), (4, 4), (255, 0, 0), blue),
        ("one.bmp", Image.new("RGB", (1, 1), (7, 8, 9)), (1, 1), (7, 8, 9), {}),
        ("thin.png", Image.new("RGB", (10_000, 2), (3, 2, 1)), (10_000, 2), (3, 2, 1), {}),
    ):
        image.save(folder / name, **options)
        wanted[f"odd/{name}"] = "RGB", size, colour
    task = read_folder(tmp_path)
    assert task.bad == ()
    found = {task.images.name(index): task.images.load(index) for index in range(len(task))}
    assert {name: (found[name].mode, found[name].size, found[name].getpixel((0, 0))) for name in wanted} == wanted


# --- D8: names -------------------------------------------------------------------------------------------------------

NAMES = ["Ünïcødé 猫 🐈", " spaces  inside ", "line\nbreak", "<script>alert(1)<", "=cmd()", "-rf", "%s{0}", "[red]x"]
PATHS = ["../../etc/passwd", "</script>", "a/b", "carriage\r\nreturn", "..", "C:\\x", "\x1b[31mred", "'; DROP TABLE"]


@needs_links
def test_d8_names_of_class_folders_and_in_tables_are_kept_verbatim_and_touch_no_file(tmp_path):
    task = read_folder(make_folder(tmp_path / "folder", **dict.fromkeys(NAMES, 2)))
    assert task.classes == tuple(sorted(NAMES))
    assert dict(facts(task)) == {f"{kind}/{index:03}.png": kind for kind in NAMES for index in range(2)}
    assert task.images.load(len(task) - 1).size == (6, 6)
    rows = {f"images/{index:03}.png": kind for index, kind in enumerate(NAMES + PATHS)}  # no folder has such a name
    make_folder(tmp_path, images=len(rows))
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "kind"], *rows.items()])
    before = sorted(tmp_path.rglob("*"))
    task = read_table(tmp_path / "t.csv")
    assert dict(facts(task)) == rows
    assert sorted(tmp_path.rglob("*")) == before


def test_d8_messages_show_odd_names_as_text(tmp_path):
    task = read_folder(make_folder(tmp_path, **{"line\nbreak": 1, "\x1b[31mred": 1}))
    assert task.warnings and not set("\n\x1b") & set("".join(task.warnings))
    ruin(tmp_path / "line\nbreak" / "000.png", "empty")
    assert "\n" not in str(refuse(DataError, None, read_folder, tmp_path)).replace(str(tmp_path), "")


FORMULAS = ["=cmd()", "+1", "-rf", "@sum", "\tx"]


def read_cells(path):
    """The cells of a CSV, none of which a spreadsheet would run."""
    with path.open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if re.match(r"[=+@\t\r-](?!\d*\.\d+$)", cell)]
    return cells


def test_d8_no_cell_of_a_csv_is_a_formula(tmp_path):
    place, names = tmp_path / "x.csv", [f"'{name}" for name in FORMULAS]
    DistanceMatrix(np.zeros((5, 5)), tuple(FORMULAS), tuple(FORMULAS), "symmetric").save_csv(place)
    assert read_cells(place)[1:6] == names
    errors, tasks = np.full((1, 5, 1, 1), 0.5), (TaskInfo("=cmd()", fingerprint="f" * 64),)
    models, shares = tuple(map(ModelInfo, FORMULAS)), np.zeros((1, 5))
    seen = {"shares_images": shares, "shares_labels": shares > 0}
    hostile = MetaTask("=x", tasks, models, ("-p",), (0,), errors, errors, errors, **seen)
    assert {*names, "'-p"} <= set(read_cells(hostile.to_csv(place)))


# --- D9: labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [-1, 2, 0.5, float("nan"), float("inf"), None, "1"])
def test_d9_a_wrong_label_of_a_dataset_is_refused_by_its_item(label):
    pairs = [(np.full((2, 2, 3), index, np.uint8), index % 2) for index in range(4)]
    pairs[2] = (pairs[2][0], label)
    refuse(DataError, "item [0-2]", from_dataset, pairs, classes=["a", "b"])


@pytest.mark.parametrize("cell", ["-1", "2", "0.5", "nan", "", "yes"])
def test_d9_a_wrong_cell_of_a_multilabel_table_is_refused_by_its_row(tmp_path, cell):
    make_folder(tmp_path, images=3)
    text = f"path,x,y\nimages/000.png,0,1\nimages/001.png,1,{cell}\nimages/002.png,0,0\n"
    (tmp_path / "t.csv").write_text(text)
    refuse(DataError, "line 3, column 'y': .* is not 0 or 1.*label_columns= ", read_table, tmp_path / "t.csv")


# --- D10: images that tell nothing apart -----------------------------------------------------------------------------


def test_d10_identical_and_black_images_are_read_and_warned_of(tmp_path):
    make_folder(tmp_path, day=3, night=3)
    for place in tmp_path.rglob("*.png"):
        Image.new("RGB", (8, 8)).save(place)
    task = read_folder(tmp_path)
    assert (task.counts.tolist(), len(set(task.digests))) == ([3, 3], 1)
    assert "copies of another: 5" in task.warnings[0] and "different labels" in task.warnings[1]
    assert task.canonical().targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.asarray(task.images.load(0)).max() == 0


# --- D11: data that changes while it is read --------------------------------------------------------------------------


def test_d11_a_file_that_changed_after_reading_stops_the_embedding_by_name(tmp_path):
    task = read_folder(make_folder(tmp_path, cats=8, dogs=8))
    paint(tmp_path / "cats" / "new.png", 9)  # what is added later is not in the task
    settings = EmbedSettings(max_samples=8)
    assert embed(task, make_tiny(), settings=settings).provenance["counts"]["images"] == 16
    victim = tmp_path / "dogs" / "003.png"
    whole, index = victim.read_bytes(), 11
    for change in (
        lambda place: paint(place, 60_000),
        Path.unlink,
        lambda place: place.write_bytes(whole + b"\0"),
        lambda place: place.write_bytes(whole[:40]),
        lambda place: shutil.copyfile(place.with_name("001.png"), place),
    ):
        change(victim)
        error = refuse(DataChangedError, r"dogs/003\.png.*Read the task again", task.images.load, index)
        assert error.exit_code == 3
    refuse(DataChangedError, r"dogs/003\.png", embed, task, make_tiny(), settings=settings)


def test_d11_a_folder_that_is_written_to_all_the_time_gives_one_state_or_an_error(tmp_path):
    """Whoever writes leaves half a file for a moment, as most programs do."""
    make_folder(tmp_path, cats=4, dogs=4)
    victim, is_over, n_whole = tmp_path / "cats" / "002.png", threading.Event(), 0
    states = [victim.read_bytes(), paint(tmp_path / "other.png", 1).read_bytes()]
    digests = [digest_pixels(decode(state)) for state in states]

    def write_again_and_again():
        for number, state in enumerate(itertools.cycle(states)):
            place = victim if number % 5 == 0 else tmp_path / "new.png"
            place.write_bytes(state)
            os.replace(place, victim)
            if is_over.wait(0.001):
                return

    with ThreadPoolExecutor() as pool, ExitStack() as end:
        end.callback(is_over.set)
        writer = pool.submit(write_again_and_again)
        for _ in range(25):
            task = read_folder(tmp_path, allow_bad=True)
            if task.bad:
                assert [bad.path for bad in task.bad] == ["cats/002.png"]  # caught half-written, and named
                continue
            n_whole += 1
            try:
                shade = 2 - digests.index(task.digests[2])  # of the state that was hashed
                assert task.images.load(2).getpixel((0, 0)) == (shade, 0, 7)
            except DataChangedError as error:
                assert "cats/002.png" in str(error)
    assert n_whole and writer.result() is None


STRANGERS = {
    "pipe": (os.mkfifo, "another file"),
    "link": (lambda victim: victim.symlink_to(victim.parents[2] / "secret.png"), "cannot be read"),
    "file": (lambda victim: paint(victim, 60_000), "another file"),
    "shorter": (lambda victim: os.truncate(victim, 20), "its length changed while it was read"),
    "longer": (lambda victim: os.truncate(victim, 2000), "its length changed while it was read"),
}


@needs_links
@pytest.mark.parametrize("stranger", STRANGERS)
def test_d11_what_changes_or_takes_the_place_of_a_file_between_look_and_read_is_not_read(
    tmp_path, monkeypatch, stranger
):
    root = make_folder(tmp_path.resolve() / "root", cats=3, dogs=3)
    paint(tmp_path / "secret.png", 5)
    change, reason = STRANGERS[stranger]
    open_file = os.open

    def change_then_open(path, flags, *mode):
        if path == str(victim := root / "cats" / "001.png"):
            if "length" not in reason:
                victim.rename(root / "kept")
            change(victim)
        return open_file(path, flags, *mode)

    monkeypatch.setattr("os.open", change_then_open)
    task = read_folder(root, allow_bad=True)
    assert [bad.path for bad in task.bad] == ["cats/001.png"] and reason in task.bad[0].reason
    assert task.counts.tolist() == [2, 3]
