"""Methods that send or keep more than models give the simulator's states in a Flower federation, also after a stop."""

from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Message
from safetensors.torch import load_file

from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.rounds.prepare import prepare
from fedtilt.simulation import Round, simulate_prepared
from fedtilt.spec import federation_of, load, model_of, train_settings_of
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

METHODS = {
    "scaffold": "",
    "feddyn": "alpha = 0.1",
    "qffl": "q = 1.0",
    "afl": "",
    "fedrep": "head_epochs = 1",
    "pfedme": "mu = 2.0",
}
SETTINGS = "train.rounds=3\ntrain.lr=0.05"


@pytest.fixture
def method_spec(request: pytest.FixtureRequest, spec: Path, tmp_path: Path) -> Path:
    preset = request.param
    path = tmp_path / f"{preset}.toml"
    path.write_text(spec.read_text().split("[[methods]]")[0] + f'[[methods]]\npreset = "{preset}"\n{METHODS[preset]}\n')
    return path


def simulated(spec: Path) -> Round:
    loaded = load(spec, overrides=[*SETTINGS.splitlines(), "train.screen=3"])  # the default of a deployment
    methods, settings = [m.to_method() for m in loaded.methods], train_settings_of(loaded, 0)
    *_, last = simulate_prepared(prepare(methods, federation_of(loaded, 0), model_of(loaded), settings))
    return last


@pytest.mark.parametrize("method_spec", METHODS, indirect=True)
def test_a_deployment_gives_the_simulators_states(method_spec: Path, tmp_path: Path) -> None:
    deployment = Deployment(Task(spec=method_spec), tmp_path)
    deployment.run(set=SETTINGS.replace("rounds=3", "rounds=2"))
    deployment.run(set=SETTINGS)  # continues from the checkpoint of round 2
    last = simulated(method_spec)
    name = method_spec.stem
    torch.testing.assert_close(RunFolder(tmp_path / "run/seed-0").latest().server, last.state.server)
    for site in (0, 1):
        kept = last.state.client_states.get((name, site))
        files = sorted((tmp_path / "state" / str(site)).rglob("round-*.safetensors"))
        assert bool(files) == bool(kept)
        if files:
            torch.testing.assert_close(load_file(files[-1]), dict(kept))


@pytest.mark.parametrize(
    ("method_spec", "reason"),
    [("scaffold", "has no vector 'control'"), ("qffl", "declares no loss ≥ 0 of the received model")],
    indirect=["method_spec"],
)
def test_a_reply_without_what_the_method_needs_is_rejected(method_spec: Path, reason: str, tmp_path: Path) -> None:
    def without(reply: Message, site: int, round: int) -> list[Message]:
        content = reply.content
        if site == 1 and "vector-control" in content:
            del content["vector-control"]
        if site == 1 and "declared-loss" in content.get("metrics", {}):
            content["metrics"]["declared-loss"] = -1.0
        return [reply]

    Deployment(Task(spec=method_spec), tmp_path).run(tamper=without, set=SETTINGS, quorum=0.5)
    participation = read_json(tmp_path / "run/seed-0/participation.json")
    assert reason in str(participation)


@pytest.mark.parametrize("method_spec", ["scaffold"], indirect=True)
def test_no_local_vector_leaves_a_site(method_spec: Path, tmp_path: Path) -> None:
    """What travels is the model, and the change of the control variate: never the variate itself."""
    grid = Deployment(Task(spec=method_spec), tmp_path).run(set=SETTINGS)
    records = {
        key for message, reply in grid.sent if not reply.has_error()
        for key, record in reply.content.items() if isinstance(record, ArrayRecord)
    }  # fmt: skip
    assert records == {"arrays", "vector-control"}
