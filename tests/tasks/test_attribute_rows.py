"""A table of -1, 0 and 1 in blocks of bytes, against the same table word by word."""

import numpy as np
import pytest

from task2vec.errors import DataError
from task2vec.tasks import attribute_rows
from task2vec.tasks.attribute_rows import read_attribute_rows

HEADER = "image_name   attribute_labels\n"


def write(folder, text, count=None):
    place = folder / "list_attr_img.txt"
    count = len(text.splitlines()) if count is None else count
    place.write_bytes(f"{count}\n{HEADER}{text}".encode())
    return place


def read_slowly(place):
    """Paths and values, one word after the other."""
    rows = [line.split() for line in place.read_text().splitlines()[2:] if line.strip()]
    return [row[0] for row in rows], np.array([[int(word) for word in row[1:]] for row in rows])


def unpack(bits, count):
    return np.unpackbits(bits, axis=1, count=count).astype(bool)


@pytest.mark.parametrize("block", [1, 7, 64, 2**22])
@pytest.mark.parametrize("n_attributes", [1, 8, 13])
def test_it_reads_what_a_slow_reader_reads(tmp_path, monkeypatch, block, n_attributes):
    monkeypatch.setattr(attribute_rows, "BLOCK_BYTES", block)
    rng = np.random.default_rng(n_attributes)
    values = rng.integers(-1, 2, (30, n_attributes))
    gaps = ["  ", " ", "   ", "\t"]
    lines = [
        f"img/A_Dress/img_{row:08}.jpg" + "".join(rng.choice(gaps) + str(value) for value in values[row])
        for row in range(30)
    ]
    place = write(tmp_path, "\n".join(lines) + "\n")
    found = read_attribute_rows(place, n_attributes)
    paths, slow = read_slowly(place)
    assert (slow == values).all()
    assert found.paths == paths
    assert (unpack(found.positive, n_attributes) == (slow == 1)).all()
    assert (unpack(found.known, n_attributes) == (slow != 0)).all()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\n\n\n", " \n"])
def test_endings_of_lines_and_files_do_not_matter(tmp_path, ending):
    place = write(tmp_path, f"a.jpg 1 -1{ending.strip(' ') or chr(10)}b.jpg   0   1{ending}", count=2)
    found = read_attribute_rows(place, 2)
    assert found.paths == ["a.jpg", "b.jpg"]
    assert unpack(found.positive, 2).tolist() == [[True, False], [False, True]]
    assert unpack(found.known, 2).tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.jpg 1 -1\nb.jpg 1\n", "line 4: 1 values where there are 2 attributes"),
        ("a.jpg 1 -1\nb.jpg 1 1 1\n", "line 4: 3 values"),
        # Too few here and too many there: the whole number of values is right.
        ("a.jpg 1\nb.jpg 1 1 1\n", "line 3: 1 values"),
        ("a.jpg 1 1 1\nb.jpg 1\n", "line 3: 3 values"),
        ("a.jpg\nb.jpg 1 1 1 1\n", "line 3: 0 values"),
        ("a.jpg 1 -1\n\nb.jpg 1 2\n", "line 5: the value '2' is neither"),
        ("a.jpg 1 -0\nb.jpg 1 1\n", "line 3: the value '-0'"),
        ("a.jpg 1 --1\nb.jpg 1 1\n", "line 3: the value '--1'"),
        ("a.jpg 11\nb.jpg 1 1\n", "line 3: 1 values"),
        ("a.jpg 1 - 1\nb.jpg 1 1\n", "line 3: 3 values"),
        ("a.jpg 1-1 -\nb.jpg 1 1\n", "line 3: the value '1-1'"),
        ("a.jpg 1 +1\nb.jpg 1 1\n", r"line 3: the value '\+1'"),
        ("a.jpg 1 x\nb.jpg 1 1\n", "line 3: the value 'x'"),
        ("a.jpg 1 10\nb.jpg 1 1\n", "line 3: the value '10'"),
        ("a.jpg 1 -1 x\nb.jpg 1 1\n", "line 3: 3 values"),
        ("a.jpg 1 1\n\na.jpg 1 1\n", "line 5: 'a.jpg' stands in line 3 already"),
    ],
)
def test_rows_that_are_wrong_are_named(tmp_path, text, words):
    with pytest.raises(DataError, match=rf"list_attr_img\.txt, {words}"):
        read_attribute_rows(write(tmp_path, text, count=2), 2)


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_line_tells_how_many(tmp_path, count):
    with pytest.raises(DataError, match=f"has 2 entries, and line 1 promises {count}"):
        read_attribute_rows(write(tmp_path, "a.jpg 1\nb.jpg 0\n", count=count), 1)
    with pytest.raises(DataError, match=r"line 1: 'many' is not the number"):
        read_attribute_rows(write(tmp_path, "a.jpg 1\n", count="many"), 1)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="nowhere cannot be read"):
        read_attribute_rows(tmp_path / "nowhere", 1)
    place = tmp_path / "latin.txt"
    place.write_bytes(b"1\n" + HEADER.encode() + b"caf\xe9.jpg 1\n")
    with pytest.raises(DataError, match=r"lines 3 to 3: a path is not UTF-8"):
        read_attribute_rows(place, 1)
