"""Reading tables: several files, names of rows, files that are hard to read."""

import gzip

import numpy as np
import pytest
import torch

from fedtilt.data import Federation, Schema, table, transform
from fedtilt.data.tables.reader import is_table, open_reader
from fedtilt.errors import InputError

pandas = pytest.importorskip("pandas")


def site(n, seed):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame({"age": rng.normal(50, 9, n), "ward": rng.choice(["a", "b"], n), "ill": np.arange(n) % 2})


@pytest.fixture
def folder(tmp_path):
    site(60, 0).to_csv(tmp_path / "north.csv", index=False)
    site(40, 1)[["ill", "ward", "age"]].to_parquet(tmp_path / "south.parquet")  # another order
    site(50, 2).to_csv(tmp_path / "west.tsv", index=False, sep="\t")
    (tmp_path / "readme.txt").write_text("not a table")
    return tmp_path


def test_the_files_of_a_folder_are_clients(folder):
    data = table(folder, target="ill")
    assert data.name == folder.name
    assert data.client_names == ("north", "south", "west")
    assert data.schema.inputs == ("age", "ward = a", "ward = b")
    fed = Federation.build(data)
    assert (fed.train_sizes() + torch.tensor([len(fed.test(n)[1]) for n in range(3)])).tolist() == [60, 40, 50]
    files = [folder / name for name in ("north.csv", "south.parquet", "west.tsv")]
    frames = {path.stem: site(n, seed) for seed, (path, n) in enumerate(zip(files, (60, 40, 50), strict=True))}
    for source in (files, frames, {path.stem: path for path in files}):
        assert torch.equal(table(source, target="ill").x_train, data.x_train)
    one = pandas.concat([frame.assign(hospital=name) for name, frame in frames.items()])
    assert torch.equal(table(one, target="ill", client="hospital").x_train, data.x_train)


def test_rows_of_several_files_have_names(folder):
    fed = Federation.build(table(folder, target="ill"), validation=0.2)
    names = [fed.row_names("south", split) for split in ("train", "validation", "test")]
    numbers = sorted(int(name.removeprefix("south.parquet, row ")) for part in names for name in part)
    assert numbers == list(range(2, 42))
    frame = site(40, 1)
    labels = [frame["ill"].iloc[int(name.rpartition(" ")[2]) - 2] for name in names[2]]
    assert labels == fed.test("south")[1].tolist()


def test_files_that_do_not_fit_are_refused(folder):
    site(9, 3).drop(columns="ward").to_csv(folder / "east.csv", index=False)
    with pytest.raises(InputError, match=r"east.csv has no column 'ward', which .*north.csv has; add it"):
        table(folder, target="ill")
    (folder / "east.csv").unlink()
    site(9, 3).to_csv(folder / "north.tsv", index=False, sep="\t")
    with pytest.raises(
        InputError, match=r"two tables are called 'north', as .*; a file's name is its client's: rename"
    ):
        table(folder, target="ill")
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty has no table; put a .csv, .tsv, .csv.gz, .parquet or .xlsx file"):
        table(folder / "empty", target="ill")
    with pytest.raises(InputError, match=r"table https:/example.org/a.csv is a URL; download it first"):
        table(type(folder)("https://example.org/a.csv"), target="ill")
    with pytest.raises(InputError, match=r"table https://example.org/a.csv is a URL; download it first"):
        table("https://example.org/a.csv", target="ill")
    assert [is_table(path) for path in (folder, folder / "empty", "x.csv", "x.toml")] == [True, False, True, False]


def test_files_whose_columns_have_other_types(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z\n" + "".join(f"{n},{n % 2},\n" for n in range(40)))
    (tmp_path / "b.csv").write_text("x,y,z\n" + "".join(f"{n / 2},{n % 2},{n}\n" for n in range(40)))
    data = table(tmp_path, target="y")
    assert [column.kind for column in data.schema.columns] == ["number", "number"]
    assert data.schema.column("z").gaps
    (tmp_path / "b.csv").write_text("x,y,z\n" + "".join(f"many,{n % 2},{n}\n" for n in range(40)))
    assert table(tmp_path, target="y").schema.column("x").kind == "category"


def test_row_numbers_with_empty_lines_and_quoted_newlines(tmp_path):
    path = tmp_path / "t.csv"
    lines = [f'{n},"two\nlines",{n % 2}\n' + "\n" * (n == 3) for n in range(40)]
    path.write_text("a,b,y\n" + "".join(lines))
    names = open_reader(path).rows
    assert [names[n] for n in (0, 3, 4, -1)] == ["row 3", "row 9", "row 12", "row 82"]
    assert names[1:3] == ["row 5", "row 7"]
    unread = table(path, target="y").row_names
    assert len(unread) == 40
    path.write_text("a,b,y\n\n1,2,3\n")
    with pytest.raises(InputError, match="has 1 rows and had 40; it was changed since it was read"):
        unread[0]


@pytest.mark.parametrize(
    ("last", "kind"), [("2", "double"), ("?", "double"), ("-", "double"), ("-4", "double"), ("often", "string")]
)
@pytest.mark.parametrize("extra", ["", ",2026-01-31"])
def test_the_type_of_a_column_comes_from_all_rows(tmp_path, last, kind, extra):
    """The first 64 KiB of a file say how to read it; what comes later still counts."""
    lines = [f"{n},{n}.5,{n},a{n % 3}{extra}" for n in range(9_000)]
    header = "late,dose,count,ward" + ",day" * bool(extra)
    (tmp_path / "long.csv").write_text("\n".join([header, *lines, f"0.25,{last},{last},-{extra}"]))
    columns = open_reader(tmp_path / "long.csv")
    late = columns.read("late")
    assert str(late.type) == "double"
    assert late[-1].as_py() == 0.25
    for name in ("dose", "count"):
        column = columns.read(name)
        assert kind in str(column.type) or (name == "count" and str(column.type) == "int64")
        assert column[-1].as_py() == {"2": 2.0, "?": None, "-": None, "-4": -4.0, "often": "often"}[last]
    assert columns.read("ward")[-1].as_py() == "-"


def test_a_frame_of_mixed_types_and_categories():
    frame = site(60, 0)
    frame["mixed"] = [1, "one"] * 30
    frame["ward"] = frame["ward"].astype("category")
    frame["flag"] = frame["age"] > 50
    data = table(frame, target="ill")
    assert [column.kind for column in data.schema.columns] == ["number", "category", "category", "yes/no"]
    assert data.schema.column("mixed").categories == ("1", "one")
    assert torch.equal(transform(frame, like=data), transform(frame.astype({"ward": str}), like=data))
    with pytest.raises(
        InputError, match=r"column 'list' of DataFrame has values of type list.*; leave it out: drop = "
    ):
        table(frame.assign(list=[[1]] * 60), target="ill")


def test_categories_without_rows_do_not_count():
    frame = site(60, 0)
    for name in ("ill", "ward"):
        kinds = ["unused", *sorted(map(str, frame[name].unique()), reverse=True)]
        frame[name] = pandas.Categorical(frame[name].astype(str), categories=kinds)
    data = table(frame, target="ill")
    plain = table(frame.astype({"ill": str, "ward": str}), target="ill")
    assert data.schema == plain.schema
    assert "unused" not in (*data.class_names, *data.schema.inputs)
    assert torch.equal(data.x_train, plain.x_train)
    wrong = pandas.Categorical(["1", "b", "a", *["2"] * 27] * 2, categories=["2", "a", "b", "1"])
    with pytest.raises(InputError, match="has 'b' in row 1, column 'dose'"):  # the first row, whatever the order
        table(frame.assign(dose=wrong), target="ill")


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "t.csv"
    text = "größe;ort;y\n" + "1,5;Köln;ä\n2,5;Ötz;b\n" * 20
    for encoding, given in [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("cp1252", None),
        ("utf-16", None),
        ("cp850", "cp850"),
    ]:
        path.write_bytes(text.encode(encoding))
        data = table(path, target="y", encoding=given)
        assert data.schema.inputs == ("größe", "ort = Köln", "ort = Ötz")
        assert data.class_names == ("b", "ä")
        assert data.row_names[3] == "row 5"
        same = transform(path, like=Schema.from_json(data.schema.to_json()))  # the schema carries the encoding
        assert torch.equal(same[data.rows_train], data.x_train)
    with pytest.raises(InputError, match=r"t.csv is not text in ascii \(byte 2\); set another encoding"):
        table(path, target="y", encoding="ascii")
    for unknown in ("klingon", "a\0b", "\udce2"):
        with pytest.raises(InputError, match=r"encoding = '.*' is unknown; such as 'cp1252'"):
            table(path, target="y", encoding=unknown)
    path.write_bytes(b"name;y\n" + b"\x81\xe4;1\n" * 20 + b"b;2\n" * 20)  # no character of cp1252
    assert table(path, target="y").schema.column("name").categories == ("b", "\x81ä")
    path.write_bytes("größe,y\n".encode("cp1252") + b"1,a\n2,b\n" * 20)  # the header alone
    assert table(path, target="y").schema.inputs == ("größe",)


def test_compressed_files(tmp_path):
    text = site(60, 0).to_csv(index=False)
    (tmp_path / "north.csv").write_text(text)
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz/north.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "gz/south.tsv.gz").write_bytes(
        gzip.compress(site(60, 1).to_csv(index=False, sep="\t").encode("cp1252"))
    )
    data, plain = table(tmp_path / "gz/north.csv.gz", target="ill"), table(tmp_path / "north.csv", target="ill")
    assert (data.name, data.schema) == (plain.name, plain.schema)
    assert torch.equal(data.x_train, plain.x_train)
    assert table(tmp_path / "gz", target="ill").client_names == ("north", "south")
    (tmp_path / "gz/north.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="north.csv.gz is not a readable gzip file"):
        table(tmp_path / "gz/north.csv.gz", target="ill")


def test_a_spreadsheet_reads_like_its_csv_file(tmp_path):
    pytest.importorskip("openpyxl")
    frame = site(60, 0).round(6)  # a spreadsheet rounds to 15 digits
    frame.to_excel(tmp_path / "north.xlsx", index=False)
    frame.to_csv(tmp_path / "north.csv", index=False)
    data, plain = (table(tmp_path / f"north.{kind}", target="ill") for kind in ("xlsx", "csv"))
    assert data.schema == plain.schema
    assert torch.equal(data.x_train, plain.x_train)
    assert data.row_names[0] == "row 2"
    (tmp_path / "~$north.xlsx").write_bytes(b"what a spreadsheet program leaves while the file is open")
    (tmp_path / "north.csv").unlink()
    assert table(tmp_path, target="ill").x_train.shape == data.x_train.shape
    (tmp_path / "north.xlsx").write_bytes(b"no spreadsheet")
    with pytest.raises(InputError, match="north.xlsx is not a readable .xlsx file"):
        table(tmp_path / "north.xlsx", target="ill")
