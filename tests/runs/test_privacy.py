"""Runs with privacy: epsilon in every file, the end at the budget, and an attack that fails as epsilon falls."""

import dataclasses
import itertools
import json
from pathlib import Path

import dp_accounting
import pytest
import torch
from scipy.special import ndtr
from torch import nn

import fedtilt as ft
from fedtilt.cli.console import Console
from fedtilt.cli.tables import legend
from fedtilt.engine.settings import train_settings
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.files import read_json
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import read_run
from fedtilt.runs.spec_run import run_spec
from fedtilt.spec import dump, load
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.callbacks import Calls, stop_after

TRAIN = {"rounds": 6, "participation": 0.3, "epochs": 1, "lr": 0.1, "eval_every": 2, "workers": 0}
PRIVACY = ft.Privacy(clip=1.0, noise=3.0, delta=1e-5)


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(ft.data.load("digits"), clients=10, max_train=30)


def spent(history: list[tuple[int, RoundMetrics]]) -> list[float]:
    return [summary.privacy.epsilon for _, summary in history if summary.privacy is not None]


def test_epsilon_is_in_the_metrics_the_result_the_table_and_the_report(
    federation: ft.Federation, tmp_path: Path
) -> None:
    methods = [ft.fedavg(), ft.ditto(0.1)]
    result = ft.run(methods, federation, ft.models.logistic, out=tmp_path, privacy=PRIVACY, **TRAIN)
    lines = [json.loads(line) for line in (tmp_path / "seed-0/metrics.jsonl").read_text().splitlines()]
    assert [(line["round"], line["method"]) for line in lines] == [
        (round, m.name) for round in (2, 4, 6) for m in methods
    ]
    epsilons = [line["privacy"]["epsilon"] for line in lines[::2]]
    assert 0 < epsilons[0] < epsilons[1] < epsilons[2] == result["fedavg"].privacy.epsilon
    assert spent(result["ditto"].history) == spent(result["fedavg"].history) == epsilons
    assert lines[0]["privacy"] == {"epsilon": epsilons[0], "delta": 1e-5, "noise": 3.0}
    console = Console(width=200)
    with console.capture() as printed:
        console.print(legend(read_run(tmp_path)))
    (sentence,) = [note.text for note in notes(read_run(tmp_path)) if note.title == "privacy"]
    assert (
        f"epsilon {epsilons[2]:.3g} at delta 1e-05 after round 6, with noise multiplier 3. It covers the shared model"
        in sentence
    )
    assert sentence in " ".join(printed.get().split())
    assert read_json(tmp_path / "seed-0/fingerprint.json")["train"]["privacy"]["noise"] == 3.0


def test_without_privacy_nothing_is_written_about_it(federation: ft.Federation, tmp_path: Path) -> None:
    result = ft.run([ft.fedavg()], federation, ft.models.logistic, out=tmp_path, **TRAIN)
    assert result["fedavg"].privacy is None
    assert "privacy" not in (tmp_path / "seed-0/metrics.jsonl").read_text()
    assert "privacy" not in (tmp_path / "seed-0/fingerprint.json").read_text()


def test_a_run_stops_at_its_budget(federation: ft.Federation) -> None:
    full = ft.run([ft.fedavg()], federation, ft.models.logistic, privacy=PRIVACY, **TRAIN | {"eval_every": 1})
    budget = spent(full["fedavg"].history)[3] + 1e-6  # of four rounds
    calls = Calls()
    limited = ft.run(
        [ft.fedavg()], federation, ft.models.logistic, privacy=dataclasses.replace(PRIVACY, epsilon=budget),
        callbacks=[calls], **TRAIN | {"eval_every": 5},
    )  # fmt: skip
    assert calls.notices == [f"privacy: the budget epsilon = {budget:g} lasts for 4 of 6 rounds"]
    assert [round for round, _ in limited["fedavg"].history] == [4]  # the last round is evaluated
    assert limited["fedavg"].metrics == full["fedavg"].history[3][1].evaluated


def test_the_noise_is_that_of_the_mechanism(federation: ft.Federation) -> None:
    """With a clip that clips nothing, the difference to a run without privacy is the noise."""
    privacy = ft.Privacy(clip=1e3, noise=1e-4, delta=1e-5)
    (private,) = ft.simulate([ft.fedavg()], federation, ft.models.logistic, privacy=privacy, **TRAIN | {"rounds": 1})
    (plain,) = ft.simulate([ft.fedavg()], federation, ft.models.logistic, **TRAIN | {"rounds": 1})
    noise = private.state.server["fedavg"].parameters - plain.state.server["fedavg"].parameters
    deviation = 1e-4 * 1e3 / 3  # of three clients
    assert len(noise) == 650
    assert float(noise.std()) == pytest.approx(deviation, rel=0.1)
    assert abs(float(noise.mean())) < 0.2 * deviation


def test_an_interrupted_run_ends_with_the_same_bits(federation: ft.Federation, tmp_path: Path) -> None:
    def run(folder: str, stop: int | None = None) -> None:
        ft.run(
            [ft.fedavg()],
            federation,
            ft.models.logistic,
            out=tmp_path / folder,
            privacy=PRIVACY,
            callbacks=[stop_after(stop)],
            **TRAIN,
        )

    run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("stopped", stop=3)
    run("stopped")
    whole, stopped = (RunFolder(tmp_path / name / "seed-0").latest() for name in ("whole", "stopped"))
    assert torch.equal(whole.server["fedavg"].parameters, stopped.server["fedavg"].parameters)  # type: ignore[union-attr]


def test_a_run_cannot_go_on_with_other_noise(federation: ft.Federation, tmp_path: Path) -> None:
    """Noise that was chosen for six rounds is too little for ten."""
    arguments = {"out": tmp_path, "privacy": ft.Privacy(clip=1.0, epsilon=10, delta=1e-5)}
    train = TRAIN | {"participation": 1.0}  # with sampled clients, choosing the noise takes seconds
    ft.run([ft.fedavg()], federation, ft.models.logistic, **arguments, **train)
    with pytest.raises(ft.InputError, match=r"was started with train.privacy.noise = \S+, and now it is"):
        ft.run([ft.fedavg()], federation, ft.models.logistic, **arguments, **train | {"rounds": 10})


def test_secret_noise_differs_from_run_to_run(federation: ft.Federation) -> None:
    privacy = dataclasses.replace(PRIVACY, randomness="secret")
    parameters = [
        [*ft.simulate([ft.fedavg()], federation, ft.models.logistic, privacy=privacy, **TRAIN)][-1].state.server[
            "fedavg"
        ]
        for _ in range(2)
    ]
    assert not torch.equal(parameters[0].parameters, parameters[1].parameters)


def test_the_privacy_table_of_a_spec(tmp_path: Path) -> None:
    overrides = ["privacy.clip=1", "privacy.epsilon=20", "privacy.delta=1e-5", "train.rounds=2"]
    overrides += ["train.participation=1"]  # with sampled clients, choosing the noise takes seconds
    spec = load("digits", methods=["fedavg"], overrides=overrides)
    assert spec.privacy == ft.Privacy(clip=1.0, epsilon=20.0, delta=1e-5)
    (tmp_path / "spec.toml").write_text(dump(spec))
    assert load(tmp_path / "spec.toml") == spec
    run_spec(spec, tmp_path / "run")
    last = read_json(tmp_path / "run/results.json")["methods"]["fedavg"]["last"][0]
    assert 19.9 < last["privacy"]["epsilon"] <= 20
    assert load("digits").privacy is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["privacy.clip=1"], "privacy needs epsilon or noise, such as epsilon = 8"),
        (["privacy.epsilon=8", "privacy.delta=1e-5"], "privacy needs clip"),
        (["privacy.clip=-1"], "privacy.clip"),
        (["privacy.epsilom=8"], "privacy.epsilom"),
        (
            ["privacy.clip=1", "privacy.epsilon=8", "privacy.delta=1e-5", "methods.fedavg.weighting=samples"],
            "privacy: weighting = 'samples' of method 'fedavg' counts private samples; use 'equal'",
        ),
    ],
)
def test_a_wrong_privacy_table_is_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ft.InputError) as error:
        load("digits", methods=["fedavg"], overrides=overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_without_the_library_the_error_says_what_to_install(
    federation: ft.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(
        ft.InputError, match=r'^privacy needs dp-accounting, which is not installed; pip install "dp-accounting[^" ]+"$'
    ):
        ft.run([ft.fedavg()], federation, ft.models.logistic, privacy=ft.Privacy(clip=1, epsilon=8, delta=1e-5))


# -- membership inference --------------------------------------------------------------------------------------------


def _attack_success(epsilons: list[float | None], runs: int) -> list[float]:
    """How often an attacker tells a federation with the target from one in which it is replaced: 0.5 is guessing.

    The target's labels are shifted by one, so that a shared model trained with it has a lower loss on its data. The
    attacker knows the data and sees the shared model at the end. The result is the area under the ROC curve.
    """
    replaced = ft.Federation.build(ft.data.load("digits"), clients=8, partition="iid", max_train=40)
    rows, labels = replaced.train_index[0], replaced.dataset.y_train.clone()
    labels[rows] = (labels[rows] + 1) % 10
    world = dataclasses.replace(replaced, dataset=dataclasses.replace(replaced.dataset, y_train=labels))
    x, y = world.clean_train(0)

    def score(federation: ft.Federation, seed: int, epsilon: float | None) -> float:
        privacy = None if epsilon is None else ft.Privacy(clip=2.0, epsilon=epsilon, delta=1e-5)
        *_, last = ft.simulate(
            [ft.fedavg()], federation, ft.models.logistic, rounds=4, participation=1.0, epochs=2, lr=0.2, seed=seed,
            workers=0, eval_every=4, privacy=privacy,
        )  # fmt: skip
        with torch.no_grad():
            return -float(nn.functional.cross_entropy(last.model("fedavg")(x), y))

    success = []
    for epsilon in epsilons:
        with_target = torch.tensor([score(world, seed, epsilon) for seed in range(runs)])
        without = torch.tensor([score(replaced, runs + seed, epsilon) for seed in range(runs)])
        success.append(float((with_target[:, None] > without).double().mean()))
    return success


def test_membership_inference_fails_as_epsilon_falls() -> None:
    without_privacy, with_privacy = _attack_success([None, 1.0], runs=10)
    assert without_privacy == 1.0
    assert with_privacy < 0.75


@pytest.mark.slow
def test_membership_inference_fails_as_epsilon_falls_in_many_runs() -> None:
    epsilons, runs = [100.0, 30.0, 10.0, 3.0, 1.0], 40
    success = _attack_success([None, *epsilons], runs)
    print(dict(zip(["none", *epsilons], success, strict=True)))  # the figures of docs/privacy.md
    assert success[0] == 1.0
    assert all(a >= b for a, b in itertools.pairwise(success)), success
    for epsilon, area in zip(epsilons, success[1:], strict=True):
        # no attack on a Gaussian mechanism is better than that on one pair of normal distributions
        most = ndtr(1 / dp_accounting.get_sigma_gaussian(epsilon, 1e-5) / 2**0.5)
        assert area <= most + 3 * 0.065, (epsilon, area, most)  # its standard error with 40 runs in each world


def test_one_mechanism_serves_all_methods(federation: ft.Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg and Ditto have the same shared model, with privacy too: methods are compared under the same noise."""
    rounds: list[int] = []
    aggregate = GaussianMechanism.aggregate
    monkeypatch.setattr(
        GaussianMechanism, "aggregate", lambda self, *args: (rounds.append(self.round), aggregate(self, *args))[1]
    )
    for last in ft.simulate([ft.fedavg(), ft.ditto(0.1)], federation, ft.models.logistic, privacy=PRIVACY, **TRAIN):
        server = last.state.server
        assert torch.equal(server["fedavg"].parameters, server["ditto"].parameters)
    assert rounds == [number for number in range(1, 7) for _ in range(2)]


@pytest.mark.parametrize("randomness", ["secret", "seed"])
def test_a_repeated_round_with_secret_noise_is_another_model(
    federation: ft.Federation, tmp_path: Path, randomness: str
) -> None:
    """The noise of a seed is the same again, and so is the model."""
    privacy = dataclasses.replace(PRIVACY, randomness=randomness)
    keywords = TRAIN | {"rounds": 4, "eval_every": 1, "checkpoint_seconds": 0.0, "privacy": privacy, "out": tmp_path}

    def run() -> ft.Result:
        return ft.run([ft.fedavg()], federation, ft.models.logistic, **keywords)

    def damage() -> None:
        (tmp_path / "seed-0/checkpoints/round-00004/server.safetensors").write_bytes(b"")
        (tmp_path / "results.json").unlink(missing_ok=True)

    first = run()["fedavg"]
    damage()
    again = run()["fedavg"]
    made = GaussianMechanism.of(train_settings({**TRAIN, "privacy": privacy}), 10, Parts.plain(torch.zeros(1)))
    assert made is not None
    repeated = randomness == "secret"
    epsilons = [made.loss(n).epsilon for n in (1, 2, 3, 4 + repeated)]
    assert spent(again.history) == pytest.approx(epsilons)
    a, b = (torch.cat([p.flatten() for p in result.shared.parameters()]) for result in (first, again))
    assert torch.equal(a, b) != repeated
    if repeated:
        assert read_json(tmp_path / "seed-0/privacy.json") == {"releases": 5}
        damage()
        (tmp_path / "seed-0/privacy.json").unlink()
        with pytest.raises(ft.InputError, match=r"privacy\.json is missing"):
            run()


def test_repeated_rounds_with_secret_noise_end_at_the_budget(federation: ft.Federation, tmp_path: Path) -> None:
    settings = TRAIN | {"rounds": 4, "eval_every": 1, "checkpoint_seconds": 0.0}
    made = GaussianMechanism.of(train_settings({**TRAIN, "privacy": PRIVACY}), 10, Parts.plain(torch.zeros(1)))
    assert made is not None
    privacy = dataclasses.replace(PRIVACY, randomness="secret", epsilon=made.loss(4).epsilon + 1e-9)
    calls = Calls()
    keywords = settings | {"out": tmp_path, "privacy": privacy, "callbacks": [calls]}
    ft.run([ft.fedavg()], federation, ft.models.logistic, **keywords)
    (tmp_path / "seed-0/checkpoints/round-00004/server.safetensors").write_bytes(b"")
    result = ft.run([ft.fedavg()], federation, ft.models.logistic, **keywords)["fedavg"]
    assert [round for round, _ in result.history] == [1, 2, 3]  # the fifth model would exceed the budget
    assert any("lasts for 3 of 4 rounds" in text for text in calls.notices)


def test_a_round_that_diverges_releases_no_model(federation: ft.Federation, tmp_path: Path) -> None:
    privacy = dataclasses.replace(PRIVACY, randomness="secret")
    with pytest.raises(ft.errors.Diverged, match="diverged in round 1 on client"):
        ft.run([ft.fedavg()], federation, ft.models.mlp, out=tmp_path, **TRAIN | {"lr": 1e30, "privacy": privacy})
    assert not (tmp_path / "seed-0/privacy.json").exists()
