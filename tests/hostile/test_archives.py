"""D12: archives that lead out of their folder, hold device nodes, or unfold to gigabytes. None is ever unpacked."""

import io
import os
import pickle
import re
import tarfile
import zipfile

import pytest
import torch
from typer.testing import CliRunner

from task2vec.cli.app import app
from task2vec.errors import DataError, LibraryError, WeightsError
from task2vec.library import Library
from task2vec.probe.weights import read_weights
from task2vec.tasks import read_folder, read_table
from tests.command import run_python
from tests.failures import refuse
from tests.tasks.pictures import make_folder

TEN_GIGABYTES = 10 * 1024**3


def make_tar(path):
    """Every way out that a tar has, and device nodes."""
    file = tarfile.REGTYPE
    entries = {"../../outside": file, "/tmp/task2vec-outside": file, "way": tarfile.SYMTYPE, "way/outside": file}
    entries |= {"hard": tarfile.LNKTYPE, "zero": tarfile.CHRTYPE, "disk": tarfile.BLKTYPE, "pipe": tarfile.FIFOTYPE}
    with tarfile.open(path, f"w:{path.suffix[1:]}".removesuffix("tar")) as archive:
        for name, kind in entries.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, 3 if kind == file else 0
            entry.linkname = {"way": "../..", "hard": "../../outside"}.get(name, "")
            entry.devmajor, entry.devminor = 1, 5  # /dev/zero
            archive.addfile(entry, io.BytesIO(b"out"))
    return path


def make_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../../outside", "/outside", "C:\\outside", "cats/../../outside"):
            archive.writestr(name, b"out")
    return path


def make_bomb(path):
    """A zip of a few kilobytes that claims, in the directory at its end, to unfold to gigabytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cats/0.png", bytes(1_000_000))
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\1\2")
    content[place + 24 : place + 28] = (0xFFFFFFFE).to_bytes(4, "little")
    path.write_bytes(content)
    return path


ARCHIVES = {
    "photos.tar": make_tar,
    "photos.tar.gz": make_tar,
    "photos.tar.xz": make_tar,
    "photos.zip": make_zip,
    "photos": make_zip,
    "bomb.zip": make_bomb,
}


@pytest.fixture
def archive(tmp_path, request):
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    yield ARCHIVES[request.param](home / request.param)
    assert list(tmp_path.rglob("*outside*")) == [] and len(list(home.iterdir())) == 1


@pytest.mark.parametrize("archive", ARCHIVES, indirect=True)
def test_d12_an_archive_is_no_folder_and_no_library_and_is_not_unpacked(tmp_path, archive):
    refuse(DataError, r"is an archive. Archives are not unpacked.*Unpack it into an empty folder", read_folder, archive)
    result = CliRunner().invoke(app, ["embed", str(archive)])
    assert result.exit_code == 3 and "is an archive" in result.stderr and "Traceback" not in result.stderr
    with Library.open(tmp_path / "library") as library:
        refuse(LibraryError, "nothing in it was imported", library.merge, archive)
        assert len(library) == 0


def test_d12_archives_among_images_are_told_and_not_opened(tmp_path):
    make_folder(tmp_path, cats=20, dogs=20)
    make_bomb(tmp_path / "cats" / "more.zip")
    make_tar(tmp_path / "more.tar")
    make_zip(tmp_path / "dogs" / "more.png")
    task = read_folder(tmp_path)
    assert task.counts.tolist() == [20, 20]
    assert [bad.path for bad in task.bad] == ["dogs/more.png"]
    assert any("not images and were ignored: 2, such as 'cats/more.zip'" in text for text in task.warnings)


# --- weights: the one archive that is opened -------------------------------------------------------------------------


def repack(source, path, *, repeats=1):
    """The file of torch, its records compressed; the first tensor's record is repeated."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            with new.open(name, "w", force_zip64=True) as record:
                for _ in range(repeats if name.endswith("data/0") else 1):
                    record.write(old.read(name))
    return path


def test_d12_weights_that_unfold_spread_or_lie_are_refused(tmp_path):
    torch.save({"w": torch.zeros(100_000)}, tmp_path / "good.pth")
    assert read_weights(tmp_path / "good.pth")["w"].shape == (100_000,)
    packed = repack(tmp_path / "good.pth", tmp_path / "packed.pth")
    refuse(WeightsError, r"bytes expand to \d+", read_weights, packed)
    torch.save({"w": torch.zeros(1).as_strided((1 << 28,), (0,))}, tmp_path / "spread.pth")
    assert os.path.getsize(tmp_path / "spread.pth") < 10_000
    refuse(WeightsError, r"'w' of .* takes more and could fill the memory", read_weights, tmp_path / "spread.pth")
    # A file of the old format that claims gigabytes.
    torch.save({"w": torch.zeros(16)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    content = (tmp_path / "old.pth").read_bytes()
    claimed = pickle.dumps(TEN_GIGABYTES, 2)[2:-1]
    # The number of elements stands behind the device's name.
    forged, count = re.subn(rb"(cpuq.)K\x10", lambda found: found[1] + claimed, content, flags=re.DOTALL)
    assert count == 1
    (tmp_path / "old.pth").write_bytes(forged)
    refuse(WeightsError, "damaged", read_weights, tmp_path / "old.pth")


REFUSE = """
import sys
from tests.hostile.peak_memory import read_memory
from task2vec.errors import WeightsError
from task2vec.probe.weights import read_weights
before = read_memory()
try:
    read_weights(sys.argv[1])
except WeightsError as error:
    print(read_memory() - before, error)
"""


@pytest.mark.long
def test_d12_ten_gigabytes_of_weights_in_ten_megabytes(tmp_path):
    torch.save({"w": torch.zeros(1 << 22)}, tmp_path / "good.pth")
    bomb = repack(tmp_path / "good.pth", tmp_path / "bomb.pth", repeats=TEN_GIGABYTES >> 24)
    assert bomb.stat().st_size < 20_000_000
    grown, message = run_python(REFUSE, bomb, timeout=300).split(maxsplit=1)
    assert "expand to" in message and float(grown) < 500  # megabytes


# --- Parquet, which is compressed too --------------------------------------------------------------------------------


def write_parquet(path, *, rows, letters, groups=1):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: task2vec[table]")
    import pyarrow

    zeros, words = pyarrow.nulls(rows, pyarrow.int32()).fill_null(0), pyarrow.array(["x" * letters])
    texts = pyarrow.DictionaryArray.from_arrays(zeros, words)
    table = pyarrow.table({"path": texts, "kind": texts})
    with parquet.ParquetWriter(path, table.schema, compression="zstd") as file:
        for _ in range(groups):
            file.write_table(table)
    return path


def test_d12_a_table_of_endless_rows_is_refused_before_it_is_read(tmp_path, monkeypatch):
    for name in ("t.csv", "t.parquet"):
        refuse(DataError, name, read_table, make_zip(tmp_path / name))
    bomb = write_parquet(tmp_path / "bomb.parquet", rows=200_000, letters=10, groups=3)
    assert bomb.stat().st_size < 100_000
    monkeypatch.setattr("task2vec.tasks.columns.MIN_MEMORY", 1 << 24)
    monkeypatch.setattr("task2vec.tasks.columns._take_cells", None)  # which would fail
    refuse(DataError, r"bomb\.parquet has \d+ bytes, and its cells would fill the memory", read_table, bomb)


def test_d12_long_texts_that_stand_in_many_rows_are_kept_once(tmp_path):
    from task2vec.tasks.columns import read_columns

    table = write_parquet(tmp_path / "long.parquet", rows=20_000, letters=1_000_000)  # 40 GB, if written out
    assert table.stat().st_size < 1_000_000
    columns = read_columns(table)
    assert all(len(cells) == 20_000 and len({id(cell) for cell in cells}) < 5 for cells in columns.values())
    usual = read_columns(write_parquet(tmp_path / "usual.parquet", rows=50_000, letters=30))
    assert [(len(cells), set(cells)) for cells in usual.values()] == [(50_000, {"x" * 30})] * 2
