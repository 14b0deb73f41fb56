"""Privacy in a deployment: the simulator's models with the noise of the seed, secret noise, and repeated rounds."""

from pathlib import Path

import pytest
import torch
from flwr.app import Message

import fedtilt as ft
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

NOISE = "privacy.clip=1\nprivacy.noise=0.5\nprivacy.delta=1e-5\ntrain.rounds=3\ntrain.eval_every=1"
SEED = f"{NOISE}\nprivacy.randomness=seed"


def shared(folder: Path) -> torch.Tensor:
    state = RunFolder(folder / "seed-0").latest()
    assert state is not None
    return state.server["fedtilt"].parameters


def spent(folder: Path) -> dict[int, float]:
    """Round → epsilon."""
    run = RunFolder(folder / "seed-0")
    run.resume(lambda _: None)
    return {round: summary.privacy.epsilon for round, summary in run.evaluations.history["fedtilt"] if summary.privacy}


@pytest.mark.parametrize(
    "more",
    [
        "",
        "methods.fedtilt.q=0.2",
        "train.participation=0.5",
        "train.server_optimizer=adam\ntrain.server_optimizer.lr=0.1",
    ],
)
def test_a_deployment_gives_the_simulators_models_with_the_noise_of_the_seed(
    more: str, deployment: Deployment, spec: Path, tmp_path: Path
) -> None:
    settings = f"{SEED}\n{more}"
    deployment.run(set=settings)
    run_spec(load(spec, overrides=[line for line in settings.splitlines() if line]), tmp_path / "simulated")
    torch.testing.assert_close(shared(tmp_path / "run"), shared(tmp_path / "simulated"))
    assert list(spent(tmp_path / "run")) == [1, 2, 3]
    assert spent(tmp_path / "run") == spent(tmp_path / "simulated")
    privacy = read_json(tmp_path / "run/seed-0/fingerprint.json")["train"]["privacy"]
    assert privacy == read_json(tmp_path / "simulated/seed-0/fingerprint.json")["train"]["privacy"]


def test_noise_and_selection_are_secret_unless_the_spec_says_otherwise(spec: Path, tmp_path: Path) -> None:
    task = Task(spec=spec)
    settings = task.resolve({"set": NOISE}).settings
    assert settings.privacy is not None
    assert settings.privacy.randomness == "secret"
    assert settings.screen is None
    for name in ("first", "second"):
        Deployment(task, tmp_path / name).run(set=f"{NOISE}\ntrain.participation=0.5")
    assert not torch.allclose(shared(tmp_path / "first/run"), shared(tmp_path / "second/run"), atol=0.01)
    folder = tmp_path / "first/run"
    for entry in read_json(folder / "seed-0/participation.json")["rounds"].values():
        assert entry["selected"] == entry["accepted"]  # one draw for the requests and the record
    assert read_json(folder / "seed-0/privacy.json") == {"releases": 3}


def test_a_site_that_is_missing_counts_as_an_update_of_zero(deployment: Deployment, tmp_path: Path) -> None:
    def lose_site_1(reply: Message, site: int, round: int) -> list[Message]:
        return [] if site == 1 and reply.metadata.message_type == "train" else [reply]

    one_round = f"{SEED.replace('rounds=3', 'rounds=1').replace('noise=0.5', 'noise=1e-6')}\ntrain.lr=1.0"
    deployment.run(tamper=lose_site_1, set=one_round, quorum=0.5)
    start = RunFolder(tmp_path / "run/seed-0").checkpoints.read(0)
    update = shared(tmp_path / "run") - start.server["fedtilt"].parameters
    assert float(update.norm()) == pytest.approx(0.5, abs=1e-4)  # a clipped update of one of two sites


def _damage_last_checkpoint(folder: Path) -> None:
    *_, last = sorted((folder / "seed-0/checkpoints").glob("round-*"))
    (last / "server.safetensors").write_bytes(b"")


def test_a_repeated_round_has_new_noise_and_counts_again(deployment: Deployment, tmp_path: Path) -> None:
    deployment.run(set=NOISE)
    first = shared(tmp_path / "run")
    _damage_last_checkpoint(tmp_path / "run")
    deployment.run(set=NOISE)
    assert not torch.allclose(shared(tmp_path / "run"), first, atol=0.01)
    assert read_json(tmp_path / "run/seed-0/privacy.json") == {"releases": 4}
    settings = deployment.task.resolve({"set": NOISE}).settings
    made = GaussianMechanism.of(settings, 2, Parts.plain(torch.zeros(1)))
    assert made is not None
    assert spent(tmp_path / "run") == {1: made.loss(1).epsilon, 2: made.loss(2).epsilon, 3: made.loss(4).epsilon}


@pytest.mark.parametrize("text", ["", "{}", '{"releases": -1}', '{"releases": "many"}', "[3]"])
def test_a_damaged_count_is_one_line(text: str, deployment: Deployment, tmp_path: Path) -> None:
    deployment.run(set=NOISE)
    (tmp_path / "run/seed-0/privacy.json").write_text(text)
    with pytest.raises(ft.InputError, match=r"privacy\.json"):
        deployment.run(set=NOISE)


def test_a_deleted_count_is_noticed(deployment: Deployment, tmp_path: Path) -> None:
    """Without it, a round that was repeated would be free."""
    deployment.run(set=NOISE)
    _damage_last_checkpoint(tmp_path / "run")
    (tmp_path / "run/seed-0/privacy.json").unlink()
    with pytest.raises(ft.InputError, match=r"privacy\.json is missing, and without it nobody knows how many models"):
        deployment.run(set=NOISE)


def test_a_repeated_round_beyond_the_budget_is_not_trained(deployment: Deployment, tmp_path: Path) -> None:
    settings = NOISE.replace("noise=0.5", "epsilon=40").replace("eval_every=1", "eval_every=3")
    deployment.run(set=settings)
    assert list(spent(tmp_path / "run")) == [3]
    _damage_last_checkpoint(tmp_path / "run")
    deployment.run(set=settings)
    after = spent(tmp_path / "run")
    assert list(after) == [2]  # the budget is spent: the model of round 2 is evaluated, and nothing is trained
    assert 39.8 < after[2] <= 40
    assert read_json(tmp_path / "run/results.json")["methods"]["fedtilt"]["last"][0]["privacy"]["epsilon"] == after[2]
    assert read_json(tmp_path / "run/seed-0/privacy.json") == {"releases": 3}
