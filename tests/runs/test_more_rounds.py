"""A run continues beyond its end, bit-identical to a run that was planned longer."""

import json
from pathlib import Path

import pytest

import fedtilt as ft
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from tests.helpers.callbacks import stop_after
from tests.helpers.recipe_model import RecipeModel

SPEC = """
[data]
name = "digits"
[clients]
count = 6
max_train = 20
[model]
name = "tests.helpers.recipe_model:RecipeModel"
[train]
rounds = 3
participation = 0.5
epochs = 1
lr = 0.02
momentum = 0.9
schedule = { name = "exponential", decay = 0.9 }
server_optimizer = { rule = "adam", lr = 0.1 }
local = ["head.*"]
eval_every = 2
workers = 0
[storage]
checkpoint_seconds = 0
[[methods]]
preset = "ditto"
[[methods]]
preset = "fedtilt"
tau = 1
lam = -2
mu = 0.1
"""


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def files(folder: Path) -> dict[str, bytes]:
    """The content of every file except run.json, which has the time."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("run.json", ".lock")
    }


def test_a_finished_run_goes_on_to_the_files_of_a_longer_run(spec_file: Path, tmp_path: Path) -> None:
    run_spec(load(spec_file, seeds=2), tmp_path / "run")
    evaluated = [json.loads(line)["round"] for line in (tmp_path / "run/seed-0/metrics.jsonl").read_text().splitlines()]
    assert evaluated == [2, 2, 3, 3]
    results = ft.resume(tmp_path / "run", rounds=6)
    planned = run_spec(load(spec_file, seeds=2, overrides=["train.rounds=6"]), tmp_path / "planned")
    assert files(tmp_path / "run") == files(tmp_path / "planned")
    assert [round for round, _ in results[1]["ditto"].history] == [2, 4, 6]
    assert repr(results) == repr(planned)


def test_an_interrupted_run_goes_on_and_may_be_killed_again(spec_file: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_spec(load(spec_file), tmp_path / "run", callbacks=[stop_after(1)])
    with pytest.raises(KeyboardInterrupt):
        ft.resume(tmp_path / "run", rounds=5, callbacks=[stop_after(3)])
    assert not (tmp_path / "run/results.json").exists()
    ft.resume(tmp_path / "run")  # the folder has the new length
    run_spec(load(spec_file, overrides=["train.rounds=5"]), tmp_path / "planned")
    assert files(tmp_path / "run") == files(tmp_path / "planned")


def test_the_default_interval_between_evaluations_stays_as_it_was(spec_file: Path, tmp_path: Path) -> None:
    every = ["train.eval_every=", "clients.count=2", "clients.max_train=4", "storage.checkpoint_seconds=60"]
    run_spec(load(spec_file, overrides=every, methods=["ditto"]), tmp_path / "run")
    result = ft.resume(tmp_path / "run", rounds=100)[0]  # a run of 100 rounds is evaluated every 2
    assert [round for round, _ in result["ditto"].history] == list(range(1, 101))
    assert load(tmp_path / "run/spec.toml").train.eval_every == 1


@pytest.mark.parametrize(
    ("settings", "rounds", "message"),
    [
        (
            ["train.schedule=cosine"],
            6,
            "schedule = 'cosine', in which every round depends on rounds = 3",
        ),
        ([], 2, "has 3 rounds, and rounds = 2 is fewer; choose more than 3"),
        ([], 0, "train.rounds = 0 is not possible; give a whole number ≥ 1"),
    ],
)
def test_a_length_that_the_run_cannot_have_is_rejected(
    spec_file: Path, tmp_path: Path, settings: list[str], rounds: int, message: str
) -> None:
    run_spec(load(spec_file, overrides=settings), tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(ft.InputError) as error:
        ft.resume(tmp_path / "run", rounds=rounds)
    assert message in str(error.value)
    assert files(tmp_path / "run") == before


def test_a_run_that_stopped_between_evaluations_cannot_end_there(spec_file: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_spec(load(spec_file), tmp_path / "run", callbacks=[stop_after(1)])
    with pytest.raises(ft.InputError, match="has 1 round, and rounds = 1 is fewer; choose more than 1"):
        ft.resume(tmp_path / "run", rounds=1)
    ft.resume(tmp_path / "run", rounds=2)
    run_spec(load(spec_file, overrides=["train.rounds=2"]), tmp_path / "planned")
    assert files(tmp_path / "run") == files(tmp_path / "planned")


def test_a_run_from_python_goes_on_with_more_rounds(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=20)
    arguments = [ft.ditto(0.1)], federation, RecipeModel
    settings = {"participation": 0.5, "epochs": 1, "workers": 0, "checkpoint_seconds": 0}
    for seed in (0, 1):
        ft.run(*arguments, out=tmp_path / "run", rounds=3, seed=seed, **settings)
        ft.run(*arguments, out=tmp_path / "planned", rounds=5, seed=seed, **settings)
    for seed in (0, 1):
        ft.run(*arguments, out=tmp_path / "run", rounds=5, seed=seed, **settings)
    assert files(tmp_path / "run") == files(tmp_path / "planned")
    with pytest.raises(ft.InputError, match=r"has seed-0 of a run with train\.rounds = 5, and now it is 7"):
        ft.run(*arguments, out=tmp_path / "run", rounds=7, seed=2, **settings)
