"""A client leaves: the models are those of a run that never had it, and nothing of it remains."""

import csv
import dataclasses
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fedtilt as ft
from examples.patients import write_patients
from fedtilt.cli import app
from fedtilt.data.tables.schema import Schema
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError, InputWarning
from fedtilt.files import read_json
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import read_run
from fedtilt.report.summary import certificates, facts
from fedtilt.runs.forget import changes, forget, forget_site, model_digest
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load

TOY = """
name = "toy"
[data]
name = "toy-2"
[clients]
count = 6
partition = "iid"
validation = 0.2
[model]
name = "logistic"
[train]
rounds = 4
participation = 0.35
epochs = 1
workers = 0
[[methods]]
preset = "ditto"
mu = 0.1
[[methods]]
preset = "scaffold"
"""
TABLE = """
name = "patients"
[data]
file = "patients.csv"
target = "diagnosis"
client = "hospital"
drop = ["patient"]
[model]
name = "logistic"
[train]
rounds = 2
participation = 1.0
epochs = 1
workers = 0
baselines = false
[[methods]]
preset = "ditto"
mu = 0.1
"""


def write_spec(folder: Path, text: str, name: str = "spec.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_the_others_are_selected_as_with_the_client_and_no_client_is_drawn_in_its_place() -> None:
    settings = TrainSettings(participation=0.3, seed=3)
    for round in range(1, 30):
        with_it = settings.selected(round, 10)
        assert settings.selected(round, 10, [4]) == [n for n in with_it if n != 4]


def test_the_digest_of_models_with_an_audit(tmp_path: Path) -> None:
    """Some of its numbers have no dimension."""
    file, digests = write_spec(tmp_path, TOY), []
    for n, seed in enumerate((0, 0, 1)):
        run_spec(load(file, overrides=["train.audit=true"], seed=seed), tmp_path / str(n))
        digests.append(model_digest(tmp_path / str(n)))
    assert digests[0] == digests[1] != digests[2]


def test_forgetting_gives_the_models_of_a_run_that_never_had_the_client(tmp_path: Path) -> None:
    run_spec(load(write_spec(tmp_path, TOY)), tmp_path / "run")
    forget(tmp_path / "run", "2", tmp_path / "without")
    never = TOY.replace("[clients]", '[clients]\nleave_out = ["2"]')
    run_spec(load(write_spec(tmp_path, never, "never.toml")), tmp_path / "never")
    assert model_digest(tmp_path / "without") == model_digest(tmp_path / "never") != model_digest(tmp_path / "run")
    for found in changes(tmp_path / "run", tmp_path / "without"):
        assert set(found.clients) == set("01345")
    with pytest.raises(InputError, match="client '2' is not part of .*: leave_out has it"):
        forget(tmp_path / "without", "2", tmp_path / "again")


def test_the_samples_of_the_client_do_not_matter() -> None:
    federation = ft.Federation.build(ft.data.load("toy-2"), clients=6, partition="iid", leave_out=["2"], validation=0.2)
    whole = ft.Federation.build(ft.data.load("toy-2"), clients=6, partition="iid", validation=0.2)
    for n in (0, 1, 3, 4, 5):
        assert torch.equal(federation.train_index[n], whole.train_index[n])
        assert torch.equal(federation.test_index[n], whole.test_index[n])
    x = whole.dataset.x_train.clone()
    for index in (whole.train_index[2], whole.validation_index[2]):
        x[index] = 1e6
    spoiled = dataclasses.replace(federation, dataset=dataclasses.replace(federation.dataset, x_train=x))
    results = [
        ft.run([ft.ditto(0.1)], data, ft.models.logistic, rounds=4, participation=0.35, epochs=1, workers=0)["ditto"]
        for data in (federation, spoiled)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*(r.shared.state_dict().values() for r in results), strict=True))


def test_of_a_table_means_and_categories_are_computed_without_the_client(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_patients(tmp_path / "a/patients.csv", 200)
    run_spec(load(write_spec(tmp_path / "a", TABLE)), tmp_path / "run")
    forget(tmp_path / "run", "north", tmp_path / "without")
    (tmp_path / "b").mkdir()
    with (tmp_path / "a/patients.csv").open() as source, (tmp_path / "b/patients.csv").open("w") as target:
        rows = csv.reader(source)
        csv.writer(target).writerows(row for row in rows if row[-1] != "north")  # the rows are deleted
    never = TABLE.replace("[train]", '[clients]\nleave_out = ["north"]\n[train]')
    with pytest.warns(InputWarning, match="leave_out names 'north', and no row of patients has this client"):
        run_spec(load(write_spec(tmp_path / "b", never)), tmp_path / "never")
    assert model_digest(tmp_path / "without") == model_digest(tmp_path / "never")
    files = [read_json(tmp_path / f"{name}/seed-0/model.json") for name in ("run", "never", "without")]
    schemas = [Schema.from_json(found["schema"]) for found in files]
    assert schemas[1] == schemas[2] != schemas[0]
    with pytest.raises(InputError, match="are also those of rows of 'north'; give leave_out to ft.data.table too"):
        ft.Federation.build(
            ft.data.table(tmp_path / "a/patients.csv", target="diagnosis", client="hospital", drop=["patient"]),
            leave_out=["north"],
        )


def test_the_command_says_who_gains_and_names_the_folder_to_delete(tmp_path: Path) -> None:
    run_spec(load(write_spec(tmp_path, TOY)), tmp_path / "run")
    result = CliRunner().invoke(app, ["forget", str(tmp_path / "run"), "--client", "1", "--quiet"])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "ditto, seed 0: the others change by" in text
    digest = model_digest(tmp_path / "run-without-1")
    first = next(r for r in range(1, 5) if 1 in TrainSettings(participation=0.35).selected(r, 6))
    trained = f"4 rounds again, from the first on: a whole run (1 was first selected in round {first})"
    assert f"{trained} models: {digest}" in text
    run_spec(load(tmp_path / "run-without-1/spec.toml"), tmp_path / "other")  # as the command says
    assert f"models: {digest} (blake2b)\n" in CliRunner().invoke(app, ["check", str(tmp_path / "other")]).output
    assert f'"models": "{digest}"' in CliRunner().invoke(app, ["check", str(tmp_path / "other"), "--json"]).output
    assert digest not in CliRunner().invoke(app, ["check", str(tmp_path / "run")]).output
    assert "which still has the client" in text
    assert (tmp_path / "run-without-1/without.html").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leave_out": ["9"]}, "client 9 does not exist"),
        ({"leave_out": "1"}, "leave_out must be a list, got '1'"),
        ({"leave_out": ["0", "1", "2", "3", "4", "5"]}, "leaves no client"),
    ],
)
def test_wrong_names_are_errors(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ft.Federation.build(ft.data.load("toy-2"), clients=6, partition="iid", **settings)  # type: ignore[arg-type]


def test_privacy_counts_on_all_clients() -> None:
    federation = ft.Federation.build(ft.data.load("toy-2"), clients=6, partition="iid", leave_out=["0"])
    privacy = ft.Privacy(clip=1.0, noise=1.0, delta=1e-5)
    with pytest.raises(InputError, match="leave_out gives rounds fewer clients than the privacy"):
        ft.run([ft.fedavg()], federation, ft.models.logistic, rounds=1, privacy=privacy)


def test_a_site_deletes_what_it_keeps(tmp_path: Path) -> None:
    for site in (1, 2):
        folder = tmp_path / f"state/name/fedtilt/seed-0/site-{site:05d}"
        folder.mkdir(parents=True)
        (folder / "fingerprint.json").write_text("{}")
    (deleted,) = forget_site(tmp_path / "state", "1")
    assert not deleted.exists()
    assert deleted.with_name("site-00002").exists()
    with pytest.raises(InputError, match="neither a run folder nor the state-dir of site 1"):
        forget_site(tmp_path / "state", "1")


def test_a_client_that_has_left_is_not_counted_and_an_early_end_is(tmp_path: Path) -> None:
    stop = '[train]\nstop = { name = "patience", rounds = 2 }'
    run_spec(
        load(write_spec(tmp_path, TOY.replace("[train]", stop).replace("rounds = 4", "rounds = 40"))), tmp_path / "run"
    )
    result = CliRunner().invoke(app, ["forget", str(tmp_path / "run"), "--client", "1", "--quiet"])
    assert result.exit_code == 0, result.output
    end = read_json(tmp_path / "run-without-1/seed-0/early_stop.json")["round"]
    assert end < 40
    assert f"{end} rounds again, from the first on" in " ".join(result.output.split())
    run = read_run(tmp_path / "run-without-1")
    assert ", 5 clients, " in facts(run)
    assert "without test data" not in certificates(run)
    assert not any(note.title == "not evaluated" for note in notes(run))
    result = CliRunner().invoke(
        app,
        ["export", str(tmp_path / "run-without-1"), "--method", "scaffold", "--to", str(tmp_path / "m.safetensors")],
    )
    card = (tmp_path / "m.md").read_text()
    assert "divided among 5 clients." in card
    assert "The fewest test samples of a client are 0" not in card
