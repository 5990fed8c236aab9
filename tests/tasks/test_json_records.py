"""Records of large JSON files: any order, any chunks, and every way to be damaged."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import task2vec.tasks.json_records as json_records
import task2vec.tasks.progress as progress_module
from task2vec.errors import DataError
from task2vec.tasks.json_records import read_records

CONTENT = {
    "info": {"year": 2018, "note": 'a "quote", a [bracket] and a \\ backslash'},
    "annotations": [{"id": 1, "image_id": 30, "category_id": 2}, {"id": 2, "image_id": 4, "category_id": 0}],
    "licenses": [{"id": 1, "name": "CC"}, 7, "text"],
    "images": [{"id": 30, "file_name": "a b/é😀.jpg", "latitude": float("nan")}, {"id": 4, "file_name": "c"}],
    "year": 2018,
    "categories": [],
}


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("layout", [{}, {"indent": 3}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_records_come_in_the_order_of_the_file(tmp_path, monkeypatch, chunk, layout):
    monkeypatch.setattr(json_records, "CHUNK", chunk)
    file = write(tmp_path / "a.json", json.dumps(CONTENT, **layout))
    found = list(read_records(file, ["images", "annotations", "categories"]))
    assert [(key, number) for key, number, _ in found] == [
        ("annotations", 0),
        ("annotations", 1),
        ("images", 0),
        ("images", 1),
    ]
    assert [record for *_, record in found[:2]] == CONTENT["annotations"]
    assert [record["file_name"] for *_, record in found[2:]] == ["a b/é😀.jpg", "c"]


@given(
    content=st.dictionaries(
        st.text(max_size=3),
        st.lists(st.dictionaries(st.text(max_size=2), st.integers() | st.text(max_size=4) | st.none(), max_size=3)),
        max_size=4,
    ),
    chunk=st.integers(1, 40),
)
def test_any_records_as_the_standard_library_reads_them(tmp_path_factory, content, chunk):
    file = write(tmp_path_factory.mktemp("any") / "a.json", json.dumps(content))
    before, json_records.CHUNK = json_records.CHUNK, chunk
    try:
        found = list(read_records(file, list(content)))
    finally:
        json_records.CHUNK = before
    assert found == [(key, n, record) for key, records in content.items() for n, record in enumerate(records)]


def test_a_byte_order_mark_and_blanks_are_passed_over(tmp_path):
    file = write(tmp_path / "a.json", b'\xef\xbb\xbf \r\n{\t"images" : [ { "id" : 1 } ] }\n\n')
    assert list(read_records(file, ["images"])) == [("images", 0, {"id": 1})]


WHOLE = '{"info": {"a": 1}, "images": [{"id": 1}, {"id": 2}, {"id": 3}], "annotations": [{"id": 4}]}'


@pytest.mark.parametrize("chunk", [5, 1 << 20])
@pytest.mark.parametrize("end", range(len(WHOLE)))
def test_a_file_cut_anywhere_is_refused(tmp_path, monkeypatch, end, chunk):
    monkeypatch.setattr(json_records, "CHUNK", chunk)
    with pytest.raises(DataError, match=r"a\.json is damaged"):
        list(read_records(write(tmp_path / "a.json", WHOLE[:end]), ["images", "annotations"]))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"at its start: the file ends there"),
        ("[]", r"'\[' stands where '\{' should"),
        ('{"images": [{"id": 1}, {"id": 2', r"'images', record 1: the file ends in the middle of it"),
        ('{"images": [{"id": 1}, {"id": "x', r"'images', record 1: the file ends in the middle of it"),
        ('{"images": [{"id": 1} {"id": 2}]}', r"'images', record 0: '\{' stands where ',' should"),
        ('{"images": [{"id": 1}, {"id" 2}]}', r"'images', record 1: Expecting ':' delimiter"),
        ('{"images": [{"id": 1},]}', r"'images', record 1: Expecting value"),
        ('{"images": [{"id": 1}, 17]}', r"'images', record 1: 17 is no record"),
        (
            '{"images": [{"id": 1}, {"id": 1, "id": 2}]}',
            r"'images', record 1: the key 'id' stands twice in \[\('id'",
        ),
        ('{"images": [{"id": 1, "box": {"a": 1, "b": 2, "a": 1}}]}', r"'images', record 0: the key 'a' stands twice"),
        ('{"images": {"id": 1}}', r"'images': it is no list of records"),
        ('{"images": [], "images": []}', r"'images'.*there already"),
        ('{"info": 1, [2]: []}', r"'info'.*\[2\], which is no key"),
        ('{"images": []} {}', r"something follows"),
        ('{"images": [{"id": ' + "9" * 5000 + "}]}", r"'images', record 0: Exceeds the limit"),
        ('{"images": [' + "[" * 100_000, r"'images', record 0: it is nested too deeply"),
        (b'{"images": [{"id": "\xff"}]}', r"it is not UTF-8"),
        ('{"info": {}, "licenses": []}', r"has no 'images' \(it has 'info', 'licenses'\)"),
    ],
)
def test_damaged_files_are_refused_by_record(tmp_path, text, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        list(read_records(write(tmp_path / "a.json", text), ["images"]))
    assert str(tmp_path / "a.json") in str(caught.value)


def test_a_missing_file_is_said_to_be_missing(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.json is not a file"):
        list(read_records(tmp_path / "nowhere.json", ["images"]))


def test_memory_does_not_grow_with_the_file(tmp_path):
    line = json.dumps({"id": 1, "file_name": "x" * 200})
    file = write(tmp_path / "a.json", '{"images": [' + ",\n".join([line] * 100_000) + "]}")
    assert file.stat().st_size > 20e6
    tracemalloc.start()
    count = sum(1 for _ in read_records(file, ["images"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 8e6


def test_a_missing_quote_does_not_bring_the_whole_file_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(json_records, "LARGEST_RECORD", 1 << 20)
    line = json.dumps({"id": 1, "file_name": "x" * 200})
    file = write(tmp_path / "a.json", '{"images": [{"id: 1}' + ",\n".join([line.replace('"', "'")] * 100_000) + "]}")
    tracemalloc.start()
    with pytest.raises(DataError, match="'images', record 0"):
        list(read_records(file, ["images"]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6


def test_progress_is_shown_by_mebibytes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress_module, "PATIENCE_SECONDS", -1.0)
    started = []
    start = progress_module._start_bar
    monkeypatch.setattr(progress_module, "_start_bar", lambda *told: (started.append(told), start(*told))[1])
    file = write(tmp_path / "big.json", '{"images": [' + " " * (3 << 20) + "]}")
    assert list(read_records(file, ["images"], progress=True)) == []
    assert started == [("reading big.json (MiB)", 4)]
    assert capsys.readouterr().out == ""


def test_brackets_within_records_and_texts_do_not_end_them(tmp_path, monkeypatch):
    records = [{"id": n, "text": "}, {" * (n % 3), "more": [{"deep": {"er": n}}, "]"]} for n in range(200)]
    file = write(tmp_path / "a.json", json.dumps({"images": records, "annotations": records[::-1]}))
    for batch in (1, 5, 50, 333, 1 << 16):
        for chunk in (50, 1000, 1 << 20):
            monkeypatch.setattr(json_records, "BATCH", batch)
            monkeypatch.setattr(json_records, "CHUNK", chunk)
            found = list(read_records(file, ["annotations", "images"]))
            assert [record for *_, record in found] == records + records[::-1]
            assert [number for _, number, _ in found] == [*range(200), *range(200)]


def test_a_repeated_key_within_many_records_is_named_by_its_number(tmp_path):
    records = [json.dumps({"id": n, "name": "x" * 90}) for n in range(30_000)]
    records[21_217] = '{"id": 21217, "name": "x", "id": 3}'
    file = write(tmp_path / "a.json", '{"images": [' + ", ".join(records) + "]}")
    assert file.stat().st_size > json_records.CHUNK
    with pytest.raises(DataError, match="'images', record 21217: the key 'id' stands twice"):
        list(read_records(file, ["images"]))


def test_damage_within_many_records_is_named_by_its_number(tmp_path):
    records = [json.dumps({"id": n}) for n in range(5000)]
    records[3217] = '{"id" 3217}'
    file = write(tmp_path / "a.json", '{"images": [' + ", ".join(records) + "]}")
    with pytest.raises(DataError, match="'images', record 3217: Expecting ':' delimiter"):
        list(read_records(file, ["images"]))
