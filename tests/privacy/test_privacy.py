"""Privacy: what is refused, the clip, the noise, and how far one client can move the aggregate."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedtilt as ft
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.math.aggregate import tilted
from fedtilt.methods.aggregators import Mean, Tilted
from fedtilt.methods.weightings import Equal
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism, sensitivity
from fedtilt.state import ServerState

SIZE = 200_000
PRIVACY = ft.Privacy(clip=2.0, noise=1.5, delta=1e-5)


def mechanism(clients: int = 5, parts: Parts | None = None, **changes: object) -> GaussianMechanism:
    train = TrainSettings(**{"privacy": PRIVACY, "participation": 1.0, "rounds": 10} | changes)  # type: ignore[arg-type]
    made = GaussianMechanism.of(train, clients, parts or Parts.plain(torch.zeros(3)))
    assert made is not None
    return made


def without_noise(made: GaussianMechanism) -> GaussianMechanism:
    return dataclasses.replace(made, noise=0.0)


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"epsilon": 8, "delta": 1e-5},
            "privacy needs clip, the largest norm of a client's update, such as clip = 1.0",
        ),
        ({"clip": 1, "delta": 1e-5}, "privacy needs epsilon or noise, such as epsilon = 8"),
        ({"clip": 1, "epsilon": 8}, "privacy needs delta, such as delta = 1e-5"),
        ({"clip": 0, "epsilon": 8, "delta": 1e-5}, "privacy: clip must be a number > 0, got 0"),
        ({"clip": 1, "epsilon": 8, "delta": 1}, "privacy: delta must be a number > 0 and < 1, got 1"),
        ({"clip": 1, "noise": -1, "delta": 1e-5}, "privacy: noise must be a number > 0, got -1"),
        ({"clip": 1, "noise": 1, "delta": 1e-5, "randomness": "dice"}, "unknown randomness 'dice'; choose one of"),
    ],
)
def test_settings_that_say_too_little_or_too_much(given: dict[str, object], message: str) -> None:
    with pytest.raises(ft.InputError) as error:
        ft.Privacy(**given)  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (
            ft.fedavg(weighting="samples"),
            "weighting = 'samples' of method 'fedavg' counts private samples; use 'equal'",
        ),
        (
            ft.fedavg(aggregator="median"),
            "aggregator = 'median' of method 'fedavg' has no known sensitivity; use 'mean'",
        ),
        (ft.fedavg(aggregator="krum"), "aggregator = 'krum' of method 'fedavg' has no known sensitivity"),
        (
            ft.fedavg(aggregator=Tilted(distance="l1")),
            "distance = 'l1' of method 'fedavg' has no known sensitivity; use 'squared_l2'",
        ),
        (ft.fedtilt(tau=1, lam=1, q=-1), "q = -1 of method 'fedtilt' has no known sensitivity; use 0 ≤ q < inf"),
        (ft.fedtilt(tau=1, lam=1, q=math.inf), "q = inf of method 'fedtilt' has no known sensitivity"),
        (
            ft.fedtilt(tau=1, lam=1, aggregator=Tilted(q=1, steps=(5, 0.1))),
            "steps = (5, 0.1) of method 'fedtilt' do not reach the optimum",
        ),
    ],
)
def test_rules_without_a_known_sensitivity_are_refused(method: ft.Method, reason: str) -> None:
    with pytest.raises(ft.InputError) as error:
        TrainSettings(privacy=PRIVACY).check_methods([method])
    assert str(error.value).startswith(f"privacy: {reason}")


def test_a_setting_of_a_method_that_privacy_does_not_know_is_refused() -> None:
    """A later setting of the server cannot slip through: it is refused until its sensitivity is known."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Newer(ft.Method):
        new_rule: float = 0.0

    PRIVACY.check_method(Newer(name="newer"))
    with pytest.raises(ft.InputError, match="privacy: new_rule = 1.0 of method 'newer' has no known sensitivity"):
        PRIVACY.check_method(Newer(name="newer", new_rule=1.0))


@pytest.mark.parametrize(
    "method",
    [
        ft.methods.scaffold(),
        ft.methods.feddyn(),
        ft.methods.fedper(),
        ft.fedavg(before=["clipping"]),
        ft.fedavg(client_momentum=0.5),
        ft.methods.qffl(),
        ft.methods.afl(),
        ft.methods.term_clients(),
        ft.methods.fedmgda(),
    ],
    ids=lambda m: m.name,
)
def test_parts_that_send_more_or_aggregate_otherwise_are_refused(method: ft.Method) -> None:
    with pytest.raises(ft.InputError, match=f"^privacy: .* of method '{method.name}' ") as error:
        PRIVACY.check_method(method)
    assert "\n" not in str(error.value)


def test_a_users_subclass_of_a_known_rule_is_refused() -> None:
    """It may do anything else, and the mechanism would not do it."""

    @dataclasses.dataclass(frozen=True)
    class Own(Mean):
        pass

    @dataclasses.dataclass(frozen=True)
    class OwnEqual(Equal):
        pass

    with pytest.raises(ft.InputError, match="aggregator = '.*Own' of method 'fedavg' has no known sensitivity"):
        PRIVACY.check_method(ft.fedavg(aggregator=Own()))
    with pytest.raises(ft.InputError, match="weighting = '.*OwnEqual' of method 'fedavg' counts private samples"):
        PRIVACY.check_method(ft.fedavg(weighting=OwnEqual()))


def test_means_and_tilted_means_are_allowed_with_any_work_of_the_clients() -> None:
    methods = [ft.fedavg(), ft.fedavg(name="mean", aggregator="mean"), ft.ditto(), ft.fedtilt(tau=5, lam=-2, q=0.1)]
    methods += [
        ft.methods.pfedme(),
        ft.methods.propfair(),
        ft.fedprox(),
        ft.fedavg(name="own optimizer", optimizer="adam"),
    ]
    assert TrainSettings(privacy=PRIVACY, server_optimizer="adam").check_methods(methods) == methods


def test_other_settings_that_are_not_covered() -> None:
    with pytest.raises(ft.InputError, match="screen = 3 has no known sensitivity; leave it out: privacy.clip bounds"):
        TrainSettings(privacy=PRIVACY, screen=3.0)
    with pytest.raises(ft.InputError, match="buffers = 'average' are not covered by privacy; choose 'local' or"):
        TrainSettings(privacy=PRIVACY, buffers="average")
    with pytest.raises(ft.InputError, match="privacy must be an ft.Privacy, got 8"):
        TrainSettings(privacy=8)  # type: ignore[arg-type]
    with pytest.raises(ft.InputError, match="delta = 0.01 with 100 clients would allow to publish one of them"):
        mechanism(100, privacy=ft.Privacy(clip=1, noise=1, delta=0.01))
    with pytest.raises(ValueError, match="need each other"):  # noise is never left out in silence
        server_update(ft.fedavg(), ServerState(torch.zeros(3)), {}, TrainSettings(privacy=PRIVACY))


# -- clip, noise, missing clients ------------------------------------------------------------------------------------


def test_updates_are_clipped_to_their_norm() -> None:
    received = torch.tensor([1.0, 2.0, 3.0])
    steps = [torch.tensor(step) for step in ([0.0, 0.0, 1.0], [0.0, 40.0, 0.0], [3.0, 4.0, 0.0])]
    models = {n: received + step for n, step in enumerate(steps)}
    aggregated = without_noise(mechanism(3)).aggregate(ft.fedavg(), received, models)
    expected = received + (steps[0] + steps[1] * 2 / 40 + steps[2] * 2 / 5) / 3
    torch.testing.assert_close(aggregated, expected)
    huge = {0: received + torch.tensor([3e38, 0.0, 0.0])}
    assert without_noise(mechanism(1)).aggregate(ft.fedavg(), received, huge).tolist() == [3.0, 2.0, 3.0]


@pytest.mark.parametrize("q", [0.0, 0.05])
def test_a_client_that_sends_nothing_counts_as_an_update_of_zero(q: float) -> None:
    received, method = torch.tensor([1.0, 2.0, 3.0]), ft.fedtilt(tau=0, lam=0, q=q)
    models = {n: received + torch.tensor([0.5 * n, 0.0, 1.0]) for n in (1, 3)}
    of_five = without_noise(mechanism(5))
    unchanged = {n: received.clone() for n in (0, 2, 4)}
    aggregated = of_five.aggregate(method, received, models)
    torch.testing.assert_close(aggregated, of_five.aggregate(method, received, models | unchanged))
    points = torch.stack([(models | unchanged)[n] for n in range(5)])
    torch.testing.assert_close(aggregated, tilted(points, q))
    assert torch.equal(of_five.aggregate(method, received, {}), received)


@pytest.mark.parametrize("randomness", ["seed", "secret"])
@pytest.mark.parametrize("q", [0.0, 0.05])
def test_the_noise_is_normal_with_the_stated_deviation(q: float, randomness: str) -> None:
    privacy = dataclasses.replace(PRIVACY, randomness=randomness)
    received = torch.full((SIZE,), 0.25)
    noise = mechanism(5, privacy=privacy).for_round(1).aggregate(ft.fedtilt(tau=0, lam=0, q=q), received, {}) - received
    deviation = 1.5 * sensitivity(q, 2.0, 5) / 2
    assert deviation == pytest.approx(1.5 * 2.0 / 5 if q == 0 else 1.5 * 2.0 / (1 + 4 * math.exp(-0.8)), rel=0.003)
    standard = (noise.double() / deviation).sort().values
    assert abs(standard.mean()) < 4 / math.sqrt(SIZE)
    assert abs(standard.std() - 1) < 4 / math.sqrt(2 * SIZE)
    cdf = torch.special.ndtr(standard)
    distance = (cdf - torch.arange(1, SIZE + 1) / SIZE).abs().max()  # Kolmogorov-Smirnov
    assert distance < 2 / math.sqrt(SIZE)


def test_noise_of_the_seed_is_new_in_every_round_and_secret_noise_in_every_call() -> None:
    def draw(made: GaussianMechanism, round: int) -> Tensor:
        return made.for_round(round).aggregate(ft.fedavg(), torch.zeros(1000), {})

    of_seed = mechanism()
    assert torch.equal(draw(of_seed, 1), draw(of_seed, 1))
    secret = mechanism(privacy=dataclasses.replace(PRIVACY, randomness="secret"))
    different = [draw(of_seed, 1), draw(of_seed, 2), draw(mechanism(seed=1), 1), draw(secret, 1), draw(secret, 1)]
    for i, a in enumerate(different):
        for b in different[:i]:
            assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.15


def test_secret_randomness_selects_secret_clients() -> None:
    train = TrainSettings(privacy=dataclasses.replace(PRIVACY, randomness="secret"), participation=0.5)
    draws = [train.selected(1, 40) for _ in range(20)]
    assert all(len(set(draw)) == 20 and draw == sorted(draw) for draw in draws)
    assert len({tuple(draw) for draw in draws}) == 20
    seeded = TrainSettings(privacy=PRIVACY, participation=0.5)
    assert seeded.selected(1, 40) == TrainSettings(participation=0.5).selected(1, 40)


def test_the_server_optimiser_works_on_the_noisy_aggregate() -> None:
    train = TrainSettings(privacy=PRIVACY, participation=1.0, server_optimizer={"rule": "sgd", "lr": 0.5})
    made, received = mechanism(3).for_round(4), torch.tensor([1.0, 2.0, 3.0])
    models = {n: received + torch.tensor([n, 0.0, 1.0]) for n in range(3)}
    updates = {n: ClientUpdate(model, 10 * n) for n, model in models.items()}
    state = server_update(ft.fedavg(), ServerState(received), updates, train, made).state
    step = made.aggregate(ft.fedavg(), received, models) - received
    torch.testing.assert_close(state.parameters, received + 0.5 * step)


# -- sensitivity -----------------------------------------------------------------------------------------------------


def _distance(q: float, clip: float, others: Tensor, one: Tensor, another: Tensor) -> float:
    """How far the aggregate moves if one client is replaced by another."""
    made = dataclasses.replace(mechanism(len(others) + 1), clip=clip, noise=0.0)
    zero = torch.zeros(others.shape[1], dtype=torch.float64)
    results = [
        made.aggregate(ft.fedtilt(tau=0, lam=0, q=q), zero, dict(enumerate([*others, last]))) for last in (one, another)
    ]
    return float((results[0] - results[1]).norm())


@settings(max_examples=40, deadline=None)
@given(
    q=st.sampled_from([0.0, 0.01, 0.1, 1.0, 10.0]), clip=st.sampled_from([0.1, 1.0, 3.0]),
    clients=st.integers(2, 8), size=st.integers(1, 4), seed=st.integers(0, 10_000), spread=st.sampled_from([0.1, 1, 9]),
)  # fmt: skip
def test_replacing_one_client_never_moves_the_aggregate_further_than_the_sensitivity(
    q: float, clip: float, clients: int, size: int, seed: int, spread: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = spread * clip * torch.randn(clients + 1, size, generator=generator, dtype=torch.float64)
    moved = _distance(q, clip, points[:-2], points[-2], points[-1])
    assert moved <= sensitivity(q, clip, clients) * (1 + 1e-9)


def test_the_sensitivity_of_the_mean_is_reached_and_that_of_a_tilt_is_close() -> None:
    far = torch.tensor([1.0, 0.0], dtype=torch.float64)
    others = torch.zeros(4, 2, dtype=torch.float64)
    assert _distance(0.0, 1.0, others, far, -far) == pytest.approx(sensitivity(0.0, 1.0, 5)) == pytest.approx(2 / 5)
    moved = max(_distance(0.1, 1.0, (0.2 * k - 1) * far.repeat(4, 1), far, -far) for k in range(11))
    assert 0.6 * sensitivity(0.1, 1.0, 5) < moved < sensitivity(0.1, 1.0, 5)


def test_an_aggregate_far_from_the_optimum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {0: torch.zeros(3), 1: torch.ones(3)}
    monkeypatch.setattr("fedtilt.privacy.gaussian_mechanism.tilted", lambda points, q: points.mean(0) + 0.1)
    with pytest.raises(ArithmeticError, match="from the optimum, which privacy does not cover"):
        mechanism(2).aggregate(ft.fedtilt(tau=0, lam=0, q=0.1), torch.zeros(3), models)


def test_balanced_class_weights_are_not_covered() -> None:
    loss = ft.losses.CrossEntropy(class_weights="balanced")
    with pytest.raises(
        ft.InputError, match="count the samples of all clients, which privacy does not cover; give them"
    ):
        TrainSettings(privacy=PRIVACY, loss=loss)
    TrainSettings(privacy=PRIVACY, loss=ft.losses.CrossEntropy(class_weights=(1.0, 2.0)))
