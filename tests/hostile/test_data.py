"""Data attacks D1 to D10: whatever lies in a folder, a table or a dataset, the answer is defined and named."""

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from task2vec.errors import BadImagesError, DataError
from task2vec.tasks import Task, from_dataset, read_folder, read_table
from task2vec.tasks.images import decode

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of this kind are not there")


def paint(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 6), (shade % 256, shade // 256, 7)).save(path, "PNG")
    return path


def make_folder(root: Path, **counts: int) -> Path:
    for number, kind in enumerate(counts):
        for index in range(counts[kind]):
            paint(root / kind / f"{index:03}.png", 1000 * number + index)
    return root


def labels_by_path(task: Task) -> dict[str, str]:
    return {task.images.name(index): task.classes[label] for index, label in enumerate(task.targets.tolist())}


# --- D1, D2, D3: folders that are no task ----------------------------------------------------------------------------


def test_d1_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        read_folder(tmp_path / "nowhere")


def test_d1_a_file_is_no_folder(tmp_path):
    with pytest.raises(DataError, match=r"not a folder.*read_table"):
        read_folder(paint(tmp_path / "x.png", 1))


def test_d1_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no folder"):
        read_folder(tmp_path)


def test_d1_images_without_classes_are_refused(tmp_path):
    paint(tmp_path / "x.png", 1)
    with pytest.raises(DataError, match="1 images lie in it directly"):
        read_folder(tmp_path)


def test_d1_class_folders_without_images_are_refused(tmp_path):
    for kind in "ab":
        (tmp_path / kind).mkdir()
    with pytest.raises(DataError, match="no images"):
        read_folder(tmp_path)


def test_d2_one_class_is_refused_before_torch_is_needed(tmp_path):
    with pytest.raises(DataError, match=r"only one class .'cats'"):
        read_folder(make_folder(tmp_path, cats=3))
    code = (
        "import sys\nfrom task2vec.tasks import read_folder\nfrom task2vec.errors import DataError\n"
        "try: read_folder(sys.argv[1])\nexcept DataError: sys.exit(7 if 'torch' not in sys.modules else 8)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60).returncode == 7


def test_d3_a_class_with_one_image_is_kept_and_warned_of(tmp_path):
    task = read_folder(make_folder(tmp_path, cats=1, dogs=3))
    assert task.counts.tolist() == [1, 3]
    assert "single image: 'cats'" in task.warnings[0]


def test_d3_an_empty_class_is_refused_by_name(tmp_path):
    (make_folder(tmp_path, cats=2, dogs=2) / "birds").mkdir()
    with pytest.raises(DataError, match=r"1 of 3 classes have no readable image .'birds'"):
        read_folder(tmp_path)


@pytest.mark.parametrize("allow_bad", [False, True])
def test_d3_a_class_that_decoding_empties_is_refused_with_the_reason(tmp_path, allow_bad):
    make_folder(tmp_path, cats=20, dogs=20, owls=1)
    (tmp_path / "owls" / "000.png").write_bytes(b"hoo")
    with pytest.raises(DataError, match=r"'owls'.*owls/000.png.*not a JPEG"):
        read_folder(tmp_path, allow_bad=allow_bad)


# --- D4: unreadable files --------------------------------------------------------------------------------------------


def ruin(path: Path, how: str) -> None:
    whole = path.read_bytes()
    ruins = {
        "truncated": whole[: len(whole) // 2],
        "garbage": os.urandom(200),
        "empty": b"",
        "text": b"<html>404</html>",
    }
    path.write_bytes(ruins[how])


@pytest.mark.parametrize("how", ["truncated", "garbage", "empty", "text"])
@pytest.mark.parametrize("place", ["cats/000.png", "dogs/015.png", "dogs/029.png"])
def test_d4_an_unreadable_file_is_listed_and_moves_no_other_label(tmp_path, how, place):
    make_folder(tmp_path, cats=30, dogs=30)
    expected = {path: kind for path, kind in labels_by_path(read_folder(tmp_path)).items() if path != place}
    ruin(tmp_path / place, how)
    task = read_folder(tmp_path)
    assert [item.path for item in task.bad] == [place]
    assert task.bad[0].reason
    assert labels_by_path(task) == expected
    for index in range(len(task)):
        shade = 1000 * task.targets[index] + int(task.images.name(index)[-7:-4])
        assert task.images.load(index).getpixel((0, 0)) == (shade % 256, shade // 256, 7)


def test_d4_a_misnamed_image_is_read(tmp_path):
    make_folder(tmp_path, cats=3, dogs=3)
    (tmp_path / "cats" / "000.png").rename(tmp_path / "cats" / "000.jpg")
    task = read_folder(tmp_path)
    assert (len(task), task.bad) == (6, ())


def test_d4_more_than_five_percent_stop_the_reading(tmp_path):
    make_folder(tmp_path, cats=20, dogs=20)
    for number in range(2):
        ruin(tmp_path / "cats" / f"{number:03}.png", "truncated")
    assert len(read_folder(tmp_path)) == 38  # exactly 5 %
    ruin(tmp_path / "dogs" / "000.png", "garbage")
    with pytest.raises(BadImagesError, match=r"3 of 40 images.*cats/000.png.*--allow-bad") as caught:
        read_folder(tmp_path)
    assert [item.path for item in caught.value.bad] == ["cats/000.png", "cats/001.png", "dogs/000.png"]
    assert caught.value.exit_code == 3
    task = read_folder(tmp_path, allow_bad=True)
    assert (task.counts.tolist(), len(task.bad)) == ([18, 19], 3)


@needs_links
def test_d4_a_pipe_named_like_an_image_does_not_hang_the_reader(tmp_path):
    make_folder(tmp_path, cats=20, dogs=20)
    os.mkfifo(tmp_path / "cats" / "pipe.png")
    os.mkfifo(tmp_path / "cats" / "pipe")
    task = read_folder(tmp_path)
    assert [(item.path, item.reason) for item in task.bad] == [("cats/pipe.png", "it is not a regular file")]
    assert "'cats/pipe'" in task.warnings[0]


def test_d4_a_file_of_terabytes_is_not_read(tmp_path):
    make_folder(tmp_path, cats=20, dogs=20)
    with (tmp_path / "cats" / "huge.png").open("wb") as file:
        file.truncate(2**40)
    assert "1099511627776 bytes" in read_folder(tmp_path).bad[0].reason


WHOLE = {}
for form in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
    buffer = io.BytesIO()
    Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)).save(buffer, form)
    WHOLE[form] = buffer.getvalue()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("form", WHOLE)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8))
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
    """A 1-bit PNG of the given size in a few kilobytes, written row block by row block."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    rows = bytes((width + 7) // 8 + 1) * 100
    body = b"".join(packer.compress(rows) for _ in range(height // 100)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", body), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_d5_bombs_are_refused_at_the_header_in_little_memory(tmp_path):
    make_folder(tmp_path, cats=30, dogs=30)
    large = write_bomb(tmp_path / "cats" / "900.png", 30_000, 30_000)
    write_bomb(tmp_path / "dogs" / "144.png", 12_000, 12_000)
    assert large.stat().st_size < 150_000
    code = (
        "import sys\nfrom task2vec.tasks import read_folder\n"
        "for item in read_folder(sys.argv[1]).bad: print(item.path, item.reason)\n"
        # Not ru_maxrss, which a child inherits from the process that started it.
        "with open('/proc/self/status') as status: print(*(line.split()[1] for line in status if 'VmHWM' in line))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second, peak = done.stdout.splitlines()
    assert first == "cats/900.png its header claims more than 50 megapixels"
    assert second == "dogs/144.png its header claims 12000 x 12000 pixels, more than 50 megapixels"
    assert int(peak) < 120_000  # kilobytes; promised is 1 GB, but decoding the smaller one would take 144 MB alone


def test_d5_a_bomb_in_a_dataset_is_refused_too(tmp_path):
    bomb = write_bomb(tmp_path / "x.png", 10_000, 6_000)
    with Image.open(bomb) as image, pytest.raises(DataError, match=r"item 1: .*10000 x 6000"):
        from_dataset([(Image.new("RGB", (4, 4)), 0), (image, 1)])


# --- D6: links -------------------------------------------------------------------------------------------------------


@needs_links
def test_d6_a_loop_of_links_is_not_followed(tmp_path):
    make_folder(tmp_path, cats=2, dogs=2)
    (tmp_path / "cats" / "loop").symlink_to(tmp_path)
    (tmp_path / "cats" / "self").symlink_to(tmp_path / "cats")
    (tmp_path / "round").symlink_to(tmp_path)
    task = read_folder(tmp_path)
    assert (task.classes, len(task), task.bad) == (("cats", "dogs"), 4, ())
    assert "not followed: 3, such as 'cats/loop'" in task.warnings[0]


@needs_links
def test_d6_a_link_to_itself_is_bad(tmp_path):
    make_folder(tmp_path, cats=20, dogs=20)
    (tmp_path / "cats" / "self.png").symlink_to(tmp_path / "cats" / "self.png")
    (tmp_path / "broken").symlink_to(tmp_path / "absent")
    (tmp_path / "cats" / "gone.png").symlink_to(tmp_path / "absent.png")
    task = read_folder(tmp_path)
    assert [item.path for item in task.bad] == ["cats/gone.png", "cats/self.png"]
    assert task.bad[0].reason == "there is no such file"
    assert "cannot be read" in task.bad[1].reason


@needs_links
def test_d6_links_out_of_the_root_are_bad(tmp_path):
    root = make_folder(tmp_path / "root", cats=30, dogs=30)
    outside = make_folder(tmp_path / "outside", secret=3) / "secret"
    (root / "cats" / "leak.png").symlink_to(outside / "000.png")
    (root / "cats" / "leak").symlink_to(outside)
    (root / "cats" / "plain").symlink_to(outside / "001.png")
    task = read_folder(root)
    assert (task.counts.tolist(), [item.path for item in task.bad]) == ([30, 30], ["cats/leak", "cats/leak.png"])
    assert all("out" in item.reason for item in task.bad)
    assert "'cats/plain'" in task.warnings[0]
    (root / "birds").symlink_to(outside)
    with pytest.raises(DataError, match="birds is a link that leads out"):
        read_folder(root)


@needs_links
def test_d6_a_root_that_is_a_link_is_read(tmp_path):
    make_folder(tmp_path / "real", cats=2, dogs=2)
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    assert read_folder(tmp_path / "alias").fingerprint == read_folder(tmp_path / "real").fingerprint


def test_d6_a_table_cannot_reach_out_of_its_root(tmp_path):
    root = make_folder(tmp_path / "root", cats=2)
    make_folder(tmp_path / "outside", secret=2)
    escapes = ["../outside/secret/000.png", str(tmp_path / "outside" / "secret" / "001.png"), "cats/\0.png", "x" * 5000]
    rows = [f"{path},b" for path in escapes] + ["cats/000.png,a", f"{root}/cats/001.png,b"]
    (root / "t.csv").write_text("\n".join(["path,kind", *rows]) + "\n")
    task = read_table(root / "t.csv", allow_bad=True)
    assert [item.path for item in task.bad] == escapes
    assert ["out of the root" in item.reason for item in task.bad] == [True, True, False, False]
    assert len(task) == 2


# --- D7: odd images, one folder with all of them ---------------------------------------------------------------------


def test_d7_every_kind_of_image_has_a_defined_result(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(np.full((4, 4), 257 * 40, dtype=np.uint16)).save(folder / "16bit.png")
    Image.new("CMYK", (4, 4), (0, 0, 255, 0)).save(folder / "cmyk.tif")
    Image.new("RGBA", (4, 4), (9, 9, 9, 0)).save(folder / "rgba.png")
    Image.new("RGB", (4, 4), (1, 2, 3)).quantize(2).save(folder / "palette.png")
    Image.new("1", (4, 4), 1).save(folder / "1bit.png")
    Image.new("L", (8, 4), 5).save(folder / "turned.png", exif=turned)
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    Image.new("RGB", (1, 1), (7, 8, 9)).save(folder / "one.bmp")
    Image.new("RGB", (10_000, 2), (3, 2, 1)).save(folder / "thin.png")
    make_folder(tmp_path, plain=2)
    task = read_folder(tmp_path)
    assert task.bad == ()
    found = {task.images.name(index): task.images.load(index) for index in range(len(task))}
    assert {image.mode for image in found.values()} == {"RGB"}
    expected = {
        "16bit.png": ((4, 4), (40, 40, 40)),
        "cmyk.tif": ((4, 4), (255, 255, 0)),
        "rgba.png": ((4, 4), (255, 255, 255)),
        "palette.png": ((4, 4), (1, 2, 3)),
        "1bit.png": ((4, 4), (255, 255, 255)),
        "turned.png": ((4, 8), (5, 5, 5)),
        "animated.gif": ((4, 4), (255, 0, 0)),
        "one.bmp": ((1, 1), (7, 8, 9)),
        "thin.png": ((10_000, 2), (3, 2, 1)),
    }
    for name, (size, colour) in expected.items():
        image = found[f"odd/{name}"]
        assert (name, image.size, image.getpixel((0, 0))) == (name, size, colour)


# --- D8: names -------------------------------------------------------------------------------------------------------

NAMES = [
    "Ünïcødé 猫 🐈",
    " spaces  inside ",
    "line\nbreak",
    "<script>alert(1)<",
    "=cmd()",
    "-rf",
    "%s{0}",
    "[red]x",
]
TABLE_ONLY = [
    "../../etc/passwd",
    "</script>",
    "a/b",
    "carriage\r\nreturn",
    "..",
    "C:\\x",
    "\x1b[31mred",
    "'; DROP TABLE tasks; --",
]


@needs_links
def test_d8_names_of_class_folders_are_kept_verbatim(tmp_path):
    for number, kind in enumerate(NAMES):
        for index in range(2):
            paint(tmp_path / kind / f"{index}.png", 10 * number + index)
    task = read_folder(tmp_path)
    assert task.classes == tuple(sorted(NAMES))
    assert labels_by_path(task) == {f"{kind}/{index}.png": kind for kind in NAMES for index in range(2)}
    assert task.images.load(len(task) - 1).size == (6, 6)


def test_d8_names_in_tables_are_kept_verbatim_and_touch_no_file(tmp_path):
    import csv

    names = NAMES + TABLE_ONLY
    make_folder(tmp_path, images=len(names))
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [[f"images/{index:03}.png", kind] for index, kind in enumerate(names)]
        csv.writer(file).writerows([["path", "kind"], *rows])
    before = sorted(tmp_path.rglob("*"))
    task = read_table(tmp_path / "t.csv")
    assert labels_by_path(task) == {f"images/{index:03}.png": kind for index, kind in enumerate(names)}
    assert sorted(tmp_path.rglob("*")) == before


def test_d8_messages_show_odd_names_as_text(tmp_path):
    for kind in ("line\nbreak", "\x1b[31mred"):
        paint(tmp_path / f"{kind}" / "0.png", 1)
    task = read_folder(tmp_path)
    assert task.warnings
    assert not any(character in text for text in task.warnings for character in "\n\x1b")
    ruin(tmp_path / "line\nbreak" / "0.png", "empty")
    with pytest.raises(BadImagesError) as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value).replace(str(tmp_path), "")


# --- D9: labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [-1, 2, 0.5, float("nan"), float("inf"), None, "1"])
def test_d9_a_wrong_label_of_a_dataset_is_refused_by_its_item(label):
    pairs = [(np.full((2, 2, 3), index, np.uint8), index % 2) for index in range(4)]
    pairs[2] = (pairs[2][0], label)
    with pytest.raises(DataError, match=r"item [0-2]"):
        from_dataset(pairs, classes=["a", "b"])


@pytest.mark.parametrize("cell", ["-1", "2", "0.5", "nan", "", "yes"])
def test_d9_a_wrong_cell_of_a_multilabel_table_is_refused_by_its_row(tmp_path, cell):
    make_folder(tmp_path, images=3)
    text = f"path,x,y\nimages/000.png,0,1\nimages/001.png,1,{cell}\nimages/002.png,0,0\n"
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match="line 3, column 'y'"):
        read_table(tmp_path / "t.csv")


# --- D10: images that tell nothing apart -----------------------------------------------------------------------------


def test_d10_identical_and_black_images_are_read_and_warned_of(tmp_path):
    for kind in ("day", "night"):
        (tmp_path / kind).mkdir()
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / kind / f"{number}.png")
    task = read_folder(tmp_path)
    assert (task.counts.tolist(), len(set(task.digests))) == ([3, 3], 1)
    assert any("copies of another: 5" in text for text in task.warnings)
    assert any("different labels" in text for text in task.warnings)
    assert task.canonical().targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.asarray(task.images.load(0)).max() == 0
