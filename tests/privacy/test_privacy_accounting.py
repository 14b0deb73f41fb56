"""Epsilon: against the library called directly, and against an attack on the mechanism itself."""

import math

import dp_accounting as dp
import pytest
import torch
from scipy.special import ndtr

import fedtilt as ft
from fedtilt.engine.settings import TrainSettings
from fedtilt.parts import Parts
from fedtilt.privacy.accounting import epsilon, ratio_for
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism


def library(noise: float, rounds: int, delta: float, population: int, selected: int) -> float:
    """Rényi accountant with its own orders; noise is relative to clip / selected, and replacing moves 2 · clip."""
    event = dp.SampledWithoutReplacementDpEvent(population, selected, dp.GaussianDpEvent(noise / 2))
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def mechanism(clients: int, participation: float, **privacy: float) -> GaussianMechanism:
    settings = TrainSettings(
        rounds=50, participation=participation, privacy=ft.Privacy(clip=1.0, delta=1e-5, **privacy)  # type: ignore[arg-type]
    )  # fmt: skip
    made = GaussianMechanism.of(settings, clients, Parts.plain(torch.zeros(2)))
    assert made is not None
    return made


@pytest.mark.parametrize(("noise", "selected", "rounds"), [(2.0, 10, 50), (1.0, 1, 7)])
def test_epsilon_of_sampled_rounds_is_that_of_the_library(noise: float, selected: int, rounds: int) -> None:
    made = mechanism(100, selected / 100, noise=noise)
    # another client knows whether it takes part itself: the others are drawn from 99
    assert made.loss(rounds).epsilon == pytest.approx(library(noise, rounds, 1e-5, 99, selected), rel=1e-9)
    assert made.loss(rounds)[1:] == (1e-5, noise)


def test_epsilon_of_full_rounds_is_exact() -> None:
    made = mechanism(20, 1.0, noise=40.0)
    mu = math.sqrt(30) / 20  # thirty rounds are one of this mean difference, in deviations
    spent = made.loss(30).epsilon
    assert ndtr(mu / 2 - spent / mu) - math.exp(spent) * ndtr(-mu / 2 - spent / mu) == pytest.approx(1e-5, rel=1e-6)
    accountant = dp.pld.PLDAccountant().compose(dp.GaussianDpEvent(20.0), 30)
    assert spent == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_epsilon_takes_the_smaller_of_two_bounds() -> None:
    """Where most clients are drawn, the bound for sampling is above that of all clients."""
    half = epsilon(5.0, 50, 1e-5, population=100, selected=50)
    assert half == epsilon(5.0, 50, 1e-5, population=50, selected=50) < library(10.0, 50, 1e-5, 100, 50)


def test_two_clients_know_about_each_other_who_takes_part() -> None:
    assert mechanism(2, 0.5, noise=4.0).loss(10) == mechanism(1, 1.0, noise=4.0).loss(10)


def test_clients_that_keep_a_part_of_the_model_are_not_amplified() -> None:
    settings = TrainSettings(rounds=5, participation=0.1, privacy=ft.Privacy(clip=1.0, delta=1e-5, noise=2.0))
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    losses = [
        GaussianMechanism.of(settings, 100, Parts.of(model, (4,), **kept)).loss(5).epsilon  # type: ignore[union-attr,arg-type]
        for kept in ({"buffers": "frozen"}, {"buffers": "local"}, {"buffers": "frozen", "local": ("2.*",)})
    ]
    exact = dp.get_epsilon_gaussian(1 / math.sqrt(5), 1e-5)
    assert losses[0] < losses[1] == losses[2] == pytest.approx(exact)


@pytest.mark.parametrize(("selected", "target"), [pytest.param(10, 8.0, marks=pytest.mark.slow), (100, 2.0)])
def test_the_noise_for_a_budget_lasts_for_all_rounds_and_not_much_longer(selected: int, target: float) -> None:
    made = mechanism(100, selected / 100, epsilon=target)
    assert 0.995 * target < made.loss(50).epsilon <= target
    assert made.last_round(50) == 50
    assert float(f"{made.noise / 2:.4g}") == made.noise / 2  # four digits: the same on every machine
    less = epsilon(0.999 * made.noise / 2, 50, 1e-5, population=made.population, selected=selected)
    assert less > target
    assert ratio_for(target, 50, 1e-5, population=made.population, selected=selected) == made.noise / 2


def test_the_budget_ends_a_run_and_counts_repeated_rounds() -> None:
    made = mechanism(100, 0.1, noise=4.0, epsilon=2.0)
    last = made.last_round(50)
    assert 5 < last < 50
    assert made.loss(last).epsilon <= 2.0 < made.loss(last + 1).epsilon
    assert made.last_round(50, done=3, releases=5) == last - 2
    assert made.last_round(50, done=3, releases=last + 4) == 3
    with pytest.raises(ft.InputError, match=r"one round with noise = 0.1 has epsilon = \S+, more than the budget 1;"):
        mechanism(100, 1.0, noise=0.1, epsilon=1.0).last_round(50)


@pytest.mark.parametrize(("clients", "participation", "noise"), [(1, 1.0, 2.0), (8, 0.25, 1.5)])
def test_an_attack_on_the_mechanism_stays_below_epsilon(clients: int, participation: float, noise: float) -> None:
    """The strongest attack: all other updates are 0, the target's is +clip in one world and −clip in the other."""
    delta, rounds = 0.01, 1500
    settings = TrainSettings(
        participation=participation, rounds=rounds, privacy=ft.Privacy(clip=1.0, noise=noise, delta=delta)
    )
    made = GaussianMechanism.of(settings, clients, Parts.plain(torch.zeros(1)))
    assert made is not None
    received, outputs = torch.zeros(1), {}
    for world, update in (("in", 1.0), ("out", -1.0)):
        values = []
        for round in range(rounds):
            number = round if world == "in" else rounds + round  # the worlds are independent
            models = {0: received + update} if 0 in settings.selected(number, clients) else {}
            values.append(made.for_round(number).aggregate(ft.fedavg(), received, models))
        outputs[world] = torch.cat(values)
    spent = made.loss(1).epsilon
    thresholds = torch.linspace(-2, 2, 41) * noise / made.selected
    true, false = ((outputs[world][:, None] > thresholds).double().mean(0) for world in ("in", "out"))
    error = ((true * (1 - true) + math.exp(2 * spent) * false * (1 - false)) / rounds).sqrt()
    assert (true <= math.exp(spent) * false + delta + 4 * error).all()
    if clients == 1:  # the bound is tight: the attack does what it allows
        assert (true - math.exp(spent) * false).max() > 0.5 * delta - 4 * error.min()
        assert float((true - false).max()) == pytest.approx(2 * ndtr(1 / noise) - 1, abs=0.05)
