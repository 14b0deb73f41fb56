"""`fedtilt init`: a spec that loads, never over a file of the user's."""

import json
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import fedtilt as ft
from fedtilt import spec
from fedtilt.spec.starting_point import federation_spec


def test_a_new_spec_loads_and_the_next_command_is_printed(fedtilt, tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.toml"
    result = fedtilt("init", str(path))
    assert result.code == 0
    assert f"wrote {path}" in result.out.replace("\n", "")
    assert f"fedtilt run {path}" in result.out.replace("\n", "")
    assert spec.load(path) == spec.load("digits", overrides=["name=mine"])
    assert [p.name for p in path.parent.iterdir()] == ["mine.toml"]


def test_a_file_is_overwritten_only_with_force(fedtilt, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = 1\n")
    result = fedtilt("init", str(path))
    assert result.code == 2
    assert "already exists" in result.err
    assert path.read_text() == "seed = 1\n"
    assert fedtilt("init", str(path), "--force").code == 0
    assert tomllib.loads(path.read_text())["train"]["rounds"] == 40
    for invalid in (tmp_path, path / "below.toml", tmp_path / "mine.csv"):
        assert fedtilt("init", str(invalid)).code == 2


def test_a_table_in_place_of_a_spec_is_kept(fedtilt, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("age,well\n")
    result = fedtilt("init", "patients.csv", "--force")
    assert result.code == 2
    assert "fedtilt init --table patients.csv" in result.err
    assert table.read_text() == "age,well\n"


TABLE = "age,pulse,ward,hospital,well\n" + "".join(
    f"{20 + n % 37},{60 + n % 41},{'abc'[n % 3]},{'north' if n % 5 else 'south'},{'yes' if n % 4 < 2 else 'no'}\n"
    for n in range(200)
)


def test_a_spec_for_a_table(fedtilt, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "patients.csv").write_text(TABLE)
    result = fedtilt("init", "mine.toml", "--table", "data/patients.csv", "--target", "well", "--client", "hospital")
    assert result.code == 0, result.err
    assert "wrote mine.toml: FedAvg, Ditto and FedTilt on data/patients.csv" in result.out.replace("\n", " ")
    assert 'file = "data/patients.csv"' in Path("mine.toml").read_text()  # relative to the spec
    loaded = spec.load("mine.toml")
    assert spec.federation_of(loaded, 0).client_names == ("north", "south")
    fedtilt("init", "alone.toml", "--table", "data/patients.csv", "--target", "well")
    assert spec.federation_of(spec.load("alone.toml"), 0).clients == 5
    for options, message in (
        (["--target", "well"], "--target well describes a table; name it with --table"),
        (["--table", "data/patients.csv", "--target", "ill"], "target = 'ill' is not a column of data/patients.csv"),
        (["--table", "data/patients.csv"], "needs a target"),
    ):
        result = fedtilt("init", "other.toml", *options)
        assert result.code == 2
        assert message in result.err.replace("\n", " ")
        assert not Path("other.toml").exists()


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--table", "patients.csv", "--target", "well"],
        ["--table", "patients.csv", "--target", "well", "--client", "hospital", "--group", "ward"],
        ["--table", "patients.csv", "--target", "age", "--task", "regression", "--drop", "well", "--group", "ward"]
        + ["--group", "hospital", "--schema", "kinds.json"],
    ],
    ids=["digits", "simulated clients", "own clients", "regression"],
)
def test_the_short_spec_has_at_most_40_lines_and_describes_the_same_run(fedtilt, options: list[str]) -> None:
    Path("patients.csv").write_text(TABLE)
    if "kinds.json" in options:
        schema = fedtilt("data", "schema", "patients.csv", "--kinds", *options[2 : options.index("--schema")])
        Path("kinds.json").write_text(schema.out)
    assert fedtilt("init", "short.toml", *options).code == 0
    assert fedtilt("init", "every.toml", "--all", *options).code == 0
    short, every = Path("short.toml").read_text().splitlines(), Path("every.toml").read_text().splitlines()
    assert len(short) <= 40 < 400 < len(every)
    assert max(map(len, [*short, *every])) <= 120
    assert spec.load("short.toml") == spec.load("every.toml", overrides=["name=short"])
    keys = [line for line in short if " = " in line and line[0] not in "# "]
    assert all("  # " in line for line in keys if not line.startswith("methods"))  # each is explained
    run = ["run", "short.toml", "--set", "train.rounds=1", "--set", "train.workers=0", "--out", "run", "--quiet"]
    assert fedtilt(*run).code == 0


def test_the_json_schema_is_printed(fedtilt) -> None:
    assert fedtilt("init", "--json-schema").out == spec.json_schema()


def write_sites(path: Path, clients: int, rows: int, *, share: float = 0.5) -> None:
    """A label that depends on two of three columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * rows, 3))
    score = x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=len(x))
    ill = score > np.quantile(score, 1 - share)
    lines = [
        f"s{i % clients},{a:.3f},{b:.3f},{c:.3f},{'yes' if y else 'no'}"
        for i, ((a, b, c), y) in enumerate(zip(x, ill, strict=True))
    ]
    path.write_text("site,a,b,c,ill\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("clients", "rows", "expected"),
    [
        (3, 40, {"participation": 1.0, "epochs": 5, "batch_size": 16}),
        (100, 8, {"participation": 0.5, "epochs": 5, "batch_size": 16}),
        (3, 1000, {"participation": 1.0, "epochs": 1, "batch_size": 32}),
    ],
)
def test_the_settings_follow_from_the_size_of_the_table(fedtilt, tmp_path, clients, rows, expected) -> None:
    write_sites(tmp_path / "t.csv", clients, rows)
    assert fedtilt("init", "t.toml", "--table", "t.csv", "--target", "ill", "--client", "site").code == 0
    loaded = spec.load("t.toml")
    assert {key: getattr(loaded.train, key) for key in expected} == expected
    assert loaded.clients.validation == 0
    assert loaded.train.rounds * loaded.train.participation * loaded.train.epochs >= 30


def test_a_table_with_a_rare_class_keeps_validation_data(fedtilt, tmp_path: Path) -> None:
    write_sites(tmp_path / "t.csv", 4, 100, share=0.05)
    assert fedtilt("init", "t.toml", "--table", "t.csv", "--target", "ill", "--client", "site").code == 0
    assert spec.load("t.toml").clients.validation == 0.2


def test_the_written_settings_end_within_two_points_of_a_pooled_regression(fedtilt, tmp_path: Path) -> None:
    """Many small clients, where too few or too short steps would leave one class alone."""
    write_sites(tmp_path / "t.csv", 12, 40)
    fedtilt("init", "t.toml", "--table", "t.csv", "--target", "ill", "--client", "site")
    assert fedtilt("run", "t.toml", "--out", "run", "-q").code == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    pooled = results["baselines"]["pooled logistic"]["accuracy"]["mean"]
    found = {name: values["accuracy"]["mean"] for name, values in results["methods"].items()}
    assert all(accuracy > pooled - 2 for accuracy in found.values()), (found, pooled)
    assert results["baselines"]["majority"]["accuracy"]["mean"] < pooled - 20


@pytest.mark.slow
def test_the_starting_point_is_as_good_as_regressions_on_the_rows_of_all_districts() -> None:
    """FedAvg against the same columns; personal models against those and the client; mean over three splits."""
    raw, found = federation_spec("contraception"), []
    settings = raw["train"] | {"eval_every": 30, "workers": 0}
    methods = [ft.fedavg(), ft.ditto(1.0), ft.fedtilt(tau=0.5, lam=0.0, mu=1.0)]
    for seed in range(3):
        federation = ft.Federation.build(ft.data.load("contraception", seed=seed), seed=seed)
        result = ft.run(methods, federation, partial(ft.models.mlp, hidden=[32]), seed=seed, **settings)
        x, y = (torch.cat(part) for part in zip(*map(federation.clean_train, range(federation.clients)), strict=True))
        x_test, y_test, client = federation.evaluation("test")
        correct = LogisticRegression(max_iter=1000).fit(x, y).predict(federation.model_input(x_test)) == y_test.numpy()
        same_columns = 100 * np.mean([correct[client.numpy() == c].mean() for c in client.unique().tolist()])
        personal = min(result[name].accuracy for name in ("ditto", "fedtilt"))
        with_client = result.baselines["pooled logistic"].accuracy
        found.append((result["fedavg"].accuracy - same_columns, personal - with_client))
    assert (np.mean(found, 0) > -1).all(), found
