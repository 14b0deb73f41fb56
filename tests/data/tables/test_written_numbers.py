"""Numbers as people write them: thousands and decimals are never confused in silence."""

import numpy as np
import pytest
import torch

from fedtilt.data import Schema, table, transform
from fedtilt.data.tables.merge import merge, misfits
from fedtilt.data.tables.settings import TableSettings
from fedtilt.data.tables.table import open_table
from fedtilt.data.tables.values import read_column
from fedtilt.errors import InputError

pandas = pytest.importorskip("pandas")


def write(folder, columns, name="t.csv", separator=","):
    """A file with these columns of texts, repeated, and a label."""
    rows = [[columns[key][n % len(columns[key])] for key in columns] + ["ab"[n % 3 % 2]] for n in range(60)]
    lines = [separator.join(f'"{cell}"' if separator in cell else cell for cell in row) for row in rows]
    path = folder / name
    path.write_text("\n".join([separator.join([*columns, "y"]), *lines]) + "\n")
    return path


def numbers(path, column="x", **settings):
    """The numbers that a column was read as, in the order of the rows."""
    opened = open_table(path, TableSettings(target="y", **settings))
    found = read_column(opened.reader, column)
    data = opened.to_dataset()
    known, position = data.schema.column(column), data.schema.inputs.index(column)
    assert data.x_train[:, position].tolist() == pytest.approx(
        (found.values[data.rows_train] - known.mean) / known.deviation, rel=1e-5, abs=1e-6
    )
    return found.values.tolist()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1,200", "15,300", "950", "1,234,567"], [1200, 15300, 950, 1234567]),  # two separators
        (["1.200", "15.300", "950", "1.234.567"], [1200, 15300, 950, 1234567]),
        (["1.200", "15.300", "1.200,5"], [1200, 15300, 1200.5]),  # both in one cell
        (["1,200", "15,300", "1,200.5"], [1200, 15300, 1200.5]),
        (["1,200", "15,300", "0,5"], [1.2, 15.3, 0.5]),  # a group that is not of three digits
        (["1.200", "15.300", "12.25"], [1.2, 15.3, 12.25]),
        (["1.200", "15.300", "1234.567"], [1.2, 15.3, 1234.567]),  # four digits before it
        (["1.200", "15.300", "0.125"], [1.2, 15.3, 0.125]),  # thousands do not begin with 0
        (["1 200", "15\u00a0300", "950", "1'000"], [1200, 15300, 950, 1000]),  # separators of thousands alone
        (["1 200,125", "15 300,250"], [1200.125, 15300.25]),
        (["-1.200", "\u22121.234.567"], [-1200, -1234567]),
        (["12,5", "12.5", "7"], [12.5, 12.5, 7]),  # every cell proves its own
        (["1.5e3", "1.200"], [1500, 1.2]),
        (["5.4 mmol/l", "1.200 mmol/l", "7"], [5.4, 1.2, 7]),
        (["37,5°C", "38 °C"], [37.5, 38]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("separator", [",", ";"])
def test_what_the_cells_prove(tmp_path, texts, expected, separator):
    assert (
        numbers(write(tmp_path, {"x": texts}, separator=separator))
        == expected * (60 // len(expected)) + (expected[: 60 % len(expected)])
    )
    frame = pandas.read_csv(tmp_path / "t.csv", sep=separator, dtype=str)
    assert numbers(frame) == numbers(tmp_path / "t.csv")


@pytest.mark.parametrize("texts", [["1.200", "15.300", "950"], ["1,200", "15,300", "950"], ["1.000", "2.000"]])
@pytest.mark.parametrize("separator", [",", ";"])
def test_what_no_cell_proves_is_an_error_with_the_remedy(tmp_path, texts, separator):
    path, mark = write(tmp_path, {"x": texts}, separator=separator), texts[0][1]
    as_decimal = {".": 1.2, ",": 1200}[mark] if texts[0] != "1.000" else 1
    other = {".": 1200, ",": 1.2}[mark] if texts[0] != "1.000" else 1000
    message = (
        rf"t.csv has '{texts[0]}' in row 2, column 'x', but it can be {as_decimal:g} or {other:g}: set "
        rf"decimal = '\{mark}' or thousands = '\{mark}' \(data.decimal and data.thousands in a spec\)"
    )
    with pytest.raises(InputError, match=message):
        table(path, target="y")
    whole = [float(text.replace(mark, "")) for text in texts]
    fractions = [float(text.replace(mark, ".")) for text in texts]
    for settings, expected in [({"thousands": mark}, whole), ({"decimal": mark}, fractions)]:
        assert numbers(path, **settings) == expected * (60 // len(expected))


def test_other_columns_of_the_file_prove_it(tmp_path):
    german = write(tmp_path, {"x": ["1.200", "950"], "crp": ["1,5", "12,25"]}, separator=";")
    assert numbers(german)[:2] == [1200, 950]
    english = write(tmp_path, {"x": ["1,200", "950"], "crp": ["1.5", "12.25"]})
    assert numbers(english)[:2] == [1200, 950]
    points = write(tmp_path, {"x": ["1.200", "3.250"], "crp": ["1.5", "12.25"]})
    assert numbers(points)[:2] == [1.2, 3.25]
    contradiction = {"x": ["1.200", "950"], "crp": ["1.5", "12.25"], "bmi": ["21,5", "23"]}
    with pytest.raises(InputError, match="it can be 1.2 or 1200"):
        table(write(tmp_path, contradiction, separator=";"), target="y")
    assert numbers(tmp_path / "t.csv", decimal=",")[:2] == [1200, 950]


def test_a_file_of_decimal_commas_is_read_like_one_of_points(tmp_path):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(50, 20, (60, 3)).round(3), columns=["a", "b", "c"])
    frame["n"], frame["y"] = rng.integers(0, 2000, 60), ["a", "b"] * 30
    frame.loc[5, "a"] = None
    frame.to_csv(tmp_path / "german.csv", index=False, sep=";", decimal=",")
    frame.to_csv(tmp_path / "english.csv", index=False)
    german, english = (table(tmp_path / f"{name}.csv", target="y") for name in ("german", "english"))
    assert torch.equal(german.x_train, english.x_train)
    assert [column.decimal for column in german.schema.columns] == [",", ",", ",", None]
    (tmp_path / "late.csv").write_text(
        "x;z;y\n" + "1,5;7;a\n2,5;8;b\n" * 9000 + "3.5;9;a\n"
    )  # a point after the first rows
    late = open_table(tmp_path / "late.csv", TableSettings(target="y"))
    assert read_column(late.reader, "x").values[-3:].tolist() == [1.5, 2.5, 3.5]


def test_a_large_file_whose_first_rows_do_not_tell(tmp_path):
    rows = [f"{100 + n % 800};{n % 2}" for n in range(20_000)] + ["1.000;1", "2.000;0"]
    (tmp_path / "t.csv").write_text("\n".join(["x;y", *rows]))
    with pytest.raises(InputError, match="has '1.000' in row 20002, column 'x', but it can be 1 or 1000"):
        table(tmp_path / "t.csv", target="y")
    rows[-2:] = ["1.5;1", "2.000;0"]
    (tmp_path / "t.csv").write_text("\n".join(["x;y", *rows]))
    assert table(tmp_path / "t.csv", target="y").schema.column("x").decimal == "."


def test_every_file_has_its_own_way(tmp_path):
    write(tmp_path, {"x": ["1.200", "950"], "crp": ["1,5", "12,25"]}, "berlin.csv", ";")
    write(tmp_path, {"x": ["1,300", "850"], "crp": ["1.5", "12.25"]}, "london.csv")
    write(tmp_path, {"x": ["1400", "750"], "crp": ["1", "12"]}, "oslo.csv")
    data = table(tmp_path, target="y")
    x = torch.zeros(180)
    column = data.schema.column("x")
    x[data.rows_train], x[data.rows_test] = data.x_train[:, 0], data.x_test[:, 0]
    found = (x.double() * column.deviation + column.mean).round().tolist()
    assert found == [1200, 950] * 30 + [1300, 850] * 30 + [1400, 750] * 30
    assert column.decimal == "both"


def test_new_rows_are_read_like_the_training_files(tmp_path):
    german = table(write(tmp_path, {"x": ["1.200", "950"], "crp": ["1,5", "12,25"]}, separator=";"), target="y")
    english = table(write(tmp_path, {"x": ["1.200", "3.5"], "crp": ["1.5", "12.25"]}), target="y")
    whole = table(write(tmp_path, {"x": ["1200", "950"], "crp": ["1", "12"]}), target="y")
    new = tmp_path / "new.csv"
    new.write_text("x;crp\n1.200;3\n")  # nothing in this file tells

    def first(data):
        column = data.schema.column("x")
        return float(transform(new, like=data)[0, 0]) * column.deviation + column.mean

    assert first(german) == pytest.approx(1200)
    assert first(english) == pytest.approx(1.2)
    with pytest.raises(InputError, match="has '1.200' in row 2, column 'x', but it can be 1.2 or 1200"):
        transform(new, like=whole)
    again = Schema.from_json(german.schema.to_json())
    assert torch.equal(transform(new, like=again), transform(new, like=german))
    new.write_text("x;crp\n1.200;3.5\n")  # the file's own columns go first
    assert first(german) == pytest.approx(1.2, abs=1e-3)


def test_sites_agree_on_one_schema(tmp_path):
    files = [
        write(tmp_path, {"x": ["1.200", "950"], "crp": ["1,5", "12,25"]}, "berlin.csv", ";"),
        write(tmp_path, {"x": ["1.200", "750"], "crp": ["1", "12"]}, "wien.csv", ";"),
    ]
    settings = TableSettings(target="y", thousands=".")
    summaries = [open_table(f, settings, site=n).site_summary(None, 0) for n, f in enumerate(files)]
    schema = merge(summaries, open_table(files[0], settings, site=0).schema)
    pooled = table({f.stem: f for f in files}, target="y", thousands=".").schema
    for column in schema.columns:
        assert column.mean == pytest.approx(pooled.column(column.name).mean)
    assert (schema.column("x").decimal, schema.files.decimal) == (",", ",")
    for number, file in enumerate(files):
        data = open_table(file, settings, site=number).with_schema(schema).to_dataset()
        x = data.x_train[:, 0].double() * schema.column("x").deviation + schema.column("x").mean
        assert {round(v) for v in x.tolist()} == ({1200, 950}, {1200, 750})[number]
    with pytest.raises(InputError, match="wien.csv has '1.200' in row 2, column 'x', but it can be 1.2 or 1200"):
        open_table(files[1], TableSettings(target="y"), site=1).site_summary(None, 0)


def test_units(tmp_path):
    texts = [f"{5 + n / 10:.1f} mmol/l" if n % 2 == 0 else f"{96 + n} mg/dl" for n in range(60)]
    path = write(tmp_path, {"x": texts[:-1]})
    with pytest.raises(InputError, match="'97 mg/dl' in row 3, column 'x', but the column has numbers in mmol/l too"):
        table(path, target="y")
    for name, unit in (("a", "mmol/l"), ("b", "mg/dl"), ("c", "MMOL/L")):
        write(tmp_path, {"x": [f"{n + 1}.5 {unit}" for n in range(30)]}, f"{name}.csv")
    (tmp_path / "t.csv").unlink()
    with pytest.raises(InputError, match=r"'1.5 mg/dl' in b.csv, row 2, column 'x', but the column has numbers in"):
        table(tmp_path, target="y")
    settings = TableSettings(target="y")
    sites = [open_table(tmp_path / f"{name}.csv", settings, site=n) for n, name in enumerate("abc")]
    assert misfits([site.site_summary(None, 0) for site in sites], sites[0].schema) == {
        "1": "has column 'x' in mg/dl, and site '0' has it in mmol/l; convert one of them"
    }
    data = table(tmp_path / "a.csv", target="y")
    assert data.schema.column("x").unit == "mmol/l"
    with pytest.raises(InputError, match="'1.5 mg/dl' in row 2, column 'x', but the column has numbers in mmol/l too"):
        transform(tmp_path / "b.csv", like=data)
    assert transform(pandas.DataFrame({"x": [1.5]}), like=data).shape == (1, 1)
    far = table(
        write(tmp_path, {"x": [f"{5 + n % 7}.4 mmol/l" if n % 2 else str(90 + n) for n in range(60)]}), target="y"
    )
    assert far.warnings[0] == (
        "column 'x' has 5.4 to 11.4 in mmol/l and 90 to 148 without a unit, and reads all as mmol/l: if these have "
        "another one, convert them"
    )
    near = table(write(tmp_path, {"x": [f"{5 + n % 7}.4{' mmol/l' * (n % 2)}" for n in range(60)]}), target="y")
    assert not any("unit" in text for text in near.warnings)
    for cells, unit in ((["1.2k", "950"], "k"), (["1.2 Mio", "3.4 Mio", "900000"], "Mio")):
        with pytest.raises(InputError, match=f"'9.*' in row ., column 'x', but the column has numbers in {unit} too"):
            table(write(tmp_path, {"x": cells}), target="y")
    assert numbers(write(tmp_path, {"x": ["1.2k", "3.4k"]}))[:2] == [1.2, 3.4]
    thousands = table(tmp_path / "t.csv", target="y")
    with pytest.raises(InputError, match="'950' in row 0, column 'x', but the column has numbers in k too"):
        transform(pandas.DataFrame({"x": ["950", "870"]}), like=thousands)
    with pytest.raises(InputError, match="'1 €' in row 3, column 'x', but the column has numbers in \\$ too"):
        table(write(tmp_path, {"x": [f"{n} €" if n % 3 == 1 else f"${n}" for n in range(60)]}), target="y")
    grades = table(write(tmp_path, {"x": ["1a", "1b", "2a"]}), target="y")
    assert grades.schema.column("x").kind == "category"
    rooms = [f"{100 + n}{'ABC'[n % 3]}" for n in range(30)]
    assert table(write(tmp_path, {"x": rooms, "n": ["1", "2"]}), target="y").schema.column("x").kind == "identifier"


def test_bad_settings(tmp_path):
    path = write(tmp_path, {"x": ["1", "2"]})
    for settings, message in [
        ({"decimal": ";"}, r"decimal = ';' is not possible; choose '.' or ','"),
        ({"thousands": " "}, r"thousands = ' ' is not possible"),
        ({"thousands": ",", "decimal": ","}, r"decimal and thousands are both ','; leave one of them out"),
    ]:
        with pytest.raises(InputError, match=message):
            table(path, target="y", **settings)


def test_numbers_of_a_clean_file_stay_as_arrow_reads_them(tmp_path):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"x": rng.normal(size=60), "n": rng.integers(0, 9, 60), "y": ["a", "b"] * 30})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = table(tmp_path / "t.csv", target="y")
    assert torch.equal(data.x_train, table(frame, target="y").x_train)
    assert [column.decimal for column in data.schema.columns] == [".", None]
