"""A table of paths and labels becomes a task."""

from pathlib import Path

import pytest

from task2vec.errors import BadImagesError, DataError, UsageError
from task2vec.tasks import read_table
from tests.failures import refuse
from tests.tasks.pictures import paint


def make_images(root: Path) -> Path:
    for number in range(4):
        paint(root / f"{number}.png", number)
    return root


def make_table(root: Path, text: str) -> Path:
    table = make_images(root) / "table.csv"
    table.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
    return table


def test_one_label_column_makes_classes_of_its_values(tmp_path):
    task = read_table(make_table(tmp_path, 'path,kind\n0.png,7\n1.png,-1\n2.png,"a,b"\n\n3.png,7\n'))
    assert (task.classes, task.targets.tolist()) == (("-1", "7", "a,b"), [1, 0, 2, 1])
    assert (task.name, task.source, task.images.name(2)) == ("table", str(tmp_path / "table.csv"), "2.png")
    assert task.images.load(2).getpixel((0, 0)) == (2, 0, 7)
    for cells in (["31", "40", "22"], ["1.5", "f/2", "f/2"], ["1.0", "2.0", "2.0"]):  # no decimal numbers
        rows = "".join(f"{number}.png,{cell}\n" for number, cell in enumerate(cells))
        assert set(read_table(make_table(tmp_path, f"path,age\n{rows}")).classes) == set(cells)


def test_several_label_columns_make_attributes(tmp_path):
    text = "path,note,red,round\n0.png,x,0,1\n1.png,y,1,0\n2.png,z,True,1\n3.png,,1.0,0\n"
    task = read_table(make_table(tmp_path, text), label_columns=["round", "red"])
    assert task.is_multilabel and task.classes == ("round", "red")
    assert task.targets.tolist() == [[1, 0], [0, 1], [1, 1], [0, 1]]
    assert read_table(make_table(tmp_path, "red,path,round\n0,0.png,1\n1,1.png,0\n")).classes == ("red", "round")
    both = read_table(make_table(tmp_path, "path,label,red\n0.png,1,0\n1.png,0,1\n"))
    assert both.is_multilabel and both.classes == ("label", "red")


@pytest.mark.parametrize(
    ("text", "options", "note"),
    [
        ("path,label,split\n0.png,a,t\n1.png,b,v\n", {}, "not used as labels: 'split'"),
        ("File_Name,Klasse,fold\n0.png,a,t\n1.png,b,v\n", {}, "not used as labels: 'fold'"),
        ("image path,target,\n0.png,a,t\n1.png,b,v\n", {}, "not used as labels: ''"),
        ("split,Image,category\nt,0.png,a\nv,1.png,b\n", {}, "not used as labels: 'split'"),
        # `image` is named like paths, and has numbers; then no column is; then one has a number for every row.
        (
            "which,image,target\n0.png,17,a\n1.png,18,b\n",
            {"label_columns": "target"},
            "column 'which', labels in column 'ta",
        ),
        ("which,label\n0.png,a\n1.png,b\n", {}, "paths in column 'which', labels in column 'label'"),
        ("id,xyz,abc\n7,0.png,a\n8,1.png,b\n9,2.png,b\n", {}, "not used as labels: 'id'"),
    ],
)
def test_columns_are_found_by_their_names_or_content(tmp_path, text, options, note):
    task = read_table(make_table(tmp_path, text), **options)
    assert task.classes == ("a", "b") and task.images.name(1) == "1.png" and note in "; ".join(task.notes)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_any_delimiter_and_mark_are_found_and_told(tmp_path, delimiter, encoding):
    rows = [("file_name", "Klasse"), ("0.png", "Käfer, rot"), ("1.png", "Biene; groß"), ("2.png", "Biene; groß")]
    text = "\n".join(f'{path}{delimiter}"{label}"' for path, label in rows)
    table = make_images(tmp_path) / ("beetles.tsv" if delimiter == "\t" else "beetles.csv")
    table.write_text(text, encoding=encoding)
    task = read_table(table)
    assert (task.classes, task.targets.tolist()) == (("Biene; groß", "Käfer, rot"), [1, 0, 0])
    separated = {",": "", ";": "separated by semicolons, ", "\t": "separated by tabs, ", "|": "separated by pipes, "}
    assert f"{separated[delimiter]}paths in column 'file_name', labels in column 'Klasse'" in task.notes


@pytest.mark.parametrize("space", [" ", "   "])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_without_a_header_columns_are_numbered_and_no_row_is_lost(tmp_path, space, ending):
    table = make_images(tmp_path) / "list.txt"
    rows = [("0.png", '"tabby cat"'), ("1.png", "dog"), ("2.png", "dog")]
    table.write_text("".join(f"{path}{space}{label} {ending}" for path, label in rows), newline="")
    task = read_table(table)
    assert (task.classes, task.targets.tolist()) == (("dog", "tabby cat"), [1, 0, 0])
    assert task.notes == ("no header, separated by spaces, paths in column 1, labels in column 2",)
    (tmp_path / "three.csv").write_text("7,0.png,a\n8,1.png,b\n9,2.png,b\n")
    refuse(DataError, r"column '1': '7' is not 0 or 1.*'1', '3'.*name one", read_table, tmp_path / "three.csv")
    assert read_table(tmp_path / "three.csv", label_columns="3").targets.tolist() == [0, 1, 1]
    for number, name in enumerate(("my 0.png", "my 1.png", "my 2.png")):  # a space in a name separates nothing
        paint(tmp_path / name, number)
    (tmp_path / "names.csv").write_text("cat,my 0.png\ndog,my 1.png\ndog,my 2.png\n")
    assert read_table(tmp_path / "names.csv").images.name(2) == "my 2.png"


@pytest.mark.parametrize("header", ['path;"day, dusk"', 'path;"day|dusk|night"'])
def test_what_is_quoted_in_the_header_separates_nothing(tmp_path, header):
    make_images(tmp_path)
    task = read_table(make_table(tmp_path, f"{header}\n0.png;a\n1.png;b\n"))
    assert task.classes == ("a", "b")


def test_frames_and_dicts_of_columns(tmp_path, monkeypatch):
    make_images(tmp_path)
    columns = {"path": ["0.png", str(tmp_path / "1.png"), "2.png"], "label": ["a", "b", "a"]}
    monkeypatch.chdir(tmp_path)
    made = [read_table(columns), read_table({**columns, "path": ["0.png", "1.png", "2.png"]}, root=tmp_path)]
    assert made[0].fingerprint == made[1].fingerprint
    assert made[0].name == tmp_path.name and made[0].images.name(0) == "0.png"
    task = read_table(pytest.importorskip("pandas").DataFrame(columns))
    assert (task.name, task.fingerprint) == (tmp_path.name, made[0].fingerprint)
    outside, inside = {"path": ["../0.png", "../1.png"], "label": ["a", "b"]}, make_images(tmp_path / "in")
    refuse((DataError, UsageError), "of the root", read_table, outside, root=inside)
    refuse(UsageError, "have '2', '3' cells", read_table, {**columns, "label": ["a", "b"]})
    refuse(DataError, r"the table has no column 'path'.*'x', 'y'", read_table, {"x": [1], "y": [2]})


def test_paths_are_relative_to_the_root_and_columns_have_any_name(tmp_path):
    make_images(tmp_path / "images")
    table = tmp_path / "t.csv"
    table.write_text("\ufefffile;x,kind\n0.png,a\n1.png,b\n", encoding="utf-8")
    task = read_table(table, root=tmp_path / "images", path_column="file;x", label_columns="kind", name="mine")
    assert repr(task) == "Task(mine, 2 images, 2 classes)"
    refuse(BadImagesError, "no such file", read_table, table, path_column="file;x")
    words = r"root .*nowhere is not a folder.*--root"
    refuse(UsageError, words, read_table, table, root=tmp_path / "nowhere", path_column="file;x")


NAMED = "path,x,y\n0.png,0,1\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("path,kind\n0.png,a\n1.png\n", {}, "line 3: 1 cells where the first line has 2"),
        ("path\n0.png\n", {}, "needs one column of labels or more"),
        ("path,kind,kind\n0.png,a,b\n", {}, "two columns with the same name .'kind'"),
        ("path,kind\n0.png,a\n1.png,\n", {}, "line 3, column 'kind': '' is missing"),
        ('path,kind\n\n0.png,"a\n\nb"\n\n1.png,\n', {}, "line 7, column 'kind'"),
        ('path,kind\n0.png,"a\n', {}, "cannot be read as CSV"),
        ("path,kind\n0.png,\udce9\n", {}, "UTF-8"),
        ("path,kind\n", {}, "no images"),
        ("0.png,a\n1.png,b\n2.png,b\n", {"header": True}, "no line with the names of its columns: it begins with '0."),
        ("0.png;x.png,a\n1.png;y.png,b\n", {}, r"by comma \('1.png;y.png', 'b'\)|by semicolon \('1.png', 'y.png,b'\)"),
        ("0.png;x,a.png\n1.png;y,b.png\n", {}, r"by comma \('1.png;y', 'b.png'\) or by semicolon .*--separator comma"),
        ("image.png,label\n0.png,a\n1.png,b\n", {}, "may be the names of the columns, as 'label' is.*--no-header"),
        ("path,kind\n0.png,a\nhttp://x.org/1.png,b\n", {}, "line 3.*is a URL, as 1 of 2 paths are.*Download"),
        (NAMED, {"separator": "dot"}, "separates no cells.*comma, semicolon"),
        (NAMED, {"group": "z(.)"}, "matches 0 of 1 paths"),
        (
            "path,x,g\n0.png,a,1\n1.png,b,\n",
            {"group": "g", "label_columns": "x"},
            "line 3, column 'g'.*no path, class or group",
        ),
        ("path,age\n0.png,31\n1.png,40.5\n", {}, r"'age' holds decimal numbers \(such as 40\.5\).*Bin it"),
        ("path,label,class\n0.png,a,x\n1.png,b,y\n", {}, "'label', 'class'.*--label-column"),
        ("file,image,label\n0.png,1.png,a\n1.png,0.png,b\n", {}, r"may be paths \('file', 'image'\).*--path-col"),
        ("path,split\n0.png,a\n1.png,b\n", {}, "needs one column of labels.*'path', 'split'.*--label-column"),
        ("where,label\n0,a\n1,b\n", {}, r"has no column 'path'.*'where', 'label'.*--path-column"),
        ("a;b,c;d\n0;1,2;3\n4;5,6;7\n", {}, "has no column 'path'.*'a', 'b,c', 'd'"),
        (NAMED, {"label_columns": ["x", "x"]}, "each once: path_column= .*--path-column, --label-columns"),
        (NAMED, {"label_columns": "z"}, "has no column 'z'.*each once"),
        (NAMED, {"path_column": "file"}, "has no column 'file'.*each once"),
    ],
)
def test_a_table_that_is_no_task_is_refused_where_it_is_wrong(tmp_path, text, options, message):
    refuse((DataError, UsageError), message, read_table, make_table(tmp_path, text), **options)
    for name, words in (("table.xlsx", r"\.xlsx"), ("absent.csv", "not a file")):
        refuse((DataError, UsageError), words, read_table, tmp_path / name)


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
        refuse(DataError, message, read_table, write_parquet(tmp_path, path=paths, y=column))
    table = write_parquet(tmp_path, path=paths, kind=["a", "b", "b"])
    table.write_bytes(table.read_bytes()[:-20])
    refuse(DataError, "cannot be read as Parquet", read_table, table)


@pytest.mark.parametrize("column", ["image", "path"])
def test_a_table_that_holds_images_is_called_what_it_is(tmp_path, column):
    images = [{"bytes": b"...", "path": f"{number}.png"} for number in range(2)]
    table = write_parquet(tmp_path, **{column: images, "label": [0, 1]})
    refuse(DataError, rf"Hugging Face.*column '{column}' holds.*from_huggingface\('{table}'\)", read_table, table)
    beside = write_parquet(tmp_path, path=["0.png", "1.png"], thumbnail=images, label=["a", "b"])
    assert read_table(beside, label_columns="label").classes == ("a", "b")
