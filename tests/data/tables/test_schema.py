"""The schema of a table: kinds, gaps, categories, dates, and the file that people edit."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtilt.data import Column, Schema, table, transform
from fedtilt.data.tables.schema import read_schema
from fedtilt.errors import InputError

pandas = pytest.importorskip("pandas")


def patients(n=240, seed=0):
    """A table with a column of every kind, and gaps."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.4
    frame = pandas.DataFrame(
        {
            "patient": [f"P{i:04d}" for i in range(n)],
            "age": rng.normal(50 + 10 * ill, 8).round(1),
            "ward": rng.choice(["a", "b", "c"], n),
            "smokes": rng.choice(["yes", "no"], n),
            "admitted": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 500, n), unit="D"),
            "note": [f"the patient said that it hurts, for the {i}th time today" for i in range(n)],
            "diagnosis": np.where(ill, "ill", "well"),
        }
    )
    frame.loc[rng.random(n) < 0.1, "age"] = np.nan
    frame.loc[rng.random(n) < 0.1, "ward"] = None
    frame.loc[[3, 7], "ward"] = "d"  # rare
    return frame


def test_numbers_are_standardised_as_numpy_does():
    rng = np.random.default_rng(1)
    x, fold = rng.normal(3, [1, 10, 1e-3], (200, 3)), rng.choice(["train", "train", "test"], 200)
    frame = pandas.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.arange(200) % 2, fold=fold)
    data = table(frame, target="y", split_column="fold")
    train = x[fold == "train"]
    expected = torch.from_numpy(((x - train.mean(axis=0)) / train.std(axis=0)).astype(np.float32))
    assert torch.equal(data.x_train, expected[fold == "train"])
    assert torch.equal(data.x_test, expected[fold == "test"])


def test_the_kinds_of_all_columns():
    data = table(patients(), target="diagnosis")
    kinds = {column.name: column.kind for column in data.schema.columns}
    assert kinds == {
        "patient": "identifier", "age": "number", "ward": "category", "smokes": "yes/no", "admitted": "date",
        "note": "ignore",
    }  # fmt: skip
    assert data.schema.inputs == (
        "age", "age is missing", "ward = a", "ward = b", "ward = c", "ward = other", "ward is missing", "smokes",
        "admitted", "admitted, month, sine", "admitted, month, cosine", "admitted, weekday, sine",
        "admitted, weekday, cosine",
    )  # fmt: skip
    assert data.class_names == ("ill", "well")
    assert data.schema.classes == ("ill", "well")


def test_inputs_equal_those_of_scikit_learn():
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = patients()
    data = table(frame, target="diagnosis")
    train = frame.iloc[data.rows_train.numpy()]
    age = data.schema.column("age")
    assert age.fill == train["age"].median()
    number = make_pipeline(SimpleImputer(strategy="median"))
    encoder = OneHotEncoder(min_frequency=5, handle_unknown="infrequent_if_exist", sparse_output=False)
    both = ColumnTransformer([("number", number, ["age"]), ("ward", encoder, ["ward"])]).fit(train)
    imputed = both.transform(frame)
    expected = StandardScaler().fit(train[["age"]].dropna().to_numpy()).transform(imputed[:, :1])
    got = transform(frame, like=data).numpy()
    assert np.allclose(got[:, :1], expected, atol=1e-6)
    assert got[:, 1].tolist() == frame["age"].isna().astype(float).tolist()
    names = [str(name).removeprefix("ward__ward_") for name in both.get_feature_names_out()[1:]]
    known = ("a", "b", "c", "infrequent_sklearn")
    order = [names.index(name) for name in (*known, *(set(names) - set(known)))]  # the last is the missing one
    assert np.array_equal(got[:, 2:7], imputed[:, 1:][:, order])


def test_dates_are_days_months_and_weekdays():
    data = table(patients(), target="diagnosis")
    start = data.schema.inputs.index("admitted")
    days = pandas.to_datetime(["2026-01-05", "2026-07-09"])  # a Monday in January, a Thursday in July
    new = patients().head(2).assign(admitted=days)
    date, got = data.schema.column("admitted"), transform(new, like=data)[:, start : start + 5]
    elapsed = [(d.timestamp() / 86400 - date.mean) / date.deviation for d in days]
    assert got[:, 0].tolist() == pytest.approx(elapsed, rel=1e-6)
    assert got[0, 1:].tolist() == pytest.approx([0, 1, 0, 1], abs=1e-6)
    turn = 2 * np.pi * np.array([6 / 12, 3 / 7])
    assert got[1, 1:].tolist() == pytest.approx(
        [np.sin(turn[0]), np.cos(turn[0]), np.sin(turn[1]), np.cos(turn[1])], abs=1e-6
    )


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (["2026-01-31", "2026-02-01"], "2026-01-31"),
        (["31.01.2026", "01.02.2026"], "2026-01-31"),
        (["01/31/2026", "02/01/2026"], "2026-01-31"),
        (["31/01/2026", "01/02/2026"], "2026-01-31"),
        (["31 Jan 2026", "1 Feb 2026"], "2026-01-31"),
        (["2026-01-31 12:00:00", "2026-02-01 12:00:00"], "2026-01-31T12"),
    ],
)
def test_dates_are_read_as_people_write_them(tmp_path, texts, first):
    path = tmp_path / "t.csv"
    path.write_text("when,y\n" + "".join(f"{texts[n % 2]},{n % 3 % 2}\n" for n in range(60)))
    data = table(path, target="y")
    column = data.schema.column("when")
    assert column.kind == "date"
    start = np.datetime64(first, "s").astype(np.int64) / 86400
    assert (transform(path, like=data)[0, 0] * column.deviation + column.mean).item() == pytest.approx(start, abs=1e-2)


def test_new_rows_may_have_gaps_and_unseen_categories():
    data = table(patients(), target="diagnosis")
    new = patients().head(4).copy()
    new["ward"] = ["a", "unseen", None, "d"]
    new["age"] = [40.0, None, 50.0, 60.0]
    new.loc[2, "smokes"] = None  # training rows have no gaps here
    new.loc[3, "admitted"] = pandas.NaT
    got = transform(new.drop(columns=["patient", "note", "diagnosis"]), like=data)
    assert got[:, 2:7].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
    assert got[:, 1].tolist() == [0, 1, 0, 0]
    age, smokes = data.schema.column("age"), data.schema.column("smokes")
    assert got[1, 0].item() == pytest.approx((age.fill - age.mean) / age.deviation)
    assert got[2, 7].item() == pytest.approx((smokes.fill - smokes.mean) / smokes.deviation)
    assert torch.isfinite(got).all()


def test_a_new_name_in_a_column_that_was_constant_changes_no_input():
    """Its weight is a part of the bias: an input of 0 instead of 1 would shift every prediction."""
    data = table(patients().assign(unit="mg/l"), target="diagnosis")
    new = patients().head(3).assign(unit=["mg/l", "mg/dl", None])
    inputs = transform(new, like=data)[:, list(data.schema.inputs).index("unit = mg/l")]
    assert inputs.tolist() == [1, 1, 1]


def test_a_schema_file_is_read_back_and_edited(tmp_path):
    frame, path = patients(), tmp_path / "schema.json"
    data = table(frame, target="diagnosis")
    data.schema.write(path)
    assert read_schema(path) == data.schema
    assert all(len(line) < 200 for line in path.read_text().splitlines())  # a line per column
    assert torch.equal(table(frame, schema=path).x_train, data.x_train)
    assert torch.equal(transform(frame, like=path), transform(frame, like=data))
    edited = json.loads(path.read_text())
    edited["columns"]["age"] = {"kind": "ignore"}
    edited["columns"]["ward"] = {"kind": "category", "categories": ["c"]}  # whether others exist is inferred
    edited["columns"]["smokes"] = {"kind": "category"}
    path.write_text(json.dumps(edited))
    changed = table(frame, schema=path)
    assert changed.schema.inputs[:5] == ("ward = c", "ward = other", "ward is missing", "smokes = no", "smokes = yes")
    assert changed.x_train[:, 3:5].sum(1).tolist() == [1.0] * len(changed.x_train)
    rare = Column(name="ward", kind="category", gaps=False, categories=(), other=True)  # all its names are rare
    assert Column.from_json("ward", rare.to_json()) == rare
    kinds = data.schema.kinds()
    assert kinds.column("age") == Column(name="age", kind="number")
    assert table(frame, schema=kinds).schema == data.schema


@pytest.fixture(scope="module")
def with_schema():
    frame = patients()
    frame.loc[0, "ward"] = None
    return frame, table(frame, target="diagnosis").schema.text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("columns"), 'has no "columns"; write one with fedtilt data schema'),
        (lambda s: s.update(version=2), "its version is 2; this fedtilt reads version 1"),
        (lambda s: s.update(labels="x"), "it has the unknown key 'labels'; a schema has target, "),
        (lambda s: s["columns"]["age"].update(kind="float"), "column 'age': unknown kind 'float'; choose one of"),
        (lambda s: s["columns"]["age"].update(kind="category"), "column 'age' is of kind 'category', which has no"),
        (lambda s: s["columns"]["age"].update(median=5), "column 'age' has the unknown key 'median'; a column has"),
        (lambda s: s["columns"]["age"].update(deviation=-1), "column 'age': deviation must be a number ≥ 0, got -1"),
        (lambda s: s["columns"]["age"].update(mean="x"), "column 'age': mean must be a number, got 'x'"),
        (lambda s: s["columns"]["ward"].update(categories="abc"), "categories of column 'ward' are 'abc'; give a list"),
        (lambda s: s["columns"]["ward"].update(categories=["a", "a"]), "categories of column 'ward' has a name twice"),
        (lambda s: s["columns"]["ward"].update(other=1), "column 'ward': other must be True or False, got 1"),
        (lambda s: s["columns"].update(age=5), 'column \'age\' is 5; write {"kind": …} with one of number'),
        (lambda s: s["columns"]["admitted"].update(format="dd.mm"), "format of column 'admitted' is 'dd.mm'; write"),
        (lambda s: s.update(client="age"), "the schema has 'age' as client and as a column; remove one"),
        (lambda s: s.update(min_count=0), "min_count of the schema must be a whole number ≥ 1, got 0"),
        (lambda s: s.update(classes=["ill"]), "has 'well' in row 0, column 'diagnosis'; the schema's classes are ill"),
        (lambda s: s["columns"].pop("age"), "table DataFrame has the column 'age', which the schema lacks"),
        (lambda s: s["columns"].update(dose={"kind": "number"}), "schema = 'dose' is not a column of DataFrame"),
        (lambda s: s["columns"].update(ward={"kind": "number"}), "in row 1, column 'ward', but the column has numbers"),
        (lambda s: s["columns"].update(ward={"kind": "yes/no"}), "column 'ward', but yes/no columns have two words"),
        (lambda s: s["columns"].update(admitted={"kind": "number"}), "column 'admitted' of DataFrame is a date, not"),
    ],
)  # fmt: skip
def test_bad_schemas_are_refused(tmp_path, with_schema, change, message):
    (frame, text), path = with_schema, tmp_path / "schema.json"
    schema = json.loads(text)
    change(schema)
    path.write_text(json.dumps(schema))
    with pytest.raises(InputError) as error:
        table(frame, schema=path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_roles_of_a_schema_and_arguments_must_agree():
    schema = table(patients(), target="diagnosis").schema
    with pytest.raises(InputError, match="target = 'ward' differs from the schema's, 'diagnosis'; correct one of them"):
        table(patients(), target="ward", schema=schema)
    assert table(patients(), schema=replace(schema, target=None), target="diagnosis").schema == schema


def test_columns_may_be_called_1(tmp_path):
    frame = pandas.DataFrame({0: np.arange(40.0), 1: np.arange(40) % 2, 2: ["x", "y"] * 20, 3: 5.0})
    data = table(frame, target=1, client=2, drop=[3])
    assert (data.schema.target, data.schema.inputs, data.client_names) == ("1", ("0",), ("x", "y"))
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert torch.equal(table(tmp_path / "t.csv", target=1, client=2, drop=[3]).x_train, data.x_train)


def test_whole_numbers_can_be_categories(tmp_path):
    frame = pandas.DataFrame({"zip": np.arange(60) % 4, "y": np.arange(60) % 2})
    schema = Schema(columns=(Column(name="zip", kind="category"),))
    data = table(frame, target="y", schema=schema)
    assert data.schema.inputs == ("zip = 0", "zip = 1", "zip = 2", "zip = 3")
    frame["zip"] = frame["zip"].astype(float)
    frame.loc[0, "zip"] = np.nan  # now 1.0, 2.0, …
    assert transform(frame, like=data)[:2].tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]


def test_categories_are_read_as_they_are_written(tmp_path):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("code,y\n" + "".join(f"{['01', '1', 'A1'][n % 3]},{n % 2}\n" for n in range(60)))
    new.write_text("code\n01\n1\n2\n")  # only numbers
    data = table(old, target="y")
    assert data.schema.inputs == ("code = 01", "code = 1", "code = A1")
    assert transform(new, like=data).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    old.write_text("zip,y\n" + "".join(f"{['01067', '1067'][n % 3 % 2]},{n % 2}\n" for n in range(60)))
    given = Schema(columns=(Column(name="zip", kind="category"),))
    assert table(old, target="y", schema=given).schema.inputs == ("zip = 01067", "zip = 1067")


def test_text_with_numbers_and_something_else_names_the_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("dose,y\n" + "".join(f"{'<5' if n == 7 else n},{n % 2}\n" for n in range(60)))
    with pytest.raises(
        InputError, match=r"has '<5' in row 9, column 'dose', but the column has numbers: correct the c"
    ):
        table(path, target="y")
    path.write_text("when,y\n" + "".join(f"{'soon' if n == 7 else '31.01.2026'},{n % 2}\n" for n in range(60)))
    with pytest.raises(
        InputError, match=r"has 'soon' in row 9, column 'when', but the column has dates such as 31.01.2026"
    ):
        table(path, target="y")


def test_groups_and_weights_come_along():
    frame = patients().assign(sex=["f", "m", "x"] * 80, importance=np.arange(240) / 10)
    data = table(frame, target="diagnosis", group="sex", weight="importance")
    positions = data.rows_train.numpy()
    assert data.group_names == {"sex": ("f", "m", "x")}
    assert data.group_train["sex"].tolist() == [p % 3 for p in positions]
    assert data.weight_train.tolist() == pytest.approx([p / 10 for p in positions])
    assert "sex" not in data.schema.inputs
    frame.loc[5, "importance"] = -1
    with pytest.raises(InputError, match="has -1 in row 5, column 'importance'; weights are numbers ≥ 0"):
        table(frame, target="diagnosis", weight="importance")
    frame.loc[5, "importance"] = np.nan
    with pytest.raises(InputError, match="has an empty cell in row 5, column 'importance'; weights are numbers ≥ 0"):
        table(frame, target="diagnosis", weight="importance")


def test_targets_that_are_no_numbers():
    frame = patients().assign(cost=["high", "low"] * 120)
    with pytest.raises(InputError, match="'high' in row 0, column 'cost', but targets of regression are numbers"):
        table(frame, target="cost", task="regression")


def test_a_category_without_inputs(tmp_path):
    """A schema may leave a column no input; the others are as without it."""
    frame = pandas.DataFrame({"ward": ["a", "b"] * 20, "age": np.arange(40.0), "ill": [0, 1] * 20})
    schema = Schema(columns=(Column(name="ward", kind="category", categories=(), other=False, gaps=False),
                             Column(name="age", kind="number")))  # fmt: skip
    data = table(frame, target="ill", schema=schema)
    assert data.schema.inputs == ("age",)
    assert torch.equal(data.x_train, table(frame, target="ill", drop=["ward"]).x_train)
    alone = replace(data.schema, columns=data.schema.columns[:1])
    assert transform(frame, like=alone).shape == (40, 0)
