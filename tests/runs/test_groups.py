"""Runs whose data names groups: workers, resume, figures by group against a count by hand, files and tables."""

from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.files import read_json
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from tests.helpers.callbacks import stop_after

pandas = pytest.importorskip("pandas")

SPEC = """
[data]
file = "patients.csv"
target = "diagnosis"
client = "hospital"
group = ["ward", "sex"]
[model]
hidden = [8]
[train]
rounds = 2
participation = 1.0
epochs = 1
lr = 0.1
[[methods]]
preset = "fedavg"
[[methods]]
preset = "fedtilt"
lam = 0.0
levels = [["class", 2.0], ["ward", inf]]
"""
SETTINGS = {"rounds": 2, "participation": 1.0, "epochs": 1, "lr": 0.1, "batch_size": 10}


def patients(n: int = 180) -> "pandas.DataFrame":
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=n)
    x = rng.normal(size=(n, 3)) + 2 * np.eye(3)[label]
    return pandas.DataFrame(x, columns=["x1", "x2", "x3"]).assign(
        hospital=rng.choice(["north", "south"], n),
        ward=rng.choice(["surgery", "medicine", "children"], n, p=[0.5, 0.3, 0.2]),
        sex=rng.choice(["f", "m"], n),
        diagnosis=np.array(["a", "b", "c"])[label],
    )


def federation(**settings: float) -> ft.Federation:
    data = ft.data.table(patients(), target="diagnosis", client="hospital", group=["ward", "sex"])
    return ft.Federation.build(data, **settings)


METHODS = [
    ft.fedtilt(tau=3.0, lam=-1.0),
    ft.fedtilt(lam=0.0, levels=[("class", 2.0), ("ward", 5.0)], name="levels"),
    ft.fedtilt(lam=0.0, levels=[("ward", 3.0)], name="ward"),
]


def weights(result: ft.Result) -> dict[str, torch.Tensor]:
    return {
        name: torch.cat([p.flatten() for p in (*r.shared.parameters(), *r.personal("north").parameters())])
        for name, r in result.items()
    }


def test_workers_give_the_bits_of_one_process() -> None:
    fed = federation()
    one, two = (ft.run(METHODS, fed, ft.models.mlp, **SETTINGS, workers=n) for n in (0, 2))
    for name, values in weights(one).items():
        assert torch.equal(values, weights(two)[name])
    assert len({values.sum().item() for values in weights(one).values()}) == 3


def test_an_interrupted_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    fed = federation()
    whole = ft.run(METHODS, fed, ft.models.mlp, **SETTINGS, out=tmp_path / "whole")

    with pytest.raises(KeyboardInterrupt):
        ft.run(METHODS, fed, ft.models.mlp, **SETTINGS, out=tmp_path / "run", callbacks=[stop_after(1)])
    resumed = ft.run(METHODS, fed, ft.models.mlp, **SETTINGS, out=tmp_path / "run")
    for name, values in weights(whole).items():
        assert torch.equal(values, weights(resumed)[name])
        assert resumed[name].groups == whole[name].groups
    other = patients().assign(ward=lambda frame: frame["ward"].replace("children", "medicine"))
    data = ft.data.table(other, target="diagnosis", client="hospital", group=["ward", "sex"])
    with pytest.raises(InputError, match="samples"):
        ft.run(METHODS, ft.Federation.build(data), ft.models.mlp, **SETTINGS, out=tmp_path / "run")


def test_figures_by_group_equal_a_count_by_hand() -> None:
    fed = federation(validation=0.2)
    result = ft.run(METHODS, fed, ft.models.mlp, **SETTINGS)["levels"]
    table = patients()
    frames = []
    for client in fed.client_names:
        x, y = fed.test(client)
        rows = [int(name.split()[-1]) for name in fed.row_names(client, "test")]
        with torch.no_grad():
            correct = (result.personal(client)(x).argmax(1) == y).numpy()
        frames.append(table.loc[rows, ["hospital", "ward", "sex"]].assign(correct=100.0 * correct))
    tested = pandas.concat(frames).assign(**{"ward & sex": lambda frame: frame["ward"] + " & " + frame["sex"]})
    assert list(result.groups) == ["ward & sex", "class", "ward", "sex"]  # what tau tilts over is the first
    for column in ("ward", "sex", "ward & sex"):
        found, accuracy = result.groups[column], tested.groupby(column)["correct"].mean()
        assert found.accuracy == pytest.approx(accuracy.to_dict())
        assert found.spread == pytest.approx(accuracy.std(ddof=0))
        assert found.worst == (accuracy.idxmin(), pytest.approx(accuracy.min()))
        by_client = tested.groupby(["hospital", column])["correct"].mean().groupby("hospital")
        spread = by_client.std(ddof=0)
        assert found.client_spread == pytest.approx((spread.mean(), spread.std(ddof=0)))
        assert found.client_worst == pytest.approx(by_client.min().mean())
    assert result.groups["ward & sex"].client_spread == result.client_data_fairness
    rows = ft.Result({"levels": result}).to_pandas(by="ward")
    assert rows["samples"].sum() == len(tested)
    north = rows[(rows["client_name"] == "north") & (rows["ward_name"] == "surgery")].iloc[0]
    subset = tested[(tested["hospital"] == "north") & (tested["ward"] == "surgery")]
    assert north["accuracy"] == pytest.approx(subset["correct"].mean())
    with pytest.raises(
        InputError, match="by = 'age' is no grouping of this run, which has 'ward & sex', 'class', 'ward', 'sex'"
    ):
        result.table("age")


def test_a_spec_with_levels_writes_the_figures_by_group(tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "patients.csv", index=False)
    (tmp_path / "patients.toml").write_text(SPEC)
    spec = load(tmp_path / "patients.toml")
    assert spec.methods[1].to_method().objective.levels == (("class", 2.0), ("ward", float("inf")))
    (result,) = run_spec(spec, tmp_path / "run").values()
    stored = read_json(tmp_path / "run/results.json")["methods"]["fedtilt"]["groups"]["ward"]
    assert stored["worst"]["mean"] == result["fedtilt"].groups["ward"].worst[1]
    assert {k: v["mean"] for k, v in stored["accuracy"].items()} == result["fedtilt"].groups["ward"].accuracy
    again = load(tmp_path / "run/spec.toml")
    assert again.methods == spec.methods
    assert run_spec(again, tmp_path / "again")[0]["fedtilt"].groups == result["fedtilt"].groups


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'levels = [["class", 2.0], ["wadr", 1]]',
            "levels of method 'fedtilt' have 'wadr', but the data has the groups",
        ),
        ('levels = ["class", "ward"]', "levels are pairs of groups, each once, and a tilt, from inner to outer"),
        ('levels = [["ward", 2.0]]\ntau = 1.0', "method 'fedtilt': tau = 1 has no effect beside levels; leave it out"),
        ("q = 1.0", "methods.fedtilt.tau is missing; preset 'fedtilt' needs tau and lam"),
    ],
)
def test_bad_levels_are_rejected(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "patients.toml").write_text(SPEC.replace('levels = [["class", 2.0], ["ward", inf]]', line))
    with pytest.raises(InputError) as error:
        load(tmp_path / "patients.toml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_levels_need_groups_in_the_data() -> None:
    fed = ft.Federation.build(ft.data.load("toy-2"))
    with pytest.raises(
        InputError, match="levels of method 'ward' have 'ward', but the data has the groups 'class'; name"
    ):
        ft.run([METHODS[2]], fed, ft.models.mlp, rounds=1)
    methods = [ft.fedtilt(lam=0.0, levels=[("class", 2.0)]), ft.fedtilt(2.0, 0.0, name="tau")]
    result = ft.run(methods, fed, ft.models.mlp, rounds=1, participation=1.0)
    assert torch.equal(*(result[name]._server.parameters for name in ("fedtilt", "tau")))
    assert result["tau"].groups == {}


def test_the_report_and_the_terminal_have_a_table_per_column(fedtilt, tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "patients.csv", index=False)
    (tmp_path / "patients.toml").write_text(SPEC)
    code, printed, _ = fedtilt("run", "patients.toml", "--out", "run", "--set", "seeds=2")
    assert code == 0
    accuracy = read_json(tmp_path / "run/results.json")["methods"]["fedtilt"]["groups"]["sex"]["accuracy"]["f"]["mean"]
    page = (tmp_path / "run/report.html").read_text()
    for column in ("ward", "sex", "ward & sex"):
        assert f"by {column}" in printed
        assert f"<h4>By {escape(column)}</h4>" in page
    assert f"{accuracy:.2f}" in printed
    assert f'data-value="{accuracy}"' in page


def test_groups_on_the_command_line(fedtilt, tmp_path: Path) -> None:
    patients().to_csv(tmp_path / "patients.csv", index=False)
    options = ["--target", "diagnosis", "--client", "hospital", "--group", "ward", "--group", "sex"]
    shown = fedtilt("data", "show", "patients.csv", *options).out
    counts = patients()["sex"].value_counts()
    assert f"group     sex: f {counts['f']}, m {counts['m']}" in shown
    assert "group     ward & sex: children & f " in shown
    assert fedtilt("init", "mine.toml", "--table", "patients.csv", *options).code == 0
    assert load(tmp_path / "mine.toml").data.group_columns == ("ward", "sex")
    assert "--group ward describes a table; name it with --table" in fedtilt("init", "x.toml", "--group", "ward").err
    assert "--group ward describes a table, and digits is none" in fedtilt("data", "show", "--group", "ward").err
