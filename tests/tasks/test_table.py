"""A table of paths and labels becomes a task."""

from pathlib import Path

import pytest

from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.tasks import read_table
from tests.tasks.pictures import paint


def make_images(root: Path) -> Path:
    for number in range(4):
        paint(root / f"{number}.png", number)
    return root


def make_table(root: Path, text: str) -> Path:
    table = make_images(root) / "table.csv"
    table.write_text(text, encoding="utf-8", newline="")
    return table


def test_one_label_column_makes_classes_of_its_values(tmp_path):
    task = read_table(make_table(tmp_path, 'path,kind\n0.png,7\n1.png,-1\n2.png,"a,b"\n\n3.png,7\n'))
    assert (task.classes, task.targets.tolist()) == (("-1", "7", "a,b"), [1, 0, 2, 1])
    assert (task.name, task.source, task.images.name(2)) == ("table", str(tmp_path / "table.csv"), "2.png")
    assert task.images.load(2).getpixel((0, 0)) == (2, 0, 7)


def test_several_label_columns_make_attributes(tmp_path):
    text = "path,note,red,round\n0.png,x,0,1\n1.png,y,1,0\n2.png,z,True,1\n3.png,,1.0,0\n"
    task = read_table(make_table(tmp_path, text), label_columns=["round", "red"])
    assert task.is_multilabel and task.classes == ("round", "red")
    assert task.targets.tolist() == [[1, 0], [0, 1], [1, 1], [0, 1]]
    assert read_table(make_table(tmp_path, "red,path,round\n0,0.png,1\n1,1.png,0\n")).classes == ("red", "round")
    with pytest.raises(DataError, match=r"line 2, column 'note': 'x' is not 0 or 1.*label_columns= \(--label-column"):
        read_table(make_table(tmp_path, "path,note,red\n0.png,x,0\n1.png,y,1\n"))


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("path,label,split\n0.png,a,t\n1.png,b,v\n", "'split'"),
        ("File_Name,Klasse,fold\n0.png,a,t\n1.png,b,v\n", "'fold'"),
        ("image path,target,\n0.png,a,t\n1.png,b,v\n", "''"),
        ("split,Image,category\nt,0.png,a\nv,1.png,b\n", "'split'"),
    ],
)
def test_columns_are_found_by_their_names(tmp_path, text, notes):
    task = read_table(make_table(tmp_path, text))
    assert task.classes == ("a", "b") and task.images.name(1) == "1.png" and notes in task.warnings[0]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_any_delimiter_and_mark_are_found_and_told(tmp_path, delimiter, encoding):
    rows = [("file_name", "Klasse"), ("0.png", "Käfer, rot"), ("1.png", "Biene; groß"), ("2.png", "Biene; groß")]
    text = "\n".join(f'{path}{delimiter}"{label}"' for path, label in rows)
    table = make_images(tmp_path) / ("beetles.tsv" if delimiter == "\t" else "beetles.csv")
    table.write_text(text, encoding=encoding)
    task = read_table(table)
    assert (task.classes, task.targets.tolist()) == (("Biene; groß", "Käfer, rot"), [1, 0, 0])
    (told,) = [note for note in task.notes if "'file_name', labels of 'Klasse'" in note]
    assert (f"separated by {delimiter!r}" in told) == (delimiter != ",")


def test_a_column_of_paths_is_found_by_its_content(tmp_path):
    task = read_table(make_table(tmp_path, "which,image,target\n0.png,17,a\n1.png,18,b\n"), label_columns="target")
    assert task.images.name(1) == "1.png"  # `image` is named like paths, and has numbers
    task = read_table(make_table(tmp_path, "which,label\n0.png,a\n1.png,b\n"))
    assert task.notes == ("paths are those of column 'which', labels of 'label'",)
    task = read_table(make_table(tmp_path, "id,xyz,abc\n7,0.png,a\n8,1.png,b\n9,2.png,b\n"))
    assert task.classes == ("a", "b") and "not used as labels: 'id'" in task.notes[0]  # a number for every row


def test_frames_and_dicts_of_columns(tmp_path, monkeypatch):
    make_images(tmp_path)
    columns = {"path": ["0.png", str(tmp_path / "1.png"), "2.png"], "label": ["a", "b", "a"]}
    monkeypatch.chdir(tmp_path)
    made = [read_table(columns), read_table({**columns, "path": ["0.png", "1.png", "2.png"]}, root=tmp_path)]
    assert made[0].fingerprint == made[1].fingerprint
    assert made[0].name == "dict" and made[0].images.name(0) == "0.png"
    with pytest.raises(BadImagesError, match="out of the root"):
        read_table({"path": ["../0.png", "../1.png"], "label": ["a", "b"]}, root=make_images(tmp_path / "inner"))
    with pytest.raises(UsageError, match="have '2', '3' cells"):
        read_table({**columns, "label": ["a", "b"]})
    with pytest.raises(DataError, match=r"the dict has no column 'path'.*'x', 'y'"):
        read_table({"x": [1], "y": [2]})
    pandas = pytest.importorskip("pandas")
    task = read_table(pandas.DataFrame(columns))
    assert (task.name, task.fingerprint) == ("DataFrame", made[0].fingerprint)


def test_columns_that_remain_unclear_are_named_with_the_option(tmp_path):
    for text, words in (
        ("path,label,class\n0.png,a,x\n1.png,b,y\n", r"'label', 'class'.*--label-column"),
        ("file,image,label\n0.png,1.png,a\n1.png,0.png,b\n", r"may be paths \('file', 'image'\).*--path-column"),
        ("path,split\n0.png,a\n1.png,b\n", r"needs one column of labels.*'path', 'split'.*--label-column"),
        ("where,label\n0,a\n1,b\n", r"has no column 'path'.*'where', 'label'.*--path-column"),
        ("from,to,label\n0.png,1.png,a\n1.png,0.png,b\n", r"may be paths \('from', 'to'\).*--path-column"),
        ("a;b,c;d\n0;1,2;3\n4;5,6;7\n", r"separated by ',' or ';'"),
    ):
        with pytest.raises(DataError, match=words):
            read_table(make_table(tmp_path, text))
    both = read_table(make_table(tmp_path, "path,label,red\n0.png,1,0\n1.png,0,1\n"))
    assert both.is_multilabel and both.classes == ("label", "red")


def test_paths_are_relative_to_the_root_and_columns_have_any_name(tmp_path):
    make_images(tmp_path / "images")
    table = tmp_path / "t.csv"
    table.write_text("\ufefffile;x,kind\n0.png,a\n1.png,b\n", encoding="utf-8")
    task = read_table(table, root=tmp_path / "images", path_column="file;x", label_columns="kind", name="mine")
    assert repr(task) == "Task(mine, 2 images, 2 classes)"
    with pytest.raises(BadImagesError, match="no such file"):
        read_table(table, path_column="file;x")
    with pytest.raises(UsageError, match=r"root .*nowhere is not a folder.*--root"):
        read_table(table, root=tmp_path / "nowhere", path_column="file;x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,kind\n0.png,a\n1.png\n", "line 3: 1 cells where the header has 2"),
        ("path\n0.png\n", "needs one column of labels or more"),
        ("path,kind,kind\n0.png,a,b\n", "two columns with the same name .'kind'"),
        ("path,kind\n0.png,a\n1.png,\n", "line 3, column 'kind': '' is missing"),
        ('path,kind\n\n0.png,"a\n\nb"\n\n1.png,\n', "line 7, column 'kind'"),
        ('path,kind\n0.png,"a\n', "cannot be read as CSV"),
        ("path,kind\n", "no images"),
        ("0.png,a\n1.png,b\n2.png,b\n", "no line with the names of its columns: it begins with '0.png'"),
    ],
)
def test_a_table_that_is_no_task_is_refused_where_it_is_wrong(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_table(make_table(tmp_path, text))


def test_other_files_are_refused(tmp_path):
    (tmp_path / "latin.csv").write_bytes("path,kind\né.png,a\n".encode("latin-1"))
    make_table(tmp_path, "path,x,y\n0.png,0,1\n")
    for name, options, message in (
        ("table.xlsx", {}, r"\.xlsx"),
        ("absent.csv", {}, "not a file"),
        ("latin.csv", {}, "UTF-8"),
        ("table.csv", {"label_columns": ["x", "x"]}, r"each once: path_column= .*\(--path-column, --label-columns\)"),
        ("table.csv", {"label_columns": "z"}, "each once"),
        ("table.csv", {"path_column": "file"}, "each once"),
    ):
        with pytest.raises((DataError, UsageError), match=message):
            read_table(tmp_path / name, **options)


def write_parquet(root: Path, **columns) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = make_images(root) / "table.parquet"
    parquet.write_table(pyarrow.table(columns), table)
    return table


def test_parquet_is_read_like_csv(tmp_path):
    paths = ["0.png", "1.png", "2.png"]
    task = read_table(write_parquet(tmp_path, path=paths, kind=[10, 9, 10]))
    assert (task.classes, task.targets.tolist()) == (("9", "10"), [1, 0, 1])
    many = read_table(write_parquet(tmp_path, path=paths, x=[True, False, True], y=[0, 1, 1], z=[0.0, 1.0, 0.0]))
    assert many.targets.tolist() == [[1, 0, 0], [0, 1, 1], [1, 1, 0]]
    for column, message in (
        (["a", "b", None], "row 3, column 'y'"),
        ([float("nan"), 1.0, 2.0], "row 1, column 'y'"),
        ([0.0, 1.5, 1.0], "row 1, column 'y' holds decimal numbers.*regression is not supported"),
    ):
        with pytest.raises(DataError, match=message):
            read_table(write_parquet(tmp_path, path=paths, y=column))
    table = write_parquet(tmp_path, path=paths, kind=["a", "b", "b"])
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_table(table)


def test_decimal_numbers_are_called_a_regression(tmp_path):
    def read(*cells):
        rows = "".join(f"{number}.png,{cell}\n" for number, cell in enumerate(cells))
        return read_table(make_table(tmp_path, f"path,age\n{rows}"))

    for cells in (["31", "40.5", "22"], ["1e-3", "2", "3"]):
        with pytest.raises(DataError, match=r"column 'age' holds decimal numbers \(such as (40\.5|1e-3)\).*Bin it"):
            read(*cells)
    for cells in (["31", "40", "22"], ["1.5", "f/2", "f/2"], ["1.0", "2.0", "2.0"]):
        assert set(read(*cells).classes) == set(cells)


@pytest.mark.parametrize("column", ["image", "path"])
def test_a_table_that_holds_images_is_called_what_it_is(tmp_path, column):
    images = [{"bytes": b"...", "path": f"{number}.png"} for number in range(2)]
    table = write_parquet(tmp_path, **{column: images, "label": [0, 1]})
    with pytest.raises(DataError, match=rf"Hugging Face.*column '{column}' holds.*from_huggingface\('{table}'\)"):
        read_table(table)
    beside = write_parquet(tmp_path, path=["0.png", "1.png"], thumbnail=images, label=["a", "b"])
    assert read_table(beside, label_columns="label").classes == ("a", "b")
