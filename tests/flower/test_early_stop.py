"""A deployment ends early as the simulator does: in the same round, with the same models, whatever stops it between."""

from pathlib import Path

import pytest
import torch
from flwr.app import Message

import fedtilt as ft
from fedtilt.evaluation.metrics import GroupCounts
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.flower.early_stop import SiteStopCheck
from fedtilt.flower.run_folder import ServerRunFolder
from fedtilt.flower.run_status import run_statuses
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.runs.spec_run import run_spec
from fedtilt.runs.trained_run import read_trained_run
from fedtilt.spec import load
from fedtilt.stopping import Patience
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

SPEC = """
name = "early"
[data]
name = "toy-2"
[clients]
count = 3
partition = "dirichlet"
alpha = 0.5
max_train = 40
validation = 0.4
[model]
name = "logistic"
[train]
rounds = 14
participation = 0.7
epochs = 1
lr = 0.3
eval_every = 1
screen = 0
[[methods]]
preset = "ditto"
mu = 0.1
"""


def settings(restore: bool, by: str = "mean") -> str:
    return f'train.stop={{ name = "patience", rounds = 2, by = "{by}", restore_best = {str(restore).lower()} }}'


def write_spec(folder: Path) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "early.toml").write_text(SPEC)
    return folder / "early.toml"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("simulated")
    path = write_spec(folder)
    for restore in (False, True):
        run_spec(load(path, overrides=[settings(restore)]), folder / str(restore))
    return {restore: folder / str(restore) for restore in (False, True)}


def assert_same(home: Path, simulated: Path) -> None:
    """The end, its reason, the models of server and sites and the curves are those of the simulator."""
    run, other = home / "run/seed-0", simulated / "seed-0"
    ending = read_json(run / "early_stop.json")
    assert ending == read_json(other / "early_stop.json")
    deployed, expected = RunFolder(run).latest(), RunFolder(other).latest()
    assert deployed.round == expected.round == ending["round"] < 14
    torch.testing.assert_close(deployed.shared, expected.shared)
    for site in range(3):
        trained = read_trained_run(home / "state" / str(site))  # what fedtilt export has on the site
        assert trained.round == ending["round"]
        kept = expected.client_states.get(("ditto", site))
        torch.testing.assert_close(trained.client_state("ditto", 0).to_tensors(), kept.to_tensors())
    found, results = (read_json(folder / "results.json")["methods"]["ditto"] for folder in (home / "run", simulated))
    results.pop("validation")  # sites send no sums of classes of it
    assert found == results


@pytest.mark.parametrize("restore", [False, True])
def test_a_deployment_ends_with_the_round_and_the_models_of_the_simulator(
    restore: bool, simulated: dict[bool, Path], tmp_path: Path
) -> None:
    deployment = Deployment(Task(spec=write_spec(tmp_path)), tmp_path, sites=3)
    grid = deployment.run(set=settings(restore))
    assert_same(tmp_path, simulated[restore])
    evaluated = [reply.content["metrics"] for _, reply in grid.sent if "validation" in reply.content.get("metrics", {})]
    assert evaluated
    assert all(len(metrics["validation"]) == len(metrics["validation-total"]) == 1 for metrics in evaluated)
    ((_, status),) = run_statuses(tmp_path)
    end, reason = (read_json(tmp_path / "run/seed-0/early_stop.json")[key] for key in ("round", "reason"))
    assert status.lines[0] == f"run: round {end} of 14, finished: {reason}"
    again = deployment.run(set=settings(restore))
    assert not [message for message, _ in again.sent if message.metadata.message_type != "query"]
    assert_same(tmp_path, simulated[restore])


class Killed(Exception):
    pass


@pytest.mark.parametrize("restore", [False, True])
def test_a_deployment_that_is_killed_ends_as_the_simulator(
    restore: bool, simulated: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = Deployment(Task(spec=write_spec(tmp_path)), tmp_path, sites=3)
    moments = {("train", 2), ("evaluate", 4)}

    def kill(reply: Message, site: int, round: int) -> list[Message]:
        if (moment := (reply.metadata.message_type, round)) in moments:
            moments.remove(moment)
            raise Killed
        return [reply]

    for _ in range(2):
        with pytest.raises(Killed):
            deployment.run(kill, set=settings(restore))

    def kill_at_the_end(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ServerRunFolder, "record_end", kill_at_the_end)
        with pytest.raises(Killed):
            deployment.run(kill, set=settings(restore))
    deployment.run(set=settings(restore))
    assert not moments
    assert_same(tmp_path, simulated[restore])


@pytest.mark.parametrize("moment", ["evaluates", "branches", "writes"])
def test_a_server_that_is_killed_while_it_goes_back_does_not_train_again(
    moment: str, simulated: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, best = Deployment(Task(spec=write_spec(tmp_path)), tmp_path, sites=3), simulated[True] / "seed-0"
    evaluations: list[int] = []

    def kill(*_: object) -> None:
        raise Killed

    def kill_in_evaluation(reply: Message, site: int, round: int) -> list[Message]:
        evaluations.append(round * (reply.metadata.message_type == "evaluate"))
        if moment == "evaluates" and evaluations.count(read_json(best / "early_stop.json")["round"]) == 5:  # 3 before
            raise Killed
        return [reply]

    with monkeypatch.context() as patch:
        for name, owner, function in (
            ("branches", TrainingHistory, "branch"), ("writes", ServerRunFolder, "write_results"),
        ):  # fmt: skip
            patch.setattr(owner, function, kill if name == moment else getattr(owner, function))
        with pytest.raises(Killed):
            deployment.run(kill_in_evaluation, set=settings(True))
    again = deployment.run(set=settings(True))
    assert {message.metadata.message_type for message, _ in again.sent} <= {"query", "evaluate"}
    assert_same(tmp_path, simulated[True])
    assert not [m for m, _ in deployment.run(set=settings(True)).sent if m.metadata.message_type != "query"]


def counts(**correct: int) -> dict[int, GroupCounts]:
    """Of ten validation samples each, by site."""
    return {int(site[1:]): GroupCounts(torch.tensor([n]), torch.tensor([10])) for site, n in correct.items()}


def test_rounds_are_compared_over_the_sites_that_evaluated_both(tmp_path: Path) -> None:
    rounds = {
        1: counts(s0=5, s1=9),
        2: counts(s0=6),  # site 1, with its high accuracy, is offline; site 0 improves
        3: counts(s0=6, s1=10),  # site 0 does not
        4: counts(s1=10),  # nothing in common with the best round
        5: counts(s0=7, s1=0),
    }
    check = SiteStopCheck(Patience(rounds=2), tmp_path / "validation.json")
    found = []
    for round, replies in rounds.items():
        check.record(round, replies)
        found.append((check.check.best_round, check.check.is_over))
    assert found == [(1, False), (2, False), (2, False), (2, False), (5, False)]
    restored = SiteStopCheck(Patience(rounds=2), tmp_path / "validation.json")
    restored.restore(lambda round: round <= 3)
    restored.record(4, counts(s0=6))
    assert (restored.check.best_round, restored.check.is_over) == (2, True)
    errors = SiteStopCheck(Patience(rounds=1), tmp_path / "errors.json")  # of numbers: lower is better
    for round, error in ((1, 0.25), (2, 0.125), (3, 0.5)):
        errors.record(round, {0: GroupCounts(torch.tensor([[error, error]], dtype=torch.float64), torch.tensor([3]))})
    again = SiteStopCheck(Patience(rounds=1), tmp_path / "errors.json")
    again.restore(lambda _: True)
    assert (again.check.best_round, again.check.is_over) == (errors.check.best_round, errors.check.is_over) == (2, True)
    with pytest.raises(ft.InputError, match="no site that evaluated round 1 has any; use a larger clients.validation"):
        SiteStopCheck(Patience()).record(1, {0: GroupCounts(torch.tensor([0]), torch.tensor([0]))})


def test_a_site_that_is_offline_does_not_change_who_is_compared(tmp_path: Path) -> None:
    def without_site_2(reply: Message, site: int, round: int) -> list[Message]:
        is_lost = site == 2 and round >= 2 and reply.metadata.message_type in ("train", "evaluate")
        return [] if is_lost else [reply]

    Deployment(Task(spec=write_spec(tmp_path)), tmp_path, sites=3).run(
        without_site_2, set=f"{settings(False)}\ntrain.participation=1.0", quorum=0.5, **{"max-silent-rounds": 99}
    )
    stored = read_json(tmp_path / "run/seed-0/validation.json")["rounds"]
    sites = {int(round): sorted(by_site) for round, by_site in stored.items()}
    assert sites[1] == ["0", "1", "2"]
    assert all(found == ["0", "1"] for round, found in sites.items() if round > 1)
    ending = read_json(tmp_path / "run/seed-0/early_stop.json")
    accuracy = {
        int(round): [100 * by_site[n]["sums"][0] / by_site[n]["samples"][0] for n in ("0", "1")]
        for round, by_site in stored.items()
    }
    best, best_round = -1.0, 0
    for round, values in accuracy.items():
        if sum(values) > best:
            best, best_round = sum(values), round
    assert ending["round"] == best_round + 2 == max(accuracy)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"validation": [999]}, "has impossible counts in 'validation'"),
        ({"validation": None}, "does not have 1 whole numbers in 'validation'"),
        ({"validation-total": [10**6]}, "claims 1000000 validation samples, and "),
    ],
)
def test_impossible_validation_sums_are_rejected(values: dict, reason: str, tmp_path: Path) -> None:
    def lie(reply: Message, site: int, round: int) -> list[Message]:
        metrics = None if reply.has_error() else reply.content.get("metrics")
        if site == 1 and metrics is not None and "validation" in metrics:
            for key, value in values.items():
                if value is None:
                    del metrics[key]
                else:
                    metrics[key] = value
        return [reply]

    deployment = Deployment(Task(spec=write_spec(tmp_path)), tmp_path, sites=3)
    deployment.run(lie, set=f"{settings(False)}\ntrain.rounds=2\ntrain.participation=1.0")
    rejected = read_json(tmp_path / "run/seed-0/participation.json")["rejected"]["site 1"]
    assert any(text.startswith(reason) for text in rejected), rejected


def test_what_has_no_effect_is_an_error(tmp_path: Path) -> None:
    task = Task(spec=write_spec(tmp_path))
    with pytest.raises(ft.InputError, match="train.stop = 'patience' needs validation data on the sites; set clients"):
        task.resolve({"set": "train.stop=patience\nclients.validation=0"})
    resolved = task.resolve({"set": settings(True)})
    info = task.federation_info(resolved)
    _, parts = task.initial_model(resolved, info)
    with pytest.raises(ft.InputError, match="restore_best = True of stop needs a run folder"):
        ft.flower.SiteStrategy(resolved.method, parts, info, settings=resolved.settings)
