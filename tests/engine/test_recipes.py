"""Optimisers, schedules, clipping, local steps and losses agree with loops written with torch.optim."""

import itertools
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, SequentialLR, StepLR

import fedtilt as ft
from fedtilt.engine.settings import TrainSettings
from fedtilt.models import parameters_to_vector
from tests.helpers import plain_loop
from tests.helpers.plain_loop import last_round

small = partial(ft.models.mlp, hidden=(12,))
ONE = plain_loop.federation(clients=1)


def agrees(round_: ft.Round, net: nn.Module, method: str = "fedavg") -> None:
    torch.testing.assert_close(round_.state.shared[method], parameters_to_vector(net), rtol=2e-5, atol=2e-6)


def loop_of_one_client(
    make_optimizer: Callable, *, rounds: int, epochs: int = 2, rates: list[float] | None = None, lr: float = 0.02,
    **settings: object,
) -> nn.Module:  # fmt: skip
    net = plain_loop.initial(ONE, small)
    for number in range(1, rounds + 1):
        rate = lr if rates is None else rates[number - 1]
        data = plain_loop.batches(ONE, 0, number, epochs)
        plain_loop.train(net, data, lambda parameters, rate=rate: make_optimizer(parameters, lr=rate), **settings)
    return net


@pytest.mark.parametrize(
    ("settings", "make_optimizer"),
    [
        ({}, SGD),
        ({"momentum": 0.9}, partial(SGD, momentum=0.9)),
        ({"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}}, partial(SGD, momentum=0.9, nesterov=True)),
        ({"weight_decay": 0.1}, partial(SGD, weight_decay=0.1)),
        ({"momentum": 0.5, "weight_decay": 0.1}, partial(SGD, momentum=0.5, weight_decay=0.1)),
        ({"optimizer": "adam", "lr": 0.002}, Adam),
        ({"optimizer": "adam", "weight_decay": 0.1, "lr": 0.002}, partial(Adam, weight_decay=0.1)),
        ({"optimizer": "adamw", "weight_decay": 0.1, "lr": 0.002}, partial(AdamW, weight_decay=0.1)),
        ({"optimizer": "adamw", "lr": 0.002}, partial(AdamW, weight_decay=0.0)),
    ],
    ids=str,
)
def test_every_optimiser_is_that_of_torch_and_new_in_every_round(settings: dict, make_optimizer: Callable) -> None:
    settings = {"lr": 0.02} | settings
    last = last_round([ft.fedavg()], ONE, small, rounds=3, epochs=2, **settings)
    agrees(last, loop_of_one_client(make_optimizer, rounds=3, lr=settings["lr"]))


def scheduled_rates(make_schedule: Callable, rounds: int, lr: float = 0.02) -> list[float]:
    """The learning rate of every round, by a schedule of torch."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    schedule, rates = make_schedule(optimizer), []
    for _ in range(rounds):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def after_warmup(make_schedule: Callable, warmup: int) -> Callable:
    def make(optimizer: torch.optim.Optimizer) -> SequentialLR:
        rising = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        return SequentialLR(optimizer, [rising, make_schedule(optimizer)], milestones=[warmup])

    return make


SCHEDULES = {
    "constant": ({"schedule": {"name": "constant"}}, lambda o: StepLR(o, step_size=1000)),
    "cosine": ({"schedule": {"name": "cosine"}}, lambda o: CosineAnnealingLR(o, T_max=6)),
    "step": ({"schedule": {"name": "step", "decay": 0.5, "every": 2}}, lambda o: StepLR(o, step_size=2, gamma=0.5)),
    "exponential": ({"schedule": {"name": "exponential", "decay": 0.8}}, lambda o: ExponentialLR(o, gamma=0.8)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 2])
def test_every_schedule_is_that_of_torch(name: str, warmup: int) -> None:
    settings, make_schedule = SCHEDULES[name]
    rates = scheduled_rates(after_warmup(make_schedule, warmup) if warmup else make_schedule, rounds=6 + warmup)
    recipe = {"momentum": 0.9, "rounds": 6 + warmup, "epochs": 1, "lr": 0.02}
    schedule = settings["schedule"] | {"warmup_rounds": warmup}
    last = last_round([ft.fedavg()], ONE, small, **recipe, schedule=schedule)
    agrees(last, loop_of_one_client(partial(SGD, momentum=0.9), rounds=6 + warmup, epochs=1, rates=rates))


def test_gradients_are_clipped_with_their_proximal_term() -> None:
    """The gradient of the whole objective is clipped, as in a loop whose loss has the proximal term."""
    norm, mu = 0.3, 0.5
    last = last_round(
        [ft.fedprox(mu)],
        ONE,
        small,
        rounds=2,
        epochs=2,
        lr=0.2,
        optimizer=ft.optimizers.SGD(clip_norm=norm, momentum=0.9),
    )
    net = plain_loop.initial(ONE, small)
    for number in (1, 2):
        anchor = [p.detach().clone() for p in net.parameters()]
        plain_loop.train(
            net, plain_loop.batches(ONE, 0, number, 2), partial(SGD, lr=0.2, momentum=0.9), clip_norm=norm, prox=mu,
            anchor=anchor,
        )  # fmt: skip
    agrees(last, net, "fedprox")
    unclipped = last_round([ft.fedprox(mu)], ONE, small, rounds=2, epochs=2, lr=0.2, momentum=0.9)
    assert (unclipped.state.shared["fedprox"] - last.state.shared["fedprox"]).abs().max() > 1e-3


def test_personal_models_have_the_same_optimiser_and_schedule() -> None:
    mu, rates = 0.3, scheduled_rates(lambda o: ExponentialLR(o, gamma=0.5), rounds=2, lr=0.01)
    last = last_round(
        [ft.ditto(mu, lr_personal=0.01)], ONE, small, rounds=2, epochs=1, lr=0.002, optimizer="adam",
        schedule=ft.schedules.Exponential(decay=0.5),
    )  # fmt: skip
    w, v = plain_loop.initial(ONE, small), plain_loop.initial(ONE, small)
    for number in (1, 2):
        anchor = [p.detach().clone() for p in w.parameters()]
        personal = partial(Adam, lr=rates[number - 1])
        plain_loop.train(v, plain_loop.batches(ONE, 0, number, 1), personal, prox=mu, anchor=anchor)
        plain_loop.train(w, plain_loop.batches(ONE, 0, number, 1), partial(Adam, lr=0.002 * 0.5 ** (number - 1)))
    agrees(last, w, "ditto")
    kept = last.state.client_states.get(("ditto", 0))
    torch.testing.assert_close(kept.personal, parameters_to_vector(v), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("steps", [3, 4, 10])  # an epoch has four
@pytest.mark.parametrize("backend", ["autograd", "auto"])
def test_local_steps_count_batches_over_epochs(steps: int, backend: str) -> None:
    last = last_round([ft.ditto(0.0)], ONE, small, rounds=2, local_steps=steps, lr=0.05, backend=backend)
    net = plain_loop.initial(ONE, small)
    for number in (1, 2):
        data = itertools.islice(plain_loop.batches(ONE, 0, number, epochs=3), steps)
        plain_loop.train(net, data, partial(SGD, lr=0.05))
    agrees(last, net, "ditto")
    assert torch.equal(last.state.client_states.get(("ditto", 0)).personal, last.state.shared["ditto"])


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    return -((1 - p) ** 1.5) * p.log()


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.softmax(1) - F.one_hot(labels, 10)).square().sum(1)


def gce(logits: Tensor, labels: Tensor) -> Tensor:
    """Zhang et al., arXiv 1805.07836, equation 6: (1 − p^q) / q."""
    return (1 - logits.softmax(1).gather(1, labels[:, None])[:, 0] ** 0.4) / 0.4


def sce(logits: Tensor, labels: Tensor) -> Tensor:
    """Wang et al., arXiv 1908.06112, equations 5 to 7: −Σ_k p_k · log q_k with log 0 = −4 for the reverse part."""
    one_hot = F.one_hot(labels, 10).float()
    reverse = -(logits.softmax(1) * torch.where(one_hot > 0, 0.0, -4.0)).sum(1)
    return 0.3 * F.cross_entropy(logits, labels, reduction="none") + 2.0 * reverse


WEIGHTS = [1.0, 2.0, 0.5, 1.0, 1.0, 3.0, 1.0, 1.0, 0.1, 1.0]


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({"label_smoothing": 0.2}, partial(F.cross_entropy, reduction="none", label_smoothing=0.2)),
        ({"loss": {"name": "focal", "gamma": 1.5}}, focal),
        (
            {"loss": {"name": "cross_entropy", "class_weights": WEIGHTS}},
            partial(F.cross_entropy, reduction="none", weight=torch.tensor(WEIGHTS)),
        ),
        (
            {"loss": ft.losses.Focal(gamma=1.5, class_weights=tuple(WEIGHTS))},
            lambda o, y: focal(o, y) * torch.tensor(WEIGHTS)[y],
        ),
        ({"loss": {"name": "gce", "exponent": 0.4}}, gce),
        ({"loss": ft.losses.SCE(alpha=0.3, beta=2.0)}, sce),
        ({"loss": brier}, brier),
        ({"loss": "tests.engine.test_recipes:brier"}, brier),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, partial(F.cross_entropy, reduction="none")),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)) if isinstance(value, dict) else "",
)
def test_tilts_act_on_every_loss(settings: dict, loss: Callable) -> None:
    tau, lam = 3.0, -2.0
    method = ft.fedtilt(tau, lam, mu=0.1)
    last = last_round([method], ONE, small, rounds=2, epochs=2, lr=0.05, momentum=0.5, **settings)

    def tilted(logits: Tensor, labels: Tensor) -> Tensor:
        losses = loss(logits, labels)
        by_class = [(losses[labels == k], (labels == k).float().mean()) for k in labels.unique()]
        inner = torch.stack([(lam * values).exp().mean().log() / lam for values, _ in by_class])
        return (torch.stack([share for _, share in by_class]) * (tau * inner).exp()).sum().log() / tau

    agrees(last, loop_of_one_client(partial(SGD, momentum=0.5), rounds=2, lr=0.05, loss=tilted), "fedtilt")


def test_focal_loss_of_a_certain_prediction_has_a_finite_gradient() -> None:
    logits = torch.tensor([[200.0, 0.0], [0.0, 0.1]], requires_grad=True)
    for gamma in (0.0, 0.5, 2.0):
        loss = TrainSettings(loss=ft.losses.Focal(gamma=gamma)).sample_loss
        (grad,) = torch.autograd.grad(loss(logits, torch.tensor([0, 0])).sum(), logits)
        assert grad.isfinite().all()
        assert grad[0].tolist() == [0.0, 0.0]
        assert grad[1, 0] < 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 3, "local_steps": 5}, "epochs = 3 has no effect here; leave out local_steps or epochs"),
        ({"optimizer": "rmsprop"}, "unknown optimizer 'rmsprop'; choose one of sgd, adam, adamw"),
        ({"schedule": "linear"}, "unknown schedule 'linear'; choose one of constant, cosine, exponential, step"),
        (
            {"server_optimizer": "sgdm"},
            "unknown optimizer 'sgdm' of the server; choose one of sgd, adam, yogi, adagrad",
        ),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9 has no effect with 'adam'; leave it out"),
        ({"optimizer": {"name": "sgd", "nesterov": True}}, "nesterov = True has no effect without momentum"),
        (
            {"momentum": 0.5, "optimizer": {"name": "sgd", "momentum": 0.9}},
            "momentum = 0.5 is given twice: beside SGD(",
        ),
        ({"optimizer": {"name": "adam", "momentum": 0.9}}, "momentum = 0.9 of optimizer is not a setting of 'adam'"),
        ({"optimizer": {"momentum": 0.9}}, "optimizer needs name; choose one of sgd, adam, adamw"),
        (
            {"optimizer": 3},
            "optimizer must be a name, a table or an object, or one of torch.optim, such as RMSprop, got 3",
        ),
        ({"nesterov": True}, 'nesterov is not a training setting; write optimizer = { name = "sgd", nesterov = … }'),
        ({"momentum": 1.0}, "momentum must be a number ≥ 0 and < 1, got 1.0"),
        ({"optimizer": {"name": "adam", "clip_norm": 0.0}}, "clip_norm must be a number > 0, got 0.0"),
        ({"decay": 0.5}, 'write schedule = { name = "exponential", decay = … }'),
        ({"schedule": "exponential"}, "schedule = 'exponential' needs decay"),
        ({"schedule": {"name": "step", "decay": 0.5}}, "schedule = 'step' needs every"),
        (
            {"rounds": 3, "schedule": {"name": "cosine", "warmup_rounds": 3}},
            "warmup_rounds = 3 is not less than rounds = 3; choose fewer",
        ),
        ({"loss": "focal", "label_smoothing": 0.1}, "label_smoothing = 0.1 has no effect with 'focal'"),
        (
            {"loss": "hinge"},
            "unknown loss 'hinge'; choose one of cross_entropy, focal, gce, sce, squared, huber, token_cross_entropy, "
            "label_cross_entropy, or a function",
        ),
        ({"precision": "bfloat16", "device": "cpu"}, "precision = 'bfloat16' is for CUDA, not for cpu; leave it out"),
    ],
    ids=str,
)
def test_settings_without_effect_and_unknown_words_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ft.InputError) as error:
        last_round([ft.fedavg()], ONE, small, **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_epochs_of_a_method_are_refused_with_local_steps() -> None:
    with pytest.raises(ft.InputError, match="epochs of the personal model = 3 of method 'ditto' has no effect with"):
        last_round([ft.ditto(epochs_personal=3)], ONE, small, local_steps=5)


def test_the_bound_on_lr_and_mu_is_for_plain_sgd() -> None:
    with pytest.raises(ft.InputError, match=r"lr · mu must be < 2, got 5"):
        last_round([ft.ditto(50)], ONE, small, rounds=1, lr=0.1)
    last_round([ft.ditto(50)], ONE, small, rounds=1, epochs=1, lr=0.1, optimizer="adam")
