"""Rules that compare updates with that of clean samples on the server: the simulator's models, or a file there."""

from pathlib import Path

import pytest
import torch

from fedtilt.errors import InputError
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.flower.test_schema_exchange import SPEC as TABLES
from tests.flower.test_schema_exchange import patients, write
from tests.helpers.loopback import Deployment

RULES = ['{ rule = "fltrust", root_samples = 40 }', '{ rule = "root_selected", root_samples = 40, bad_share = 0.25 }']


def with_rule(spec: str, rule: str) -> str:
    return spec.split("[[methods]]")[0] + f'[[methods]]\npreset = "fedavg"\naggregator = {rule}\n'


def shared(folder: Path) -> torch.Tensor:
    return RunFolder(folder / "seed-0").latest().server["fedavg"].parameters


@pytest.mark.parametrize("rule", RULES, ids=["fltrust", "root_selected"])
def test_a_root_set_of_the_specs_data_gives_the_simulators_model(rule: str, spec: Path, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(with_rule(spec.read_text().replace("count = 2", "count = 4"), rule))
    Deployment(Task(spec=path), tmp_path, sites=4).run()
    run_spec(load(path, overrides=["train.screen=3"]), tmp_path / "simulated")  # the default of a deployment
    torch.testing.assert_close(shared(tmp_path / "run"), shared(tmp_path / "simulated"))
    run_spec(load(path, overrides=["train.screen=3", "methods.fedavg.aggregator=mean"]), tmp_path / "mean")
    assert not torch.allclose(shared(tmp_path / "run"), shared(tmp_path / "mean"))


@pytest.fixture
def hospitals(tmp_path: Path) -> Deployment:
    """Three sites with a table each, and two tables that the server may have."""
    data, names = tmp_path / "data", ("north", "south", "west")
    spec = with_rule(TABLES, RULES[0]).replace("count = 2", "count = 3")
    task = write(data, {name: patients(80, seed) for seed, name in enumerate(names)}, spec)
    patients(120, 7).to_csv(tmp_path / "root.csv", index=False)
    patients(40, 8).to_csv(tmp_path / "few.csv", index=False)
    own = task.table
    return Deployment(Task(spec=task.spec, table=lambda node: node.get("data") or own(node)), tmp_path, sites=3)


def test_a_root_set_is_read_from_a_file_on_the_server(hospitals: Deployment, tmp_path: Path) -> None:
    found = {}
    for name, file in {"first": "root.csv", "again": "root.csv", "other": "data/0.csv"}.items():
        hospitals.run(out=str(tmp_path / name), root=str(tmp_path / file))
        found[name] = shared(tmp_path / name)
    assert torch.equal(found["first"], found["again"])
    assert not torch.allclose(found["first"], found["other"])  # it is what decides
    with pytest.raises(InputError, match="another root set; name the file of the server"):
        hospitals.run(out=str(tmp_path / "first"), root=str(tmp_path / "data/0.csv"), set="train.rounds=3")


@pytest.mark.parametrize(
    ("settings", "root", "message"),
    [
        ("", "", "'fltrust' of method 'fedavg' needs clean samples on the server; name a file of them with root"),
        ("", "few.csv", "root_samples = 40 of method 'fedavg' is more than the 27 training samples"),
        ("", "nowhere.csv", "nowhere.csv"),
        ("methods.fedavg.aggregator=mean", "root.csv", "has no effect: a root set is of no use to this aggregator"),
    ],
)
def test_a_root_set_that_is_missing_or_has_no_effect_is_one_line(
    settings: str, root: str, message: str, hospitals: Deployment, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        hospitals.run(set=settings, root=root and str(tmp_path / root))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run/seed-0").exists()
    # what fedtilt deploy run prints; without it, the traceback of the server's log
    assert read_json(tmp_path / "run/stopped.json")["reason"] == str(error.value)


def test_a_file_beside_the_specs_own_data_is_one_line(spec: Path, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(with_rule(spec.read_text(), RULES[0]))
    with pytest.raises(InputError, match=r"^root = 'a.csv' has no effect: a root set is drawn from the data set"):
        Deployment(Task(spec=path), tmp_path).run(root="a.csv")
