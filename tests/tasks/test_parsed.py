"""The cache of parsed catalogues: used while nothing changes, never believed when it is damaged, never in the way."""

import os
import time
from dataclasses import asdict

import numpy as np
import pytest

import task2vec.tasks.inaturalist as inaturalist
import task2vec.tasks.parsed as parsed
from task2vec.tasks import Catalogue
from task2vec.tasks.definitions import Splits, define_attributes, define_by_taxon, define_groups
from task2vec.tasks.label_tables import AttributeTable, ClassTable
from task2vec.tasks.parsed import find_cache_folder, parse_once
from task2vec.tasks.taxonomy import Taxonomy
from tests.tasks.published import edit, write_inaturalist


def make(folder) -> Catalogue:
    """A catalogue with every part that one can have."""
    classes = ClassTable(np.array([1, 0, 1], np.int32), ("räven", "jay"))
    tree = Taxonomy(("order",), {"räven": ("P",), "jay": ("P",)}, "birds")
    values = np.array([[1, 0], [0, 0], [1, 1]], bool)
    known = np.array([[1, 1], [1, 0], [1, 1]], bool)
    some = AttributeTable.pack(values, ("red", "floral"), known=known, groups=("color", "pattern"))
    whole = AttributeTable.pack(values, ("warm", "cold"))
    splits = Splits(np.array([0, 1, 0], np.uint8), ("train", "val"))
    definitions = (
        *define_by_taxon(classes, tree, splits, ranks=("order",), table_name="kinds"),
        *define_attributes(some, splits, table_name="some"),
        *define_groups(some, splits, table_name="some"),
        *define_attributes(whole, splits, table_name="whole"),
    )
    tables = {"kinds": classes, "some": some, "whole": whole}
    paths = ["a/1.jpg", "ü 2.jpg", "c"]
    return Catalogue("all", folder, paths, splits, tables, definitions, ("all.txt",), tree, ("odd",))


class Parser:
    """Parses and counts how often."""

    def __init__(self, folder):
        self.folder = folder
        self.times = 0

    def __call__(self):
        self.times += 1
        return make(self.folder)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "all.txt"
    file.write_text("content")
    return file


def test_what_comes_back_is_what_was_parsed(tmp_path, source):
    parse = Parser(tmp_path)
    first, second = (parse_once(parse, reader="all 1", files=[source]) for _ in range(2))
    assert parse.times == 1
    assert list(second.paths) == list(first.paths) == ["a/1.jpg", "ü 2.jpg", "c"]
    assert [asdict(one) for one in second.definitions] == [asdict(one) for one in first.definitions]
    assert second.definitions == first.definitions
    assert {one.table for one in second.definitions} == {"kinds", "some", "whole"}
    assert (second.name, second.root, second.sources, second.warnings) == ("all", tmp_path, ("all.txt",), ("odd",))
    assert second.splits.codes.tolist() == [0, 1, 0]
    assert second.splits.names == ("train", "val")
    assert second.taxonomy.lineages == first.taxonomy.lineages
    assert (second.taxonomy.ranks, second.taxonomy.root) == (("order",), "birds")
    kinds, some, whole = second.tables.values()
    assert (kinds.numbers.tolist(), kinds.names) == ([1, 0, 1], ("räven", "jay"))
    assert [some.column(n).tolist() for n in (0, 1)] == [[1, 0, 1], [0, -1, 1]]
    assert (some.groups, whole.known, whole.groups) == (("color", "pattern"), None, ("", ""))


@pytest.mark.parametrize("change", ["content", "time", "reader", "options", "format"])
def test_whatever_changes_is_parsed_again(tmp_path, source, monkeypatch, change):
    parse = Parser(tmp_path)
    told = {"reader": "all 1", "options": {"a": 1}}
    parse_once(parse, files=[source], **told)
    if change == "content":
        status = source.stat()
        source.write_text("content and more")
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(source, ns=(1, 1))
    elif change == "format":
        monkeypatch.setattr(parsed, "FORMAT", parsed.FORMAT + 1)
    else:
        told |= {"reader": {"reader": "all 2"}, "options": {"options": {"a": 2}}}[change]
    parse_once(parse, files=[source], **told)
    assert parse.times == 2
    parse_once(parse, files=[source], **told)
    assert parse.times == 2


def test_a_file_that_changes_while_it_is_parsed_is_not_remembered(tmp_path, source):
    parse = Parser(tmp_path)
    status = source.stat()

    def parse_slowly():
        source.write_text("somebody else was here")
        return parse()

    parse_once(parse_slowly, reader="all 1", files=[source])
    # Now it is again as it was before, but not as it was parsed.
    source.write_text("content")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    parse_once(parse, reader="all 1", files=[source])
    assert parse.times == 2


def test_old_states_do_not_pile_up(tmp_path, source, cache_folder):
    for number in range(4):
        source.write_text("x" * number)
        parse_once(Parser(tmp_path), reader="all 1", files=[source])
    assert len(list(cache_folder.iterdir())) == 1


@pytest.mark.parametrize("place", [0, 7, 8, 60, "middle", -1, "cut", "empty", "garbage"])
def test_a_damaged_cache_is_passed_over_and_written_anew(tmp_path, source, cache_folder, place):
    parse = Parser(tmp_path)
    parse_once(parse, reader="all 1", files=[source])
    (file,) = cache_folder.iterdir()
    content = bytearray(file.read_bytes())
    if place == "cut":
        content = content[:-10]
    elif place == "empty":
        content = b""
    elif place == "garbage":
        content = b"\x80\x04\x95" + os.urandom(500)
    else:
        content[len(content) // 2 if place == "middle" else place] ^= 1
    file.write_bytes(content)
    again = parse_once(parse, reader="all 1", files=[source])
    assert (parse.times, list(again.paths)) == (2, ["a/1.jpg", "ü 2.jpg", "c"])
    parse_once(parse, reader="all 1", files=[source])
    assert parse.times == 2


def test_every_flipped_byte_is_harmless(tmp_path, source, cache_folder):
    """Whatever is flipped, what comes back is what was parsed."""
    parse = Parser(tmp_path)
    parse_once(parse, reader="all 1", files=[source])
    (file,) = cache_folder.iterdir()
    content = file.read_bytes()
    for place in range(0, len(content), 37):
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        found = parse_once(parse, reader="all 1", files=[source])
        assert list(found.paths) == ["a/1.jpg", "ü 2.jpg", "c"]
        assert found.tables["kinds"].numbers.tolist() == [1, 0, 1]
        assert found.find("red").counts == {"train": 2, "val": 1}


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, source, monkeypatch):
    parse = Parser(tmp_path)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert len(parse_once(parse, reader="all 1", files=[source])) == 3
    assert parse.times == 2


def test_a_full_disk_leaves_nothing_behind(tmp_path, source, monkeypatch, cache_folder):
    parse = Parser(tmp_path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert len(parse_once(parse, reader="all 1", files=[source])) == 3
    assert list(cache_folder.iterdir()) == []


def test_orphans_are_swept(tmp_path, source, cache_folder):
    cache_folder.mkdir(parents=True)
    old, new = cache_folder / ".a.partial", cache_folder / ".b.partial"
    for orphan in (old, new):
        orphan.write_text("torn")
    os.utime(old, (time.time() - 1e5,) * 2)
    parse_once(Parser(tmp_path), reader="all 1", files=[source])
    assert (old.exists(), new.exists()) == (False, True)


def test_cache_false_leaves_no_trace(tmp_path, source, cache_folder):
    parse = Parser(tmp_path)
    for _ in range(2):
        parse_once(parse, reader="all 1", files=[source], cache=False)
    assert (parse.times, cache_folder.exists()) == (2, False)


def test_where_the_cache_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_cache_folder() == tmp_path / "task2vec" / "catalogues"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_cache_folder() == tmp_path / "home" / ".cache" / "task2vec" / "catalogues"

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(parsed.Path, "home", homeless)
    assert find_cache_folder() is None


def test_a_reader_uses_the_cache_and_sees_changes(tmp_path, monkeypatch):
    write_inaturalist(tmp_path)
    first = inaturalist.read_inaturalist(tmp_path)
    calls = []
    parse = inaturalist._parse
    monkeypatch.setattr(inaturalist, "_parse", lambda *told: (calls.append(1), parse(*told))[1])
    again = inaturalist.read_inaturalist(tmp_path, name="other")
    assert (calls, again.name, first.name) == ([], "other", "inaturalist2018")
    assert again.definitions == first.definitions
    assert again.task("Corvidae").fingerprint == first.task("Corvidae").fingerprint
    inaturalist.read_inaturalist(tmp_path, cache=False)
    assert len(calls) == 1
    edit(tmp_path / "categories.json", lambda content: [one.update(name=one["name"] + " x") for one in content])
    assert inaturalist.read_inaturalist(tmp_path).find("Corvidae").classes == ("Corvus corax x", "Corvus corone x")
    assert len(calls) == 2
