"""Files as spreadsheets and databases export them: read right, or with a warning and its remedy."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from fedtilt.data.tables.describe import describe_file
from fedtilt.data.tables.reader import original_rows
from fedtilt.data.tables.settings import TableSettings
from fedtilt.data.tables.table import new_rows, open_table
from fedtilt.data.tables.values import read_column
from fedtilt.errors import InputError

ROWS = 120
AGES = [20 + 7 * i % 60 for i in range(ROWS)]
LABELS = ["yes" if (i * i + 3 * i) % 7 < 3 else "no" for i in range(ROWS)]


def lines_of(cells: list[str], separator: str = ",", header: str = "extra") -> list[str]:
    rows = zip(AGES, LABELS, cells, strict=True)
    return [separator.join(["age", "ill", header]), *(separator.join(map(str, row)) for row in rows)]


def write(folder: Path, lines: list[str], *, newline: str = "\n", bom: bool = False) -> Path:
    path = folder / "export.csv"
    path.write_bytes((newline.join(lines) + newline).encode("utf-8-sig" if bom else "utf-8"))
    return path


def read(path: Path, **settings: object):
    table = open_table(path, TableSettings(target="ill", **settings))
    return table, table.to_dataset()


def column(path: Path, name: str = "extra"):
    table, data = read(path)
    known = data.schema.column(name)
    return known, read_column(table.reader, name, known), data


NUMBERS = {
    "percent": ([f"{i % 40} %" for i in range(ROWS)], ",", [i % 40 for i in range(ROWS)], "%"),
    "euros in front": ([f"€ {1 + i % 3}.{i % 10}00,50" for i in range(ROWS)], ";", None, "€"),
    "euros behind": ([f"{1 + i % 3}.{i % 10}00,50 €" for i in range(ROWS)], ";", None, "€"),
    "dollars": ([f'"${1 + i % 3},{i % 10}00.50"' for i in range(ROWS)], ",", None, "$"),
    "francs": ([f"CHF {1 + i % 3}'{i % 10}00.50" for i in range(ROWS)], ",", None, "CHF"),
    "debts": ([f'"-${1 + i % 3},{i % 10}00.50"' for i in range(ROWS)], ",", "negative", "$"),
    "times": (
        [f"{i % 24:02}:{15 * (i % 4):02}" for i in range(ROWS)], ",", [i % 24 + i % 4 / 4 for i in range(ROWS)], None,
    ),
    "times of one digit": (
        [f"{i % 24}:{15 * (i % 4):02}" for i in range(ROWS)], ",", [i % 24 + i % 4 / 4 for i in range(ROWS)], None,
    ),
    "padded to two digits": ([f"{i % 12:02}" for i in range(ROWS)], ",", [i % 12 for i in range(ROWS)], None),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_with_signs_are_numbers(name: str, tmp_path: Path) -> None:
    cells, separator, expected, unit = NUMBERS[name]
    if expected in (None, "negative"):
        expected = [(1 if expected is None else -1) * (1000 * (1 + i % 3) + 100 * (i % 10) + 0.5) for i in range(ROWS)]
    known, found, data = column(write(tmp_path, lines_of(cells, separator)))
    assert (known.kind, known.unit) == ("number", unit)
    assert found.values.tolist() == pytest.approx(expected)
    assert not data.warnings


def test_true_and_false_are_yes_and_no(tmp_path: Path) -> None:
    known, found, _ = column(write(tmp_path, lines_of(["TRUE" if i % 3 else "FALSE" for i in range(ROWS)])))
    assert known.kind == "yes/no"
    assert found.values.tolist() == [float(i % 3 > 0) for i in range(ROWS)]


def test_digits_with_zeros_in_front_are_names_for_new_rows_too(tmp_path: Path) -> None:
    cells = [f"{i % 9 * 123:05}" for i in range(ROWS)]
    known, found, data = column(write(tmp_path, lines_of(cells)))
    assert known.kind == "category"
    assert [found.names[k] for k in found.codes] == cells
    assert "digits as names, not numbers" in data.notes[-1]
    new = write(tmp_path, ["age,extra", "63,00123", "63,123"])
    x = new_rows(new, data.schema).x
    assert x[0].tolist() != x[1].tolist()  # 123 is another name
    frame = pandas.DataFrame({"age": AGES, "ill": LABELS, "extra": cells})
    assert open_table(frame, TableSettings(target="ill")).to_dataset().schema.column("extra") == known


@pytest.mark.parametrize("role", ["client", "target"])
def test_names_of_clients_and_classes_keep_their_zeros(role: str, tmp_path: Path) -> None:
    path = write(tmp_path, lines_of([f"00{i % 3}" for i in range(ROWS)]))
    settings = {"target": "ill"} | {role: "extra"}
    data = open_table(path, TableSettings(**settings, drop=("ill",) if role == "target" else ())).to_dataset()
    assert (data.client_names if role == "client" else data.class_names) == ("000", "001", "002")


@pytest.mark.parametrize("first", [123456789012345678, 9007199254740993, 12345678901234567890])
def test_numbers_with_more_digits_than_a_float_are_names(first: int, tmp_path: Path) -> None:
    cells = [str(first + 7 * i) for i in range(ROWS)]
    known, _, data = column(write(tmp_path, lines_of(cells)))
    assert known.kind == "identifier"
    assert data.warnings == (
        "column 'extra' looks like an identifier and is dropped; add it to drop, or set its kind in a schema",
    )
    few = [str(first + i % 4) for i in range(ROWS)]  # which float64 cannot tell apart
    known, found, _ = column(write(tmp_path, lines_of(few)))
    assert known.kind == "category"
    assert [found.names[k] for k in found.codes] == few
    if first < 2**63:
        frame = pandas.DataFrame({"age": AGES, "ill": LABELS, "extra": [first + i % 4 for i in range(ROWS)]})
        assert open_table(frame, TableSettings(target="ill")).to_dataset().schema.column("extra") == known


TOPS = [(["# exported by hand"], ","), (["#a", "# b, c"], ","), (["sep=;"], ";"), (["sep=;", "# x"], ";"),
        (["Patients of 2026"], ","), (["Patients, 2026;;", "", ";;"], ";"), ([""], ";")]  # fmt: skip


@pytest.mark.parametrize("bom", [False, True])
@pytest.mark.parametrize(("top", "separator"), TOPS, ids=[" ".join(top) for top, _ in TOPS])
def test_lines_above_the_header_are_left_out_and_said(
    top: list[str], separator: str, bom: bool, tmp_path: Path
) -> None:
    plain = lines_of([str(i % 7) for i in range(ROWS)], separator)
    table, data = read(write(tmp_path, [*top, *plain], newline="\r\n", bom=bom))
    assert [c.name for c in data.schema.columns] == ["age", "extra"]
    assert table.reader.rows[0] == f"row {len(top) + 2}"
    row = int(data.rows_train[5])
    assert original_rows(data, [5]) == {5: {"age": str(AGES[row]), "ill": LABELS[row], "extra": str(row % 7)}}
    text = describe_file(table.reader.tables[0])
    assert f"{len(top)} line{'s' * (len(top) > 1)} above the header skipped" in text
    with pytest.raises(InputError, match=rf"has 2 cells in row {len(top) + 4} but 3 columns; fix that row"):
        read(write(tmp_path, [*top, *plain[:3], separator.join("12"), *plain[3:]]))
    with pytest.raises(InputError, match=f"has '<5' in row {len(top) + 2}, column 'extra'"):
        read(write(tmp_path, [*top, *lines_of(["<5", *["7"] * (ROWS - 1)], separator)], bom=bom))


def test_one_column_has_no_title(tmp_path: Path) -> None:
    data = read(write(tmp_path, lines_of(["1,5", "2,25"] * (ROWS // 2), ";")))[1]
    extra = data.schema.with_columns([data.schema.columns[1]])
    x = new_rows(write(tmp_path, ["extra", '"1,5"', '"2,25"']), extra).x
    assert x[:, 0].tolist() == pytest.approx(
        [(v - extra.columns[0].mean) / extra.columns[0].deviation for v in (1.5, 2.25)]
    )


def test_lines_that_end_as_on_old_macs(tmp_path: Path) -> None:
    plain = lines_of([f"{i % 7}.5" for i in range(ROWS)])
    expected = read(write(tmp_path, plain))[1]
    assert torch.equal(read(write(tmp_path, plain, newline="\r"))[1].x_train, expected.x_train)


@pytest.mark.parametrize("kind", ["xlsx", "frame"])
def test_numbers_beside_numbers_as_text_are_what_they_are(kind: str, tmp_path: Path) -> None:
    def found(cells: list[object]) -> list[float]:
        frame = pandas.DataFrame({"age": AGES, "ill": LABELS, "extra": (cells * ROWS)[:ROWS]})
        if kind == "xlsx":
            pytest.importorskip("openpyxl")
            frame.to_excel(tmp_path / "t.xlsx", index=False, startrow=2)  # below a title
            table = open_table(tmp_path / "t.xlsx", TableSettings(target="ill"))
            assert table.reader.rows[0] == "row 4"
        else:
            table = open_table(frame, TableSettings(target="ill"))
        return read_column(table.reader, "extra").values[: len(cells)].tolist()

    assert found([2.234, "1,5", -0.125]) == [2.234, 1.5, -0.125]  # a decimal comma does not make it 2234
    assert found([1234.5, "1.200,5"]) == [1234.5, 1200.5]
    assert found([2.234, "5 mg"]) == [2.234, 5.0]
    assert np.isnan(found(["#DIV/0!", 2.234])).tolist() == [True, False]
    with pytest.raises(InputError, match="'1.200' in row .*, column 'extra', but it can be 1.2 or 1200"):
        found([950.5, "1.200"])  # 950.5 is no text: it says nothing about marks


def test_a_header_that_begins_with_a_number_sign_is_one(tmp_path: Path) -> None:
    lines = lines_of([str(i % 7) for i in range(ROWS)])
    _, data = read(write(tmp_path, ["#" + lines[0], *lines[1:]]))
    assert [c.name for c in data.schema.columns] == ["#age", "extra"]


def test_cells_with_bars_between_them(tmp_path: Path) -> None:
    _, data = read(write(tmp_path, lines_of([str(i % 7) for i in range(ROWS)], "|")))
    assert [c.name for c in data.schema.columns] == ["age", "extra"]


PLAIN = lines_of([str(i % 7) for i in range(ROWS)])
BROKEN = {
    "if row 1 ('Patients') is a title, delete what is above the header": ["Patients", "63,1", *PLAIN],
    "3 cells in row 2 but 2 columns; fix that row or, if row 1 ('A, B') is a title, delete what is above the header": [
        "A, B", *PLAIN,
    ],
    "its last cell is empty: end the header with ',' too": [PLAIN[0], *(f"{line}," for line in PLAIN[1:])],
    "has the column 'age' twice; rename one of them": [PLAIN[0].replace("extra", "age"), *PLAIN[1:]],
    "has 2 columns without a name; name them, or delete what is above the header": ["Patients,,", "63,1,yes", *PLAIN],
}  # fmt: skip


@pytest.mark.parametrize("message", BROKEN)
def test_what_cannot_be_read_has_a_remedy(message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(write(tmp_path, BROKEN[message]))
    assert message in str(error.value)


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_empty_rows_and_columns_are_skipped(kind: str, tmp_path: Path) -> None:
    lines = [f"{line};;" for line in lines_of(["1,5", "2,25"] * (ROWS // 2), ";")]
    plain = read(write(tmp_path, lines))[1]
    path = write(tmp_path, [*lines[:3], ";;;;", *lines[3:10], "", ";;;;", ";;;;", *lines[10:], ";;;;"])
    if kind == "xlsx":
        frame = pandas.read_csv(path, sep=";", decimal=",", skip_blank_lines=False)
        path = path.with_suffix(".xlsx")
        frame.to_excel(path, index=False, header=[*frame.columns[:3], None, None])
    table, data = read(path)
    assert torch.equal(data.x_train, plain.x_train)
    assert [table.reader.rows[n] for n in (1, 2, 8, 9, ROWS - 1)] == ["row 3", "row 5", "row 11", "row 15", "row 125"]
    row = int(data.rows_train[-1])
    assert original_rows(data, [len(data.rows_train) - 1]).popitem()[1]["age"].partition(".")[0] == str(AGES[row])
    assert "4 empty rows skipped" in data.notes[0]
    missing = new_rows(write(tmp_path, ["age;extra", "63;1,5", ";", "NA;NA"]), data.schema)
    assert list(missing.reader.rows) == ["row 2", "row 4"]  # words are cells


def beside(header: str, cells: Iterable[object]) -> list[str]:
    """The plain rows with one more column in front."""
    return [f"{cell},{line}" for cell, line in zip([header, *cells], PLAIN, strict=True)]


IS_ROW_NUMBER = "looks like an identifier: a different whole number in every row; drop it"
SUSPICIOUS = {
    "row 122 may have totals: 'Total' in column 'ill'; if so, delete it": [*PLAIN, "6000,Total,400"],
    "row 122 may have totals: 'Summe:' in column 'id'; if so, delete it": [
        *beside("id", (f"p{k}" for k in range(ROWS))), "Summe:,50,no,400",
    ],
    f"column 'Unnamed: 0' {IS_ROW_NUMBER}": beside("Unnamed: 0", range(ROWS)),
    f"column '' {IS_ROW_NUMBER}": beside("", range(ROWS)),
    f"column 'lfd' {IS_ROW_NUMBER}": beside("lfd", range(1, ROWS + 1)),
    "column 'result' alone predicts 'ill' in every row; if it is a copy of the label, drop it": beside(
        "result", ("" if k % 10 == 0 else f"is {label}" for k, label in enumerate(LABELS))
    ),
    "column 'share' has cells with % beside shares without it, such as 0.38, and reads both as percent": beside(
        "share", (f"{k % 40} %" if k % 2 else k % 40 / 100 for k in range(ROWS))
    ),
    "column 'unit' is constant in the training rows; its input is always the same: drop it": beside("unit", [3] * ROWS),
    "column 'balance' has no name with enough rows at a client (min_count), and all are one input": beside(
        "balance", (f"({k % 30}.5)" for k in range(ROWS))
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", SUSPICIOUS)
def test_what_may_be_wrong_is_a_warning_with_a_remedy(message: str, tmp_path: Path) -> None:
    _, data = read(write(tmp_path, SUSPICIOUS[message]))
    assert any(text.startswith(message) for text in data.warnings), data.warnings


def test_newlines_in_quotes_and_empty_lines_keep_the_numbers_of_rows(tmp_path: Path) -> None:
    lines = lines_of(['"a\nb"' if i % 2 else '"c, d"' for i in range(ROWS)])
    table, data = read(write(tmp_path, [*lines[:3], "", *lines[3:]]))
    assert set(data.schema.column("extra").categories) == {"a\nb", "c, d"}
    assert np.array(table.reader.rows)[:3].tolist() == ["row 2", "row 4", "row 6"]


def test_a_workbook_has_one_sheet_with_cells(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.create_sheet("empty")
    table = book.create_sheet("patients")
    for line in lines_of([f"{i % 9:05}" for i in range(ROWS)]):
        age, *others = line.split(",")
        table.append([int(age) if age.isdecimal() else age, *others])
    book.save(tmp_path / "export.xlsx")
    _, data = read(tmp_path / "export.xlsx")
    assert [(c.name, c.kind) for c in data.schema.columns] == [("age", "number"), ("extra", "category")]
    plain = new_rows(tmp_path / "export.xlsx", data).x
    book.worksheets[1].append(["a note"])
    book.save(tmp_path / "export.xlsx")
    with pytest.raises(InputError, match="has the sheets 'empty', 'patients'; set sheet to the one with the table"):
        read(tmp_path / "export.xlsx")
    _, chosen = read(tmp_path / "export.xlsx", sheet="patients")
    assert chosen.schema.columns == data.schema.columns
    assert original_rows(chosen, [0])[0]["age"] == str(float(AGES[int(chosen.rows_train[0])]))
    assert torch.equal(new_rows(tmp_path / "export.xlsx", chosen).x, plain)  # the schema has the sheet
    with pytest.raises(InputError, match="has no sheet 'wards'; its sheets are 'empty', 'patients'"):
        read(tmp_path / "export.xlsx", sheet="wards")
    (tmp_path / "export.csv").write_text("age,extra,ill\n1,a,0\n2,b,1\n")
    with pytest.raises(InputError, match=r"sheet = 'patients' is of .xlsx files, and .*export.csv is none"):
        read(tmp_path / "export.csv", sheet="patients")


@pytest.mark.parametrize("top", ["", "# a comment\n"])
def test_compressed_files_are_read_alike(top: str, tmp_path: Path) -> None:
    lines = lines_of([f"{i % 9:05}" for i in range(ROWS)])
    path = tmp_path / "export.csv.gz"
    path.write_bytes(gzip.compress((top + "\n".join(lines)).encode()))
    table, data = read(path)
    assert data.schema == read(write(tmp_path, lines))[1].schema
    assert table.reader.rows[0] == f"row {2 + bool(top)}"
