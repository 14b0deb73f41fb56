"""Methods that send or keep more than models give the simulator's states in a Flower federation, also after a stop."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Message
from safetensors.torch import load_file

from fedtilt.engine.prepare import prepare
from fedtilt.errors import InputError
from fedtilt.files import read_json
from fedtilt.flower import Task
from fedtilt.methods import PRESETS
from fedtilt.simulation import Round, simulate_prepared
from fedtilt.spec import federation_of, load, model_of, train_settings_of
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.loopback import Deployment

METHODS = {
    "fedtilt": "tau = 2.0\nlam = -1.0\nq = 0.5\nmu = 0.1",
    "fedavg": "",
    "fedavg_finetuned": "",
    "fedprox": "mu = 0.5",
    "ditto": "mu = 0.1",
    "term": "t = 1.5",
    "local": "",
    "scaffold": "",
    "feddyn": "alpha = 0.1",
    "qffl": "q = 1.0",
    "afl": "",
    "term_clients": "",
    "fedmgda": "",
    "propfair": "utility = 6.0",
    "fedper": "",
    "fedrep": "head_epochs = 1",
    "pfedme": "mu = 2.0",
    "aaggff": "",
    "apfl": "",
    "fedala": "layers = 2",
    "fedas": "",
    "fedbabu": "",
    "feddbe": "kappa = 1.0",
    "fedminmax": "",
    "fedrod": "",
    "foundationfl": "share = 1.0",
    "moon": "",
}
SETTINGS = "train.rounds=3\ntrain.lr=0.05\ntrain.epochs=1\ntrain.batch_size=40"
OPTIONS = {  # that keep state, or must change nothing
    "plain": "",
    "server sgd, audit": "train.server_optimizer=sgd train.audit=true",
    "server adam, client momentum": "train.server_optimizer=adam train.server_optimizer.lr=0.02 "
    "{m}.client_momentum=0.5",
    "yogi, decay": "train.server_optimizer=yogi train.server_optimizer.lr=0.02 "
    "train.schedule=exponential train.schedule.decay=0.8",
    "buckets of one": '{m}.before=["bucketing"] {m}.before.0.size=1',
}


@pytest.fixture
def method_spec(request: pytest.FixtureRequest, spec: Path, tmp_path: Path) -> Path:
    preset = request.param
    path = tmp_path / f"{preset}.toml"
    path.write_text(spec.read_text().split("[[methods]]")[0] + f'[[methods]]\npreset = "{preset}"\n{METHODS[preset]}\n')
    return path


def simulated(spec: Path, settings: Sequence[str]) -> Round:
    loaded = load(spec, overrides=[*settings, "train.screen=3"])  # the default of a deployment
    methods, settings_ = [m.to_method() for m in loaded.methods], train_settings_of(loaded, 0)
    *_, last = simulate_prepared(prepare(methods, federation_of(loaded, 0), model_of(loaded), settings_))
    return last


def check_deployment(spec: Path, option: str, folder: Path) -> None:
    name = spec.stem
    settings = [*SETTINGS.splitlines(), *OPTIONS[option].format(m=f"methods.{name}").split()]
    try:
        last = simulated(spec, settings)
    except InputError as error:  # weights of clients and mixed models, say: refused alike
        with pytest.raises(InputError, match=re.escape(str(error))):
            Deployment(Task(spec=spec), folder).run(set="\n".join(settings))
        return
    deployment = Deployment(Task(spec=spec), folder)
    deployment.run(set="\n".join(settings).replace("rounds=3", "rounds=2"))
    deployment.run(set="\n".join(settings))  # continues from the checkpoint of round 2
    deployed = RunFolder(folder / "run/seed-0").latest()
    torch.testing.assert_close(*(state.server[name].to_tensors() for state in (deployed, last.state)))
    for site in (0, 1):
        kept = last.state.client_states.get((name, site))
        files = sorted((folder / "state" / str(site)).rglob("round-*.safetensors"))
        assert bool(files) != kept.is_empty
        if files:
            torch.testing.assert_close(load_file(files[-1]), kept.to_tensors(), rtol=1e-4, atol=1e-5)


def test_every_preset_is_deployed() -> None:
    assert {*METHODS} == {*PRESETS}


ALIKE = (  # send and keep what another method does
    "fedavg_finetuned", "fedprox", "term", "local", "afl", "term_clients", "fedmgda", "fedper", "fedbabu", "moon",
)  # fmt: skip


@pytest.mark.parametrize(
    "method_spec",
    [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in METHODS],
    indirect=True,
)
def test_a_deployment_gives_the_simulators_states(method_spec: Path, tmp_path: Path) -> None:
    number = [*METHODS].index(method_spec.stem)
    check_deployment(method_spec, [*OPTIONS][number % len(OPTIONS)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("method_spec", METHODS, indirect=True)
def test_a_deployment_with_options_gives_the_simulators_states(method_spec: Path, option: str, tmp_path: Path) -> None:
    check_deployment(method_spec, option, tmp_path)


@pytest.mark.parametrize(
    ("method_spec", "reason"),
    [
        ("scaffold", "has other tensors: 1 are missing and 0 are unknown"),
        ("qffl", "declares no loss ≥ 0 of the received model"),
    ],
    indirect=["method_spec"],
)
def test_a_reply_without_what_the_method_needs_is_rejected(method_spec: Path, reason: str, tmp_path: Path) -> None:
    def without(reply: Message, site: int, round: int) -> list[Message]:
        content = reply.content
        if site == 1 and "tensors" in content:
            del content["tensors"]["correction.control"]
        if site == 1 and "declared-loss" in content.get("metrics", {}):
            content["metrics"]["declared-loss"] = -1.0
        return [reply]

    Deployment(Task(spec=method_spec), tmp_path).run(tamper=without, set=SETTINGS, quorum=0.5)
    participation = read_json(tmp_path / "run/seed-0/participation.json")
    assert reason in str(participation)


@pytest.mark.parametrize("method_spec", ["scaffold"], indirect=True)
def test_no_local_tensor_leaves_a_site(method_spec: Path, tmp_path: Path) -> None:
    """What travels is the model, and the change of the control variate: never the variate itself."""
    grid = Deployment(Task(spec=method_spec), tmp_path).run(set=SETTINGS)
    records = {
        key for message, reply in grid.sent if not reply.has_error()
        for key, record in reply.content.items() if isinstance(record, ArrayRecord)
    }  # fmt: skip
    assert records == {"arrays", "tensors"}


@pytest.mark.parametrize("method_spec", ["scaffold", "feddyn", "ditto"], indirect=True)
def test_a_lost_reply_is_a_round_without_the_site(method_spec: Path, tmp_path: Path) -> None:
    """The server has nothing of the round, so the site continues from what it had before: the states fit each other."""
    found = {}
    for name in ("lost", "not trained"):
        home = tmp_path / name

        def drop(reply: Message, site: int, round: int, home: Path = home, name: str = name) -> list[Message]:
            if reply.metadata.message_type != "train" or site != 1 or round not in (2, 3):
                return [reply]
            for file in (home / "state/1").rglob(f"round-{round:05d}.safetensors"):
                if name == "not trained":
                    file.unlink()
            return []

        deployment = Deployment(Task(spec=method_spec), home)
        for rounds in (2, 4, 5):  # continues after a round with the lost reply, and after one without
            settings = SETTINGS.replace("rounds=3", f"rounds={rounds}") + "\ntrain.eval_every=1\ntrain.screen=0"
            deployment.run(drop, set=settings, quorum=0.5)
        files = [sorted((home / f"state/{site}").rglob("round-*.safetensors")) for site in (0, 1)]
        server = RunFolder(home / "run/seed-0").latest().server[method_spec.stem].to_tensors()
        counts, _ = RunFolder(home / "run/seed-0").evaluations.counts(3)
        personal = counts[method_spec.stem].evaluated
        found[name] = [server, *(load_file(of_site[-1]) for of_site in files), {"evaluated": personal}]
    torch.testing.assert_close(found["lost"], found["not trained"], rtol=0, atol=0)
    server, *sites, _ = found["lost"]
    if method_spec.stem == "scaffold":
        mean = torch.stack([tensors["correction.control"] for tensors in sites]).mean(0)
        torch.testing.assert_close(server["correction.control"], mean)


@pytest.mark.parametrize("method_spec", ["scaffold"], indirect=True)
def test_a_round_whose_sites_have_left_uses_no_update(method_spec: Path, tmp_path: Path) -> None:
    """The update of site 1 in round 1 is lost, round 2 is without a site; then the server starts again."""

    def drop(reply: Message, site: int, round: int) -> list[Message]:
        return [] if reply.metadata.message_type == "train" and (site, round) == (1, 1) else [reply]

    some = f"{SETTINGS}\nclients.count=4\nclients.leave_out=[2,3]\ntrain.participation=0.5\nseed=500"
    deployment = Deployment(Task(spec=method_spec), tmp_path, sites=4)
    deployment.run(drop, set=some.replace("rounds=3", "rounds=2"), quorum=0.5)
    grid = deployment.run(set=some)
    seed_folder = next((tmp_path / "run").glob("seed-*"))
    rounds = read_json(seed_folder / "participation.json")["rounds"]
    assert [rounds[number]["accepted"] for number in ("1", "2", "3")] == [[0], [], [0, 1]]
    sent = [message.content["config"] for message, _ in grid.sent if message.metadata.message_type == "train"]
    assert [config["used-round"] for config in sent] == [1, 0]
