"""Augmentation: what a transform draws depends on (seed, round, client, epoch, batch) alone."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt import seeds
from fedtilt.storage.run_folder import RunFolder
from fedtilt.training import BACKENDS, LocalJob, make_batches, native

FEDERATION = ft.Federation.build(ft.data.load("digits"), clients=5, max_train=24, seed=3)
METHODS = [ft.fedavg(), ft.fedtilt(tau=1, lam=-1, mu=0.1)]
SETTINGS = {"rounds": 3, "participation": 0.6, "epochs": 2, "batch_size": 8, "lr": 0.1, "eval_every": 3}


def noise(x: Tensor) -> Tensor:
    """Noise of torch's global generator, in place: batches are copies."""
    return x.add_(torch.randn(x.shape, device=x.device), alpha=0.3)


class Shift(torch.nn.Module):
    """A module with a draw of its own for the whole batch, as torchvision's are."""

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(int(torch.randint(-1, 2, ())), dims=-1)


def mlp(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return ft.models.mlp(input_shape, classes, hidden=(6,))


def models(**settings: object) -> dict[str, Tensor]:
    *_, last = ft.simulate(METHODS, FEDERATION, mlp, **(SETTINGS | {"workers": 0} | settings))
    kept = {f"{m.name} shared": last.state.server[m.name].parameters for m in METHODS}
    owners = last.state.client_states.owners()
    return kept | {
        f"{m} {n} {k}": t for m, n in owners for k, t in last.state.client_states.get((m, n)).to_tensors().items()
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one | other)


def test_the_identity_is_no_transform() -> None:
    assert same(models(), models(transform=lambda x: x))


@pytest.mark.parametrize("transform", [noise, Shift()], ids=["noise", "module"])
def test_workers_and_a_resumed_run_draw_the_same(transform: object, tmp_path: Path) -> None:
    whole = models(transform=transform)
    assert not same(whole, models())
    torch.manual_seed(5)  # the global generators do not matter
    assert same(whole, models(transform=transform, workers=2))
    folder = tmp_path / "run"
    run = {**SETTINGS, "transform": transform, "checkpoint_seconds": 0, "workers": 0}
    ft.run(METHODS, FEDERATION, mlp, out=folder, **(run | {"rounds": 2}))
    ft.run(METHODS, FEDERATION, mlp, out=folder, **run)
    state = RunFolder(folder / "seed-0").latest()
    assert state is not None
    assert torch.equal(state.server["fedtilt"].parameters, whole["fedtilt shared"])


def test_another_function_of_the_same_name_is_rejected(tmp_path: Path) -> None:
    def run(shift: int) -> None:
        settings = SETTINGS | {"transform": lambda x: x.roll(shift, -1), "workers": 0}
        ft.run([ft.fedavg()], FEDERATION, mlp, out=tmp_path / "run", **settings)

    run(1)
    run(1)
    with pytest.raises(ft.InputError, match="was started with another transform; restore its code, or start"):
        run(2)


@pytest.mark.parametrize("backend", ["native", "fused", "stacked"])
def test_every_backend_trains_on_the_transformed_batches(backend: str) -> None:
    if backend == "native" and not native.available():
        pytest.skip("no C compiler")
    reference = models(transform=noise, backend="autograd")
    for name, values in models(transform=noise, backend=backend).items():
        torch.testing.assert_close(values, reference[name], rtol=1e-4, atol=1e-5)


def test_the_width_of_a_stack_does_not_matter() -> None:
    """Up to rounding, as without a transform."""
    whole = models(transform=noise, backend="stacked")
    for name, values in models(transform=noise, backend="stacked", stack_size=1).items():
        torch.testing.assert_close(values, whole[name], rtol=1e-4, atol=1e-5)


def test_a_batch_is_transformed_with_its_own_key() -> None:
    """Against a plain loop: the key is of the seed, the round, the client, the epoch and the batch."""
    x, y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 2
    made = {"seed": 7, "round": 2, "client": 3, "epochs": 2, "batch_size": 5}
    plain, augmented = make_batches(x, y, **made), make_batches(x, y, **made, transform=noise)
    key = seeds.key(7, "transform", round=2, client=3)
    for number, ((before, _), (after, _)) in enumerate(zip(plain.all(), augmented.all(), strict=True)):
        epoch, batch = divmod(number, 3)
        with seeds.seeded_global_rng(seeds.key(key, "batch", round=epoch, client=batch)):
            assert torch.equal(after, before + 0.3 * torch.randn(before.shape))
    assert torch.equal(x, torch.arange(24.0).reshape(12, 2))
    # the loss of the received model is of the samples as they are
    theta = torch.zeros(6)
    job = LocalJob(start=theta, anchor=theta, prox=0, tau=0, lam=0, lr=0.1, measures_loss=True)
    losses = [BACKENDS["fused"](torch.nn.Linear(2, 2), [job], [b])[0].loss for b in (plain, augmented)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            lambda x: x[:, :, 1:],
            r"torch.float32 of shape \(8, 1, 7, 8\) for inputs of torch.float32 and shape \(8, 1, 8",
        ),
        (lambda x: (x, None), "transform returned tuple for inputs; return a batch like"),
        (lambda x: x / 0, "values that are not finite"),
        (lambda x: x + random.random(), "draw its random numbers with torch"),
        ("flip", "transform = 'flip' is no function of a batch; name it as package.module:function"),
    ],
)
def test_what_is_no_transform_of_batches(transform: object, message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        models(transform=transform)
