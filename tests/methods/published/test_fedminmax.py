"""FedMinMax: weights of groups over all clients."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.methods import fedminmax
from tests.methods.published.reference import FED, MODEL, RECIPE, STEPS, Reference, check, close, descend, shared


def projection(values: Tensor) -> Tensor:
    """Onto the simplex, by sorting."""
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1)
    last = int((ordered > excess).nonzero().max())
    return (values - excess[last]).clamp_min(0)


class FedMinMax(Reference):
    def __init__(self) -> None:
        super().__init__()
        self.mu, self.samples = torch.zeros(10).double(), torch.zeros(10).double()
        self.sent: dict[int, tuple[Tensor, Tensor]] = {}

    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        rho = self.samples / self.samples.sum()
        weights = torch.where(self.samples > 0, self.mu / rho, 1.0).float()
        before = F.cross_entropy(net(x), y, reduction="none").detach().double()
        counts = torch.bincount(y, minlength=10).double()
        self.sent[n] = counts, torch.bincount(y, weights=before, minlength=10)
        for _ in range(STEPS):
            losses = F.cross_entropy(net(x), y, reduction="none")
            groups = [weights[a] * losses[y == a].mean() * (y == a).sum() / len(y) for a in y.unique()]
            descend([*net.parameters()], sum(groups))
        return net

    def server(self, models: Tensor, clients: list[int], number: int) -> Tensor:
        sizes = torch.stack([self.sent[n][0] for n in clients])
        losses = torch.stack([self.sent[n][1] for n in clients]).sum(0)
        here = sizes.sum(0)
        is_new = self.samples == 0
        self.samples = self.samples + here
        self.mu = torch.where(is_new, self.samples / self.samples.sum(), self.mu)
        risks = torch.where(here > 0, losses / here, 0.0)
        self.mu = projection(self.mu + 0.05 * risks)
        share = sizes.sum(1) / sizes.sum()
        return (share[:, None] * models).sum(0).float()


def test_it_is_the_papers_update() -> None:
    reference = FedMinMax()
    last = check(fedminmax(0.05), reference)
    close(last.state.server["fedminmax"].slot("training")["mu"], reference.mu.float())
    assert not torch.allclose(last.state.shared["fedminmax"], shared(ft.fedavg(weighting="samples")), atol=1e-4)


def federation(groups: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> ft.Federation:
    data = FED.dataset
    columns = {"group_train": {"parity": groups(data.y_train)}, "group_test": {"parity": groups(data.y_test)}}
    grouped = dataclasses.replace(data, **columns, group_names={"parity": names})
    return dataclasses.replace(FED, dataset=grouped)


def test_one_group_is_fedavg_by_samples() -> None:
    fed = federation(torch.zeros_like, ("all", "none"))
    methods = [fedminmax(1.0, groups=2), ft.fedavg(weighting="samples")]
    *_, last = ft.simulate(methods, fed, MODEL, **RECIPE)
    close(last.state.shared["fedminmax"], last.state.shared["fedavg"])


def test_groups_are_those_that_the_data_names() -> None:
    fed = federation(lambda y: y % 2, ("even", "odd"))
    *_, last = ft.simulate([fedminmax(0.1, groups=2)], fed, MODEL, **RECIPE)
    mu, samples = (last.state.server["fedminmax"].slot("training")[name] for name in ("mu", "samples"))
    assert mu.shape == (2,)
    assert float(mu.sum()) == pytest.approx(1)
    assert not torch.allclose(mu, samples / samples.sum())


def test_the_first_round_is_fedavg_by_samples() -> None:
    close(shared(fedminmax(), rounds=1), shared(ft.fedavg(weighting="samples"), rounds=1))


def test_more_groups_than_it_knows_are_refused() -> None:
    with pytest.raises(InputError, match="'fedminmax' knows 2 groups, and the data has more; set groups"):
        list(ft.simulate([fedminmax(groups=2)], FED, MODEL, **RECIPE))
