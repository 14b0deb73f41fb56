"""Tables from the file to a fair model, as a user types it, on tables that nobody here prepared."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import datasets

import fedtilt as ft

pandas = pytest.importorskip("pandas")


def write_patients(path: Path, n: int = 1200) -> None:
    """Categories, dates, gaps, an identifier and free text, at three hospitals."""
    rng = np.random.default_rng(7)
    hospital = rng.choice(["north", "south", "island"], n, p=[0.5, 0.3, 0.2])
    ill = rng.random(n) < np.select([hospital == "north", hospital == "south"], [0.35, 0.25], 0.2)
    days = pandas.to_timedelta(rng.integers(0, 600, n), unit="D")
    frame = pandas.DataFrame(
        {
            "patient": [f"P{i:05d}" for i in range(n)],
            "age": rng.normal(50 + 12 * ill, 10).round(),
            "pressure": rng.normal(120 + 15 * ill, 12).round(1),
            "ward": np.where(rng.random(n) < 0.3, np.where(ill, "C", "A"), rng.choice(["A", "B", "C", "D"], n)),
            "smokes": rng.choice(["yes", "no"], n),
            "admitted": (pandas.Timestamp("2024-01-01") + days).strftime("%d.%m.%Y"),
            "note": [f"the patient said something about number {k} today" for k in rng.integers(0, 10**6, n)],
            "hospital": hospital,
            "diagnosis": np.where(ill, "ill", "well"),
        }
    )
    frame.loc[rng.random(n) < 0.05, "age"] = np.nan
    frame.loc[rng.random(n) < 0.1, "ward"] = None
    frame.to_csv(path, index=False)


def test_categories_dates_gaps_and_identifiers_in_two_commands(fedtilt, tmp_path: Path) -> None:
    write_patients(tmp_path / "patients.csv")
    names = ["--target", "diagnosis", "--client", "hospital"]
    assert fedtilt("init", "mine.toml", "--table", "patients.csv", *names).code == 0
    result = fedtilt("run", "mine.toml", "--out", "run", "--set", "train.workers=0", "--json")
    assert result.code == 0, result.err
    methods = json.loads(result.out)["methods"]
    assert methods["fedavg"]["accuracy"]["mean"] > 80
    assert methods["fedtilt"]["accuracy"]["mean"] > 80

    assert fedtilt("export", "run", "--method", "fedtilt", "--client", "island", "--to", "m.safetensors").code == 0
    new = pandas.read_csv("patients.csv").head(6).drop(columns=["patient", "note", "hospital", "diagnosis"])
    new.loc[0, ["age", "pressure", "ward", "smokes", "admitted"]] = None  # nothing but gaps
    new.loc[1, "ward"] = "a new ward"
    new.to_csv("new.csv", index=False)
    model, x = ft.models.load("m.safetensors"), ft.data.transform("new.csv", like="m.safetensors")
    assert torch.isfinite(model(x)).all()
    assert torch.equal(x, ft.data.transform("new.csv", like="run"))  # the run folder has the schema too
    probable = model(ft.data.transform("patients.csv", like="m.safetensors")).argmax(1)
    labels = pandas.read_csv("patients.csv")["diagnosis"].map({"ill": 0, "well": 1})
    assert (probable.numpy() == labels).mean() > 0.8


def test_warnings_are_printed_once(fedtilt, tmp_path: Path) -> None:
    write_patients(tmp_path / "patients.csv", 200)
    fedtilt("init", "mine.toml", "--table", "patients.csv", "--target", "diagnosis", "--client", "hospital")
    result = fedtilt("run", "mine.toml", "--out", "run", "--set", "train.rounds=1", "--set", "train.workers=0")
    lines = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    assert lines == [
        "warning: column 'patient' looks like an identifier and is dropped; add it to drop, or set its kind in a "
        "schema",
        "warning: column 'note' is free text or empty and is dropped; add it to drop, or set its kind in a schema",
    ]


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("breast_cancer", 93),
        pytest.param("wine", 90, marks=pytest.mark.slow),
        pytest.param("diabetes", 68, marks=pytest.mark.slow),
    ],
    ids=["breast_cancer", "wine", "diabetes"],
)
def test_tables_of_scikit_learn_in_two_commands(fedtilt, tmp_path: Path, name: str, least: float) -> None:
    bunch = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = bunch.frame
    if name == "diabetes":
        frame["target"] = np.where(frame["target"] > 140, "high", "low")  # the progression as a class
    else:
        frame["target"] = [str(bunch.target_names[k]) for k in frame["target"]]
    frame.to_csv(tmp_path / "table.csv", index=False)
    assert fedtilt("init", "mine.toml", "--table", "table.csv", "--target", "target").code == 0
    result = fedtilt("run", "mine.toml", "--out", "run", "--set", "train.workers=0", "--json")
    assert result.code == 0, result.err
    assert "warning" not in result.err
    for method, values in json.loads(result.out)["methods"].items():
        assert values["accuracy"]["mean"] > least, method


def test_data_show_describes_every_column(fedtilt, tmp_path: Path) -> None:
    write_patients(tmp_path / "patients.csv")
    assert "target    none: name the column" in fedtilt("data", "show", "patients.csv").out
    result = fedtilt("data", "show", "patients.csv", "--target", "diagnosis", "--client", "hospital")
    assert result.code == 0, result.err
    out = " ".join(result.out.split())
    for text in (
        "patients 1,200 rows, 9 columns",
        "clients hospital: island ",
        "split 25 % of each client's rows are test data, drawn at random (seed 0): 900 training, 300 test rows",
        "patient identifier dropped: names the row",
        "ward category 9 % A 39 %",
        "smokes yes/no ",
        "admitted date 2024-01-0",
        "warning: column 'patient' looks like an identifier and is dropped",
    ):
        assert text in out
    spec = 'methods = [{preset = "fedavg"}]\n[data]\nfile = "patients.csv"\ntarget = "diagnosis"\nclient = "hospital"\n'
    Path("mine.toml").write_text(spec + 'time = "admitted"\n')
    shown = fedtilt("data", "show", "mine.toml").out
    assert "the newest 25 % of each client's rows by 'admitted' are test data" in " ".join(shown.split())
    assert "clients: 0 = island, 1 = north, 2 = south" in shown
    for arguments, message in (
        (
            ["patients.csv", "--set", "train.rounds=1"],
            "--set train.rounds=1 does not describe a table; set a key of [data]",
        ),
        (
            ["mine.toml", "--target", "x"],
            "--target x describes a table, and mine.toml is none; in a spec, use --set data.t",
        ),
        (["https://example.org/x.csv"], "table https://example.org/x.csv is a URL; download it first"),
        (["infinite.csv"], "table infinite.csv has 'inf' in row 3, column 'a', but features are finite numbers"),
        (["infinite.csv", "--target", "b"], "table infinite.csv has 'inf' in row 3, column 'a'"),
    ):
        Path("infinite.csv").write_text("a,b\n1,0\ninf,1\n" + "2,0\n3,1\n" * 20)
        result = fedtilt("data", "show", *arguments)
        assert (result.code, result.out) == (2, "")
        assert message in result.err


def test_a_schema_is_written_edited_and_used(fedtilt, tmp_path: Path) -> None:
    write_patients(tmp_path / "patients.csv")
    names = ["--target", "diagnosis", "--client", "hospital"]
    result = fedtilt("data", "schema", "patients.csv", *names, "--to", "schema.json")
    assert result.code == 0, result.err
    assert "wrote schema.json: 7 columns, 14 inputs of a model" in result.out
    for file in ("schema.json", "schema.csv"):  # it exists; it would be JSON
        assert fedtilt("data", "schema", "patients.csv", "--to", file).code == 2
    printed = fedtilt("data", "schema", "patients.csv", *names).out
    assert printed == Path("schema.json").read_text()
    kinds = json.loads(fedtilt("data", "schema", "patients.csv", *names, "--kinds").out)["columns"]
    assert kinds["admitted"] == {"kind": "date", "format": "%d.%m.%Y"}
    schema = json.loads(printed)
    schema["columns"]["smokes"] = {"kind": "ignore"}
    Path("schema.json").write_text(json.dumps(schema))
    Path("mine.toml").write_text(
        'methods = [{preset = "fedavg"}]\n[data]\nfile = "patients.csv"\nschema = "schema.json"\n'
    )
    result = fedtilt("run", "mine.toml", "--out", "run", "--set", "train.rounds=2", "--set", "train.workers=0")
    assert result.code == 0, result.err
    assert "warning" not in result.err  # the schema says what is left out
    stored = json.loads(Path("run/seed-0/model.json").read_text())
    assert stored["schema"] == schema
    assert stored["model"]["input_shape"] == [13]


def test_show_says_whether_a_group_is_an_input(fedtilt, tmp_path: Path) -> None:
    write_patients(tmp_path / "patients.csv", 300)
    names = ["--target", "diagnosis", "--client", "hospital", "--group", "smokes"]
    shown = fedtilt("data", "show", "patients.csv", *names)
    assert "; also an input (group_is_input = false takes it out)" in shown.out
    shown = fedtilt("data", "show", "patients.csv", *names, "--set", "data.group_is_input=false")
    assert "; not an input of the model" in shown.out
