"""The user's own table: what is read, and errors that name the row and the column."""

import io
import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from fedtilt.data import Column, Dataset, Schema, table, transform
from fedtilt.data.naming import sort_names
from fedtilt.data.tables.settings import TableSettings
from fedtilt.data.tables.table import open_table
from fedtilt.errors import InputError

CSV = "age,site,dose,well\n" + "".join(
    f"{20 + n},{'AB'[n % 2]},{n * 0.5},{'yes' if n % 4 < 2 else 'no'}\n" for n in range(16)
)


def write(tmp_path, text, name="sites.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_with_clients(tmp_path):
    data = table(write(tmp_path, CSV), target="well", client="site")
    assert data.name == "sites"
    assert data.class_names == ("no", "yes")
    assert data.client_names == ("A", "B")
    assert data.x_train.shape == (12, 2)
    assert data.x_test.shape == (4, 2)
    assert data.client_test.bincount().tolist() == [2, 2]
    for client in (0, 1):
        assert data.y_test[data.client_test == client].bincount(minlength=2).tolist() == [1, 1]
    assert data.x_train.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert data.x_train.std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)
    # age and dose rise together, so standardised they are the same number
    assert torch.allclose(data.x_test[:, 0], data.x_test[:, 1], atol=1e-6)


def test_csv_details(tmp_path):
    text = "\ufeffa,b,label\n1,5,10\n\n2,5,9\n3,5,10\n4,5,9\n"
    data = table(write(tmp_path, text), target="label", test_share=0.5)
    assert data.class_names == ("9", "10")  # numbers sort by value
    assert data.client_train is None
    assert data.x_train[:, 1].tolist() == [0, 0]  # a constant feature
    tabs = table(write(tmp_path, text.replace(",", "\t"), "x.tsv"), target="label", test_share=0.5)
    assert torch.equal(tabs.x_train, data.x_train)
    other = {table(write(tmp_path, CSV), target="well", client="site", seed=s).x_test.sum().item() for s in range(5)}
    assert len(other) > 1


@pytest.mark.parametrize("constant", [0.0, 0.1, -5.0, 1e-300, 1e30])
def test_a_feature_that_is_constant_in_training_is_0_everywhere(constant):
    pandas = pytest.importorskip("pandas")
    fold = ["train"] * 30 + ["test"] * 10
    same = [constant] * 39 + [2 * constant + 0.1]  # a test row may differ
    frame = pandas.DataFrame({"same": same, "n": range(40), "y": [0, 1] * 20, "fold": fold})
    data = table(frame, target="y", split_column="fold")
    assert data.schema.column("same").deviation == 0
    assert not data.x_train[:, 0].any()
    assert not data.x_test[:, 0].any()
    assert data.x_train[:, 1].std(correction=0).item() == pytest.approx(1)


def test_a_feature_that_barely_varies_is_still_standardised():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": 1000 + 1e-6 * np.arange(40.0), "y": [0, 1] * 20})
    assert table(frame, target="y").x_train.std(correction=0).item() == pytest.approx(1)


def test_a_constant_column_of_a_file(tmp_path):
    rows = [f"{n},{0.1},{'ab'[n % 2]}" for n in range(40)]
    data = table(write(tmp_path, "\n".join(["n,same,label", *rows])), target="label")
    assert data.x_train[:, 1].tolist() == [0] * 30
    assert data.x_test[:, 1].tolist() == [0] * 10


def test_new_rows_are_standardised_like_the_training_rows(tmp_path):
    data = table(write(tmp_path, CSV), target="well", client="site")
    train = [n for n in range(16) if any(abs(20 + n - age) < 1e-3 for age in _ages(data))]
    age, dose = data.schema.columns
    assert data.schema.inputs == ("age", "dose")
    assert (age.mean, dose.mean) == pytest.approx((20 + np.mean(train), 0.5 * np.mean(train)))
    assert (age.deviation, dose.deviation) == pytest.approx((np.std(train), 0.5 * np.std(train)))
    new = write(tmp_path, "dose,note,age\n0.5,hello,21\n100,,20\n", "new.csv")  # another order, another column
    expected = [[(x - c.mean) / c.deviation for x, c in zip(row, (age, dose), strict=True)]
                for row in ([21, 0.5], [20, 100])]  # fmt: skip
    assert torch.allclose(transform(new, like=data), torch.tensor(expected))
    all_rows = transform(tmp_path / "sites.csv", like=data)
    assert {tuple(row.tolist()) for row in all_rows} == {
        tuple(r.tolist()) for r in torch.cat([data.x_train, data.x_test])
    }


def _ages(data):
    age = data.schema.column("age")
    return (data.x_train[:, 0] * age.deviation + age.mean).tolist()


def test_rows_that_do_not_match_the_features_are_refused(tmp_path):
    data = table(write(tmp_path, CSV), target="well", client="site")
    with pytest.raises(InputError, match=r"has no column 'dose', which the model was trained on; its columns are age$"):
        transform(write(tmp_path, "age\n5\n", "new.csv"), like=data)
    bare = Dataset(
        name="bare", x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test, classes=2
    )
    with pytest.raises(InputError, match=r"'bare' has no schema; give a data set that ft.data.table returned"):
        transform(tmp_path / "sites.csv", like=bare)
    with pytest.raises(InputError, match=r"like is a list; give a data set, a schema, or the path of an exported"):
        transform(tmp_path / "sites.csv", like=[])
    with pytest.raises(InputError, match=r"new.csv is not a safetensors file"):
        transform(tmp_path / "sites.csv", like=tmp_path / "new.csv")
    with pytest.raises(InputError, match=r"no.safetensors cannot be read"):
        transform(tmp_path / "sites.csv", like=tmp_path / "no.safetensors")
    with pytest.raises(InputError, match=r"has a schema of 1 inputs for samples of shape \(2,\); give the schema"):
        replace(data, schema=Schema(columns=(Column(name="a", kind="number"),)))
    with pytest.raises(InputError, match=r"has no statistics of column 'age'; write it with fedtilt data schema"):
        transform(tmp_path / "sites.csv", like=Schema(columns=(Column(name="age", kind="number"),)))


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("10", "9", "-1.5"), ("-1.5", "9", "10")),
        (("1", "1.0", "01"), ("01", "1", "1.0")),
        (("1", "2", "10", "nan"), ("1", "10", "2", "nan")),
        (("1", "2", "10", "inf"), ("1", "10", "2", "inf")),
        (("nan", "NaN", "-nan", "2"), ("-nan", "2", "NaN", "nan")),
        (("b", "a", "2"), ("2", "a", "b")),
    ],
)
def test_names_are_sorted_independently_of_their_order(names, order):
    assert {sort_names(permuted) for permuted in itertools.permutations(names)} == {order}


def test_labels_and_clients_called_nan(tmp_path):
    text = "a,site,label\n" + "".join(f"{n},{['2', '10', 'nan'][n % 3]},{['3', 'nan'][n % 2]}\n" for n in range(48))
    data = table(write(tmp_path, text), target="label", client="site")
    assert data.class_names == ("3", "nan")
    assert data.client_names == ("10", "2", "nan")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV.replace("23,B", "old,B"), r"'old' in row 5, column 'age'"),
        (CSV.replace("23,B", "inf,B"), r"'inf' in row 5, column 'age', but features are finite numbers"),
        (CSV.replace("23,B", "23,"), r"empty cell in row 5, column 'site'"),
        (CSV.replace("23,B", "23,B,7"), r"5 cells in row 5 but 4 columns"),
        (CSV.replace("dose", "age"), r"'age' twice"),
        (CSV.replace("well", "ill"), r"target = 'well' is not a column .* age, site, dose, ill"),
        (CSV.replace("site", "ward"), r"client = 'site' is not a column"),
        (CSV.replace("yes", "no"), r"one class, 'no'"),
        ("site,well\nA,1\nB,2\n", r"no feature column"),
        ("age,site,dose,well\n", r"0 rows"),
        ("", r"is empty"),
    ],
)
def test_bad_tables_name_row_and_column(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        table(write(tmp_path, text), target="well", client="site")


@pytest.mark.parametrize("value", ["inf", "-inf"])
@pytest.mark.parametrize("role", ["feature", "constant", "weight", "time"])
@pytest.mark.parametrize("side", ["train", "test"])
def test_an_infinite_number_is_refused_in_every_row_and_column(tmp_path, value, role, side):
    """Statistics are of training rows alone; an infinite number in a test row is found too."""
    lines = [f"{n % 9 if role != 'constant' else 3},{n % 9},{n % 2},{('train', 'test')[n % 2]}" for n in range(40)]
    number = 6 if side == "train" else 7
    lines[number] = f"{value}," + lines[number].split(",", 1)[1]
    path = write(tmp_path, "\n".join(["dose,age,well,side", *lines]))
    message = rf"has '{value}' in row {number + 2}, column 'dose', but features are finite numbers"
    roles = {role: "dose"} if role in ("weight", "time") else {}
    split = {} if role == "time" else {"split_column": "side"}
    with pytest.raises(InputError, match=message):
        table(path, target="well", **roles, **split)
    if not roles:
        with pytest.raises(InputError, match=message):
            open_table(path, TableSettings()).infer()
        good = write(tmp_path, path.read_text().replace(value, "3"), "good.csv")
        with pytest.raises(InputError, match=message):
            transform(path, like=table(good, target="well", **split))


def _labelled(labels):
    return "age,well\n" + "".join(f"{n % 7},{label}\n" for n, label in enumerate(labels))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [n % 5 / 2 for n in range(90)],
            r"target = 'well' of .*sites.csv has numbers such as 0.5, which are not classes; set task = 'regression'",
        ),
        (range(12), r"has 12 classes in 12 rows, 12 of them in one row; set task = 'regression' if"),
        ([f"id {n}" for n in range(12)], r"12 of them in one row; name another column, or group them into fewer"),
        ([n // 2 for n in range(90)], r"has 45 classes in 90 rows, 0 of them in one row"),
        ([0, 0, 1, 1, 2, 3, 4], r"has 5 classes in 7 rows, 3 of them in one row"),
    ],
)
def test_a_target_without_classes_is_refused(tmp_path, labels, message):
    with pytest.raises(InputError, match=message):
        table(write(tmp_path, _labelled(labels)), target="well")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([f"{n % 3}.0" for n in range(9)], 3),
        ([n % 20 for n in range(60)], 20),
        ([n % 30 for n in range(300)], 30),
        (["1.5", "v2"] * 4, 2),
        ([0, 0, 1, 1, 2, 3], 4),
    ],
)
def test_a_target_of_classes_is_accepted(tmp_path, labels, classes):
    assert table(write(tmp_path, _labelled(labels)), target="well").classes == classes


def test_bad_table_arguments(tmp_path):
    path = write(tmp_path, CSV)
    with pytest.raises(InputError, match=r"does not exist"):
        table(tmp_path / "no.csv", target="well")
    with pytest.raises(InputError, match=r"suffix '.ods'; give a .csv, .tsv, .csv.gz, .parquet or .xlsx file"):
        table(tmp_path / "no.ods", target="well")
    with pytest.raises(InputError, match=r"test_share = 1"):
        table(path, target="well", test_share=1)
    with pytest.raises(InputError, match=r"test_share must be a number, got '0.25'"):
        table(path, target="well", test_share="0.25")
    with pytest.raises(InputError, match=r"seed must be a whole number, got 5.7"):
        table(path, target="well", seed=5.7)
    with pytest.raises(InputError, match=r"both 'well'"):
        table(path, target="well", client="well")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"UTF-8"):
        table(path, target="well")


def test_parquet_with_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "sites.parquet"
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xffa")]
    )
    pyarrow.parquet.write_table(pa.table({"name": text, "y": [0, 1]}), path)
    with pytest.raises(InputError, match=r"sites.parquet is not a readable Parquet file"):
        table(path, target="name")


def test_parquet_reads_like_csv(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_csv(io.StringIO(CSV))
    path = tmp_path / "sites.parquet"
    frame.to_parquet(path)
    data, same = (table(p, target="well", client="site") for p in (path, write(tmp_path, CSV)))
    for part in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test"):
        assert torch.equal(getattr(data, part), getattr(same, part))
    frame.loc[3, "site"] = None
    frame.to_parquet(path)
    with pytest.raises(InputError, match=r"empty cell in row 5, column 'site'"):
        table(path, target="well", client="site")
    damaged_column = b"PAR1" + bytes(100) + path.read_bytes()[104:]
    for content in (b"no Parquet", damaged_column):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"sites.parquet is not a readable Parquet file"):
            table(path, target="well")


def test_a_data_frame_reads_like_its_file(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(io.StringIO(CSV))
    data, same = table(frame, target="well", client="site"), table(write(tmp_path, CSV), target="well", client="site")
    assert data.name == "DataFrame"
    for part in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test"):
        assert torch.equal(getattr(data, part), getattr(same, part))
    assert torch.equal(transform(frame[["dose", "age"]], like=data), transform(tmp_path / "sites.csv", like=same))
    coded = pandas.get_dummies(frame, columns=["site"])  # columns of True and False
    coded.to_csv(tmp_path / "coded.csv", index=False)
    assert torch.equal(table(coded, target="well").x_train, table(tmp_path / "coded.csv", target="well").x_train)
    assert table(coded, target="well").schema.inputs == ("age", "dose", "site_A", "site_B")
    frame.index = [f"patient {n}" for n in range(16)]
    frame.loc["patient 3", "site"] = None
    with pytest.raises(InputError, match=r"table DataFrame has an empty cell in row patient 3, column 'site'"):
        table(frame, target="well", client="site")
    with pytest.raises(InputError, match=r"table DataFrame has the column 'age' twice"):
        table(frame.rename(columns={"dose": "age"}), target="well", client="site")
    with pytest.raises(InputError, match=r"path of a file or a pandas DataFrame, not a list; save it as CSV first, or"):
        table([[1, 2]], target="well")


def test_true_and_false_are_1_and_0(tmp_path):
    words = CSV.replace("dose", "smokes")
    for n in range(16):
        words = words.replace(f",{n * 0.5},", f",{['True', 'FALSE', 'false'][n % 3]},")
    data = table(write(tmp_path, words), target="well", drop=["site"])
    share = [n % 3 == 0 for n in range(16)]
    column = data.schema.column("smokes")
    assert column.kind == "yes/no"
    smokes = transform(tmp_path / "sites.csv", like=data)[:, 1] * column.deviation + column.mean
    assert smokes.round().tolist() == share


def test_semicolons_are_recognised(tmp_path):
    same = table(write(tmp_path, CSV), target="well", client="site")
    text = CSV.replace(",", ";").replace("dose", '"dose, in mg, daily"')
    data = table(write(tmp_path, text, "semi.csv"), target="well", client="site")
    assert torch.equal(data.x_train, same.x_train)
    assert data.schema.inputs == ("age", "dose, in mg, daily")
    commas = table(write(tmp_path, CSV.replace(",", ";").replace(".", ",")), target="well", client="site")
    assert torch.equal(commas.x_train, same.x_train)


def test_columns_to_drop(tmp_path):
    path = write(tmp_path, CSV)
    data = table(path, target="well", client="site", drop=["dose"])
    assert data.schema.inputs == ("age",)
    assert torch.equal(data.x_train, table(path, target="well", client="site").x_train[:, :1])
    for drop, message in (
        ("dose", r"drop must be a list, got 'dose'"),
        (["doze"], r"drop = 'doze' is not a column of .*; its columns are age, site, dose, well"),
        (["site"], r"drop contains 'site', which is the client; leave it out"),
        (["age", "dose"], r"no feature column"),
    ):
        with pytest.raises(InputError, match=message):
            table(path, target="well", client="site", drop=drop)
