"""Sites with tables: one schema for all without pooling data, the simulator's models, and sites that do not fit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load_file

import fedtilt as ft
from fedtilt.data.tables.schema import read_schema
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.flower.membership import MissingSitesError
from fedtilt.flower.site_data import site_federation, site_summary
from fedtilt.runs.export import export_model
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

pandas = pytest.importorskip("pandas")

SPEC = """
name = "hospitals"
[data]
file = "pooled.csv"
target = "diagnosis"
client = "hospital"
drop = ["patient"]
[clients]
count = 2
validation = 0.1
[model]
name = "mlp"
hidden = [8]
[train]
rounds = 2
participation = 1.0
lr = 0.1
eval_every = 2
[[methods]]
preset = "fedtilt"
tau = 1.0
lam = 0.0
mu = 0.1
"""


def patients(n: int, seed: int) -> "pandas.DataFrame":
    """Numbers, categories, dates and yes/no, with gaps; patients of different hospitals are never the same."""
    rng = np.random.default_rng(seed)
    ill = rng.random(n) < 0.4
    frame = pandas.DataFrame(
        {
            "patient": [f"{seed}-{row}" for row in range(n)],
            "age": rng.normal(50 + 10 * ill + 5 * seed, 8).round(1),
            "ward": rng.choice(["a", "b", "c"], n),
            "smokes": rng.choice(["yes", "no"], n),
            "admitted": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 500, n), unit="D"),
            "diagnosis": np.where(ill, "ill", "well"),
        }
    )
    frame.loc[rng.random(n) < 0.1, "age"] = np.nan
    return frame


def north_and_south() -> dict[str, "pandas.DataFrame"]:
    """The second site has another order of columns and classes, one category less and one class more."""
    north, south = patients(160, 0), patients(90, 1)
    south.loc[south["ward"] == "c", "ward"] = "a"
    south.loc[south.index[-9:], "diagnosis"] = "a relapse"
    return {"north": north, "south": south[list(south)[::-1]].sort_values("diagnosis")}


def write(folder: Path, frames: dict[str, "pandas.DataFrame"], spec: str = SPEC) -> Task:
    """The sites' files, the pooled table for the simulator, and a task that gives each site its own file."""
    folder.mkdir(exist_ok=True)
    for number, frame in enumerate(frames.values()):
        frame.to_csv(folder / f"{number}.csv", index=False)
    pooled = [frame.assign(hospital=name) for name, frame in frames.items()]
    pandas.concat(pooled).to_csv(folder / "pooled.csv", index=False)
    (folder / "spec.toml").write_text(spec)
    return Task(spec=folder / "spec.toml", table=lambda node: folder / f"{node['partition-id']}.csv")


@pytest.fixture
def hospitals(tmp_path: Path) -> Deployment:
    return Deployment(write(tmp_path / "data", north_and_south()), tmp_path)


def server_schema(home: Path) -> ft.data.Schema:
    return read_schema(home / "run/schema.json")


def requests(grid, kind: str) -> list[Message]:
    return [message for message, _ in grid.sent if message.metadata.message_type == kind]


def test_two_sites_with_a_file_each_end_with_the_simulators_models(hospitals: Deployment, tmp_path: Path) -> None:
    hospitals.run()
    run_spec(load(tmp_path / "data/spec.toml"), tmp_path / "simulated")
    simulated, deployed = (RunFolder(tmp_path / name / "seed-0").latest() for name in ("simulated", "run"))
    torch.testing.assert_close(*(state.server["fedtilt"].parameters for state in (deployed, simulated)))
    for site in (0, 1):
        (file,) = (tmp_path / "state" / str(site)).rglob("round-00002.safetensors")
        torch.testing.assert_close(load_file(file), simulated.client_states.get(("fedtilt", site)).to_tensors())
    deployed, simulated = (read_json(tmp_path / name / "results.json")["methods"] for name in ("run", "simulated"))
    assert deployed["fedtilt"] == {key: simulated["fedtilt"][key] for key in deployed["fedtilt"]}


@pytest.mark.parametrize("tilts", ["tau = 2.0", 'levels = [["class", 2.0], ["ward", 3.0]]'])
def test_groups_of_tables_give_the_simulators_models(tilts: str, tmp_path: Path) -> None:
    spec = SPEC.replace("tau = 1.0", tilts).replace('drop = ["patient"]', 'drop = ["patient"]\ngroup = ["ward"]')
    Deployment(write(tmp_path / "data", north_and_south(), spec), tmp_path).run()
    result = run_spec(load(tmp_path / "data/spec.toml"), tmp_path / "simulated")[0]["fedtilt"]
    assert list(result.groups) == ["ward", "class"]
    simulated, deployed = (RunFolder(tmp_path / name / "seed-0").latest() for name in ("simulated", "run"))
    torch.testing.assert_close(*(state.server["fedtilt"].parameters for state in (deployed, simulated)))
    assert server_schema(tmp_path).group == ("ward",)


FEDMINMAX = SPEC.split("[[methods]]")[0].replace('drop = ["patient"]', 'drop = ["patient"]\ngroup = ["ward"]') + (
    '[[methods]]\npreset = "fedminmax"\ngroups = 3\nweights_lr = 0.1\n'
)


def test_groups_that_are_weighted_by_number_are_the_same_on_all_sites(tmp_path: Path) -> None:
    """A site numbers the groups that it has, so one that lacks some would mix them up with others."""
    frames = {"north": patients(160, 0), "south": patients(90, 1)}
    Deployment(write(tmp_path / "data", frames, FEDMINMAX), tmp_path).run(**{"join-quorum": 1.0})
    run_spec(load(tmp_path / "data/spec.toml", overrides=["train.screen=3"]), tmp_path / "simulated")
    simulated, deployed = (RunFolder(tmp_path / name / "seed-0").latest() for name in ("simulated", "run"))
    torch.testing.assert_close(*(state.server["fedminmax"].to_tensors() for state in (deployed, simulated)))
    task = write(tmp_path / "data", frames | {"south": frames["south"].query("ward != 'a'")}, FEDMINMAX)
    with pytest.raises(MissingSitesError) as error:
        Deployment(task, tmp_path / "lacking").run(**{"join-quorum": 1.0})
    assert "site 1 cannot join: has not all of the 3 groups whose numbers method 'fedminmax' counts on" in str(
        error.value
    )
    assert "site 0" not in str(error.value)


def test_groups_of_a_data_function_have_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('[clients]\ncount = 2\n[[methods]]\npreset = "fedminmax"\ngroups = 2\n')
    codes, y = torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 0, 1])

    def data(node: dict) -> ft.data.Dataset:
        flip = node["partition-id"] == 1
        groups = {"sex": 1 - codes if flip else codes}
        return ft.data.Dataset(
            name="site", x_train=torch.zeros(4, 3), y_train=y, x_test=torch.zeros(4, 3), y_test=y,
            classes=2, class_names=("no", "yes"), group_train=groups, group_test=groups,
            group_names={"sex": ("m", "f") if flip else ("f", "m")},
        )  # fmt: skip

    task = Task(spec=tmp_path / "spec.toml", data=data, input_shape=(3,), class_names=("no", "yes"))
    sites = [site_federation(task, task.resolve({}).spec, {"partition-id": n}, None) for n in (0, 1)]
    for site, federation in enumerate(sites):
        assert federation.groups["sex"].names == ("f", "m")
        assert torch.equal(federation.groups["sex"].train, codes), site


def test_the_schema_is_the_simulators_and_is_kept_everywhere(hospitals: Deployment, tmp_path: Path) -> None:
    grid = hospitals.run()
    schema = server_schema(tmp_path)
    run_spec(load(tmp_path / "data/spec.toml", overrides=["train.rounds=1"]), tmp_path / "simulated")
    assert schema == read_schema(tmp_path / "simulated")
    assert schema.classes == ("a relapse", "ill", "well")
    assert schema.column("ward").categories == ("a", "b", "c")
    assert read_schema(tmp_path / "run") == schema  # of an export, too
    for site in (0, 1):
        (file,) = (tmp_path / "state" / str(site)).rglob("schema.json")
        assert read_schema(file) == schema
        assert file.stat().st_mode & 0o077 == 0
    keys = [export_model(tmp_path / name, "fedtilt").metadata.keys() for name in ("run", "simulated")]
    assert keys[0] == keys[1]
    model = ft.models.mlp((len(schema.inputs),), 3, hidden=(8,))
    model.load_state_dict(export_model(tmp_path / "run", "fedtilt").tensors)
    new = patients(5, 2).assign(ward="never seen", age=np.nan)
    assert model(ft.data.transform(new, like=tmp_path / "run")).shape == (5, 3)
    assert len(requests(grid, "query.summary")) == 2


def test_mean_and_deviation_are_those_of_the_pooled_training_rows(hospitals: Deployment, tmp_path: Path) -> None:
    hospitals.run(set="train.rounds=1\ntrain.eval_every=1")
    frames = north_and_south()
    pooled = pandas.concat([frame.assign(hospital=name) for name, frame in frames.items()], ignore_index=True)
    data = ft.data.table(pooled, target="diagnosis", client="hospital", drop=["patient"])
    ages = pooled["age"].iloc[data.rows_train.numpy()].dropna()
    column = server_schema(tmp_path).column("age")
    assert column.mean == pytest.approx(ages.mean(), rel=1e-13)
    assert column.deviation == pytest.approx(ages.std(ddof=0), rel=1e-13)


def test_a_summary_has_counts_and_no_cells(hospitals: Deployment) -> None:
    frames = north_and_south()
    frames["south"].iloc[0, frames["south"].columns.get_loc("ward")] = "the only one"
    write(hospitals.home / "data", frames)
    grid = hospitals.run()
    replies = [reply for message, reply in grid.sent if message.metadata.message_type == "query.summary"]
    assert [dict(reply.content["metrics"]) for reply in replies] == [{"site": 0}, {"site": 1}]
    for reply, frame in zip(replies, frames.values(), strict=True):
        (text,) = reply.content["config"].values()
        summary = json.loads(text)
        assert set(summary) == {"site", "rows", "classes", "columns", "numbers"}
        assert [c["name"] for c in summary["columns"]] == [n for n in frame if n not in ("patient", "diagnosis")]
        assert "the only one" not in text
        assert not any(patient in text for patient in frame["patient"])


def test_a_resumed_server_uses_the_stored_schema(hospitals: Deployment, tmp_path: Path) -> None:
    uninterrupted = Deployment(hospitals.task, tmp_path / "uninterrupted")
    uninterrupted.run()

    def interrupt(reply, site, round):
        if reply.metadata.message_type == "train" and round == 2:
            raise KeyboardInterrupt
        return [reply]

    with pytest.raises(KeyboardInterrupt):
        hospitals.run(interrupt)
    assert requests(hospitals.run(), "query.summary") == []
    a, b = (RunFolder(home / "run/seed-0").latest() for home in (tmp_path, tmp_path / "uninterrupted"))
    assert torch.equal(a.server["fedtilt"].parameters, b.server["fedtilt"].parameters)
    spec = tmp_path / "data/spec.toml"
    for change, message in (
        ('target = "smokes"', "was started with schema.target = diagnosis, and now it is smokes"),
        ('target = "diagnosis"\ntest_share = 0.5', "was started with test_share = None, and now it is 0.5"),
    ):
        spec.write_text(SPEC.replace('target = "diagnosis"', change))
        with pytest.raises(ft.InputError, match=message):
            hospitals.run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="age"), "site 1 has no column 'age', which site '0' has"),
        (lambda f: f.assign(more=f["age"]), "site 0 has no column 'more', which site '1' has"),
        (lambda f: f.assign(age=f["ward"]), "site 1 has column 'age' as category, and it is number at site '0'"),
        (lambda f: f.drop(columns="diagnosis"), "site 1 has no column 'diagnosis', which is the target"),
        (lambda f: f.assign(hospital=["north", "south"] * 45), r"site 1 failed; see its log"),
    ],
)
def test_a_site_that_does_not_fit_is_refused_by_name(hospitals, tmp_path, change, message) -> None:
    frames = north_and_south()
    change(frames["south"]).to_csv(tmp_path / "data/1.csv", index=False)
    with pytest.raises(MissingSitesError, match=rf"1 of 2 sites agree on a schema and all must \({message}") as error:
        hospitals.run(**{"join-quorum": 1.0})
    assert "\n" not in str(error.value)
    assert read_json(tmp_path / "run/stopped.json")["sites"] == error.value.sites
    assert not (tmp_path / "run/seed-0").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: f.drop(columns="age"), "has no column 'age', which the schema has"),
        (lambda f: f.assign(age=f["ward"]), "has cells in column 'age' that cannot be used"),
    ],
)
def test_without_a_join_quorum_the_others_train(hospitals, tmp_path, change, reason) -> None:
    south = north_and_south()["south"]
    change(south[south["diagnosis"] != "a relapse"]).to_csv(tmp_path / "data/1.csv", index=False)  # a class of its own
    hospitals.run()
    participation = read_json(tmp_path / "run/seed-0/participation.json")
    assert [entry["accepted"] for entry in participation["rounds"].values()] == [[0], [0]]
    assert f"cannot join: {reason}" in participation["rejected"]["node 101"]
    assert server_schema(tmp_path).classes == ("ill", "well")


def test_a_late_site_must_fit_the_schema(hospitals: Deployment, tmp_path: Path) -> None:
    """Its class was not known when the others agreed."""

    def late(reply, site, round):
        return [] if site == 1 and reply.metadata.message_type == "query.summary" else [reply]

    hospitals.run(late)
    participation = read_json(tmp_path / "run/seed-0/participation.json")
    assert "cannot join: has the class 'a relapse', which the schema lacks" in participation["rejected"]["node 101"]
    south = north_and_south()["south"]
    south[south["diagnosis"] != "a relapse"].to_csv(tmp_path / "data/1.csv", index=False)
    other = Deployment(hospitals.task, tmp_path / "other")
    other.run(late)
    participation = read_json(tmp_path / "other/run/seed-0/participation.json")
    assert [entry["accepted"] for entry in participation["rounds"].values()] == [[0, 1], [0, 1]]


def test_a_missing_column_is_all_missing_if_the_schema_allows_gaps(hospitals: Deployment, tmp_path: Path) -> None:
    columns = {
        name: {"kind": kind} for name, kind in (("ward", "category"), ("smokes", "yes/no"), ("admitted", "date"))
    }
    schema = {"version": 1, "columns": columns | {"age": {"kind": "number", "gaps": True}}}
    (tmp_path / "data/schema.json").write_text(json.dumps(schema))
    (tmp_path / "data/spec.toml").write_text(SPEC.replace("[clients]", 'schema = "schema.json"\n[clients]'))
    north_and_south()["south"].drop(columns="age").to_csv(tmp_path / "data/1.csv", index=False)
    hospitals.run(**{"join-quorum": 1.0})
    alone = patients(160, 0)
    column = server_schema(tmp_path).column("age")
    assert column.mean == pytest.approx(alone["age"].mean(), abs=1)  # of the site that has it


def test_a_site_may_withhold_its_summary_if_the_projects_schema_is_complete(
    hospitals: Deployment, tmp_path: Path
) -> None:
    withheld = {1: {"share-summary": False}}
    with pytest.raises(
        MissingSitesError, match=r"site 1 withholds its summary \(share-summary = false\), and the proj"
    ):
        hospitals.run(node_config=withheld, **{"join-quorum": 1.0})
    hospitals.run(set="train.rounds=1\ntrain.eval_every=1")
    agreed = server_schema(tmp_path)
    agreed.write(tmp_path / "data/schema.json")
    (tmp_path / "data/spec.toml").write_text(SPEC.replace("[clients]", 'schema = "schema.json"\n[clients]'))
    other = Deployment(hospitals.task, tmp_path / "other")
    grid = other.run(node_config=withheld, set="train.rounds=1\ntrain.eval_every=1", **{"join-quorum": 1.0})
    assert requests(grid, "query.summary") == []  # nothing is left to be inferred
    assert server_schema(tmp_path / "other") == agreed
    a, b = (RunFolder(home / "run/seed-0").latest() for home in (tmp_path, tmp_path / "other"))
    assert torch.equal(a.server["fedtilt"].parameters, b.server["fedtilt"].parameters)
    replace(agreed, classes=("ill", "well")).write(tmp_path / "data/schema.json")
    third = Deployment(hospitals.task, tmp_path / "third")
    with pytest.raises(MissingSitesError, match="site 1 cannot join: has a class, which the schema lacks"):
        third.run(node_config=withheld, **{"join-quorum": 1.0})  # and the class is not named


def test_the_mean_of_few_values_is_not_sent(hospitals: Deployment, tmp_path: Path) -> None:
    south = north_and_south()["south"].assign(age=[np.nan] * 89 + [77.7])
    south.loc[south.index[:3], "age"] = 77.7
    south.to_csv(tmp_path / "data/1.csv", index=False)
    with pytest.raises(MissingSitesError, match="site 1 has fewer than 5 training rows with a value in column 'age'"):
        hospitals.run(**{"join-quorum": 1.0})
    (tmp_path / "data/schema.json").write_text('{"version": 1, "min_count": 1, "columns": {}}')
    (tmp_path / "data/spec.toml").write_text(SPEC.replace("[clients]", 'schema = "schema.json"\n[clients]'))
    hospitals.run(**{"join-quorum": 1.0})


def damaged(**changes: object):
    """Tamper with the summary that site 1 sends."""

    def tamper(reply: Message, site: int, round: int) -> list[Message]:
        if site == 1 and reply.metadata.message_type == "query.summary":
            summary = json.loads(reply.content["config"]["summary"])
            column = next(column for column in summary["columns"] if column["name"] == "age")
            for key, value in changes.items():
                (summary if key in summary and key != "rows" else column)[key] = value
            reply.content["config"]["summary"] = json.dumps(summary)
        return [reply]

    return tamper


def sent(text: object, metrics: dict | None = None):
    """Replace what site 1 sends."""

    def tamper(reply: Message, site: int, round: int) -> list[Message]:
        if site == 1 and reply.metadata.message_type == "query.summary":
            reply.content = RecordDict(
                {"metrics": MetricRecord({"site": 1} if metrics is None else metrics), "config": ConfigRecord(text)}
            )
        return [reply]

    return tamper


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (damaged(mean=float("nan")), "sent a summary that cannot be used: it has NaN"),
        (damaged(mean=None), "of kind 'number' has no value of mean"),
        (damaged(rows=-1), "column 'age'.rows = -1 is not possible"),
        (damaged(squares=-1.0), "squares = -1.0 is not possible; give a finite number ≥ 0"),
        (damaged(kind="category", categories={str(n): 1 for n in range(10**5)}), "cannot be used: .*damaged"),
        (damaged(name="x" * 10**6), "is not possible; give text of at most 200 characters"),
        (damaged(classes=["x" * 10**6]), "give at most 1000 different names"),
        (damaged(secret=1), "column 'age' has the unknown key 'secret'"),
        (sent({"summary": "[" * 10**5}), "it is nested too deeply"),
        (sent({"summary": "{" + "1" * 10**6}), "sent a summary that cannot be used"),
        (sent({"summary": "1" * (2**24 + 1)}), "it is no text of at most 16777216 characters"),
        (sent({"summary": 5}), "it is no text of at most"),
        (sent({}), "it is no text of at most"),
        (sent({"problem": "\x1b[31m" + "x" * 10**6}), r"site 1 \?\[31mx{295}\)"),
    ],
)
def test_a_damaged_summary_is_refused_by_name(hospitals: Deployment, tamper, message: str) -> None:
    with pytest.raises(MissingSitesError, match=message) as error:
        hospitals.run(tamper, **{"join-quorum": 1.0})
    assert error.value.sites == [1]
    assert len(str(error.value)) < 700


def test_no_summary_is_used_of_a_site_that_cannot_be_told(hospitals: Deployment, tmp_path: Path) -> None:
    for number, tamper in enumerate((sent({}, {}), sent({}, {"site": 7}), sent({}, {"site": 0}))):
        deployment = Deployment(hospitals.task, tmp_path / str(number))
        with pytest.raises(MissingSitesError, match="of 2 sites agree on a schema and all must"):
            deployment.run(tamper, **{"join-quorum": 1.0})


def test_one_class_at_all_sites_is_refused(hospitals: Deployment, tmp_path: Path) -> None:
    for number, frame in enumerate(north_and_south().values()):
        frame.assign(diagnosis="ill").to_csv(tmp_path / f"data/{number}.csv", index=False)
    with pytest.raises(ft.InputError, match="target = 'diagnosis' has one class, 'ill', at all sites together"):
        hospitals.run()


SITE = {"partition-id": 0}


def test_bad_tasks_give_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(ft.InputError, match="has no data function, input_shape, class_names, image or target"):
        Task(spec="digits", table=lambda _: "a.csv", class_names=("a", "b"))
    with pytest.raises(ft.InputError, match=r"a task with a table function needs \[data\] in its spec: target"):
        Task(spec="digits", table=lambda _: "a.csv").resolve({"method": "fedavg"})
    task = write(tmp_path / "data", north_and_south())
    with pytest.raises(ft.InputError, match="clients.partition = 'iid' has no effect on sites with tables"):
        task.resolve({"set": "clients.partition=iid\ndata.client="})
    with pytest.raises(ft.InputError, match="'flips' would corrupt real data"):
        task.resolve({"set": "outliers.kind=flips"})
    with pytest.raises(ft.InputError, match="share-summary in --node-config must be true or false, got 'no'"):
        site_summary(task, task.resolve({}).spec, {"partition-id": 0, "share-summary": "no"})
    with pytest.raises(ft.InputError, match="the server sent no schema"):
        site_federation(task, task.resolve({}).spec, SITE, None)


def test_a_data_function_with_other_class_orders(tmp_path: Path) -> None:
    """Classes are aligned by name; a table, whose columns have an order too, needs a table function."""
    x = torch.eye(4)
    data = ft.data.Dataset(
        name="site", x_train=x, y_train=torch.tensor([0, 1, 1, 0]), x_test=x, y_test=torch.tensor([0, 1, 1, 0]),
        classes=2, class_names=("well", "ill"),
    )  # fmt: skip
    spec = write(tmp_path / "data", north_and_south()).spec
    task = Task(spec=spec, data=lambda _: data, input_shape=(4,), class_names=("ill", "well"))
    federation = site_federation(task, task.resolve({}).spec, SITE, None)
    assert federation.dataset.y_train.tolist() == [1, 0, 0, 1]
    assert federation.class_names == ("ill", "well")
    other = replace(task, class_names=("ill", "healthy"))
    with pytest.raises(ft.InputError, match="has the class 'well', which the task lacks; its classes are ill, healthy"):
        site_federation(other, other.resolve({}).spec, SITE, None)
    frame = ft.data.table(patients(60, 0)[["age", "diagnosis"]], target="diagnosis")
    table = replace(task, data=lambda _: frame, input_shape=frame.input_shape)
    with pytest.raises(ft.InputError, match="the data function returns a table.*give the task a table function"):
        site_federation(table, table.resolve({}).spec, SITE, None)


NUMBERS_SPEC = SPEC.replace("[data]", 'task = "regression"\n[data]').replace('"diagnosis"', '"days"')


def stays() -> dict[str, "pandas.DataFrame"]:
    """Tables with a number as target."""
    frames = north_and_south()
    for seed, (name, frame) in enumerate(frames.items()):
        rng = np.random.default_rng(seed)
        days = frame["age"].fillna(50) / 5 + rng.normal(0, 2, len(frame))
        frames[name] = frame.assign(days=days.round(2)).drop(columns="diagnosis")
    return frames


@pytest.mark.parametrize("declare_classes", [True, False])
def test_numbers_as_targets_give_the_simulators_models_and_scores(declare_classes: bool, tmp_path: Path) -> None:
    deployment = Deployment(write(tmp_path / "data", stays(), NUMBERS_SPEC), tmp_path)
    configs = None if declare_classes else {0: {"declare-classes": False}}
    deployment.run(node_config=configs)
    run_spec(load(tmp_path / "data/spec.toml"), tmp_path / "simulated")
    simulated, deployed = (RunFolder(tmp_path / name / "seed-0").latest() for name in ("simulated", "run"))
    torch.testing.assert_close(*(state.server["fedtilt"].parameters for state in (deployed, simulated)))
    schema = server_schema(tmp_path)
    assert schema == read_schema(tmp_path / "simulated")
    pooled = ft.data.table(
        pandas.concat([frame.assign(hospital=name) for name, frame in stays().items()], ignore_index=True),
        target="days", client="hospital", drop=["patient"], task="regression",
    )  # fmt: skip
    assert schema.numbers.mean == pytest.approx(float(pooled.y_train.double().mean()))
    deployed, simulated = (read_json(tmp_path / name / "results.json")["methods"] for name in ("run", "simulated"))
    for key in ("mae", "rmse", "client_fairness", "client_data_fairness_mean", "rmse_client_data_fairness_mean"):
        assert deployed["fedtilt"][key]["mean"] == pytest.approx(simulated["fedtilt"][key]["mean"], rel=1e-5)
    assert "accuracy" not in deployed["fedtilt"]
    (text,) = [path.read_text() for path in (tmp_path / "state/0").rglob("report.txt")]
    assert "MAE on this site's test data" in text
    assert export_model(tmp_path / "run", "fedtilt").metadata["target"] == (
        f'{{"mean": {schema.numbers.mean}, "deviation": {schema.numbers.deviation}}}'
    )
