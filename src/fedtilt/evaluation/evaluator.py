"""Evaluate models on the clients' test or validation data: sums by client and group, see `metrics`."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtilt.data import Federation
from fedtilt.data.groups import CLASS, combinations
from fedtilt.data.inputs import Inputs, take, to_device
from fedtilt.data.targets import NumericTarget, TokenTarget
from fedtilt.engine.client import client_model
from fedtilt.engine.client_states import ClientStates, FederationState, Owner
from fedtilt.errors import Diverged
from fedtilt.evaluation.metrics import Counts, GroupCounts, counts_of_chance
from fedtilt.evaluation.scores import are_numbers, no_sums, sample_sums
from fedtilt.methods import Method
from fedtilt.models import copy_with_parameters, functional_logits, trained_parameters, vector_to_parameters
from fedtilt.parts import Parts, vector_to_buffers
from fedtilt.state import ClientState
from fedtilt.text_tables import first_names
from fedtilt.training import stacked
from fedtilt.training.precision import fp32_deterministic

_SAMPLES = {"cpu": 128, "cuda": 4096}  # in a forward pass: on a CPU so few that activations stay in its cache
_MODELS = 64  # personal models in a stack, if they have at most twice the samples of a forward pass together
_SHOWN_CLIENTS = 3
_LOGITS = {"cpu": 2**24, "cuda": 2**28}  # of tokens in a forward pass


class Grouping(NamedTuple):
    """One way to group the samples of a split."""

    name: str  # "class", or the column
    names: tuple[str, ...]  # of the groups
    codes: Tensor  # (samples,) the group of each sample, int64, in the order of `Federation.evaluation`


def group_names(federation: Federation) -> dict[str, tuple[str, ...]]:
    """The names of the groups by grouping: first what `tau` tilts over, then the others, classes or ranges included."""
    columns = {name: column.names for name, column in federation.groups.items()}
    main = federation.group
    return {main: ()} | {federation.label_group: federation.class_names} | columns


def groupings(federation: Federation, split: str = "test") -> dict[str, Grouping]:
    """The classes or ranges, then every column of groups, by name; of several columns also their combination, the last.

    >>> from fedtilt.data import load
    >>> grouping = groupings(Federation.build(load("toy-2")))["class"]
    >>> grouping.names, grouping.codes.bincount().tolist()
    (('1', '2'), [60, 20])
    """
    found = {}
    if federation.target is None:
        found[CLASS] = Grouping(CLASS, federation.class_names, federation.evaluation(split)[1])
    for name, codes in federation.evaluation_groups(split).items():
        found[name] = Grouping(name, federation.groups[name].names, codes)
    return found


class CrossTable:
    """The cells of a split: combinations of class and groups, from whose sums those of every grouping follow."""

    def __init__(self, by: Mapping[str, Grouping]) -> None:
        self._sizes = {name: len(grouping.names) for name, grouping in by.items()}
        if len(by) == 1:  # a cell is a group
            ((name, only),) = by.items()
            self.codes, self.count = only.codes, self._sizes[name]
            self._group = {name: torch.arange(self.count)}
            return
        found, self.codes = combinations([grouping.codes for grouping in by.values()])
        self.count = len(found)
        self._group = dict(zip(by, found.unbind(1), strict=True))  # the group of each cell

    def sum(self, counts: Tensor, grouping: str) -> Tensor:
        """The sums (clients, groups, …) of a grouping, from those of the cells (clients, cells, …)."""
        sums = counts.new_zeros(len(counts), self._sizes[grouping], *counts.shape[2:])
        return sums.index_add_(1, self._group[grouping], counts)


class Evaluator:
    """Sums what is counted of every sample; a personal model is evaluated again only after it was trained again.

    `split` is "test" or "validation", `by` the grouping of the tables; default: what `tau` tilts over.
    """

    def __init__(
        self, federation: Federation, model: nn.Module, parts: Parts, device: torch.device, split: str = "test",
        by: str | None = None,
    ) -> None:  # fmt: skip
        x, y, client = federation.evaluation(split)  # sorted by client
        self._inputs, self._y = x, y.to(device)
        self._model_input = federation.model_input
        self._parts = parts
        # a copy: evaluation swaps parameters in and out, and must not touch the module that is being trained
        self._model = copy_with_parameters(model, trained_parameters(model)).eval()
        self._target, self._clients, self._client_names = federation.target, federation.clients, federation.client_names
        self._split, self._outputs_per_sample = split, federation.outputs
        sizes = torch.bincount(client, minlength=self._clients)
        self._stops = sizes.cumsum(0)  # (N,) rows of a client: [start, stop)
        self._starts = self._stops - sizes
        self._cells = CrossTable(groupings(federation, split))
        # errors are summed on the CPU, where the order of the additions does not change
        self._sum_device = device if self._target is None else torch.device("cpu")
        self._samples = _SAMPLES[device.type]  # in a forward pass
        if isinstance(self._target, TokenTarget):
            self._samples = max(1, min(self._samples, _LOGITS[device.type] // (y[0].numel() * self._target.vocabulary)))
        self._cell = self._cells.codes.to(self._sum_device)
        self._client_and_cell = client.to(self._sum_device) * self._cells.count + self._cell
        self._cached: dict[str, tuple[Tensor, Tensor]] = {}  # method → round of training (N,), sums (N, cells, …)
        self._most_samples = int(sizes.max())  # of one client
        cells = self._clients * self._cells.count
        totals = self._client_and_cell.cpu().bincount(minlength=cells).reshape(self._clients, -1)
        self._by = by or federation.group
        self.total = self._cells.sum(totals, self._by)  # (N, K)
        others = [name for name in group_names(federation) if name != self._by]
        self._fixed_shares = federation.fixed_shares(split)
        self._group_totals = {name: self._cells.sum(totals, name) for name in others}

    @functools.cached_property
    def _x(self) -> Inputs:
        """The inputs on the device, from the first evaluation on: many searches never evaluate test data."""
        x = self._model_input(to_device(self._inputs, self._y.device))
        del self._inputs
        return x

    @functools.cached_property
    def _stackable_model(self) -> nn.Module | None:
        """The model in a form that evaluates many personal models at once; None: one at a time."""
        fits = self._y.device.type == "cuda" and 0 < self._most_samples <= self._samples
        if fits and not self._parts.buffers and stacked.can_stack(self._model, take(self._x, slice(0, 1))):
            return stacked.stackable_copy(self._model)
        return None

    def all_counts(self, methods: Sequence[Method], state: FederationState) -> dict[str, Counts]:
        """The sums of every method: of its shared model and, if it has any, of its personal models."""
        shared = {m.name: self._sum_shared(m, state) for m in methods}
        personal = [m.name for m in methods if m.has_personal]
        clients, round_of = range(self._clients), state.client_states.round_of
        trained = {name: torch.tensor([round_of((name, client)) for client in clients]) for name in personal}
        for name in personal:
            self._cached.setdefault(name, (torch.zeros(self._clients, dtype=torch.long), shared[name].clone()))
        changed: list[Owner] = [
            (name, client)
            for name in personal
            for client in (trained[name] != self._cached[name][0]).nonzero()[:, 0].tolist()
        ]
        for (name, client), sums in zip(changed, self._sum_personal(changed, state.client_states), strict=True):
            self._cached[name][1][client] = sums
        for name in personal:
            self._cached[name][0].copy_(trained[name])
        for name in shared:
            self._check_numbers(name, shared[name], self._cached[name][1] if name in personal else shared[name])
        return {
            m.name: self._counts(shared[m.name], trained[m.name] == 0 if m.has_personal else None, m.name)
            for m in methods
        }

    def _check_numbers(self, name: str, *sums: Tensor) -> None:
        failed = ~torch.stack([are_numbers(of_models).flatten(1).all(1) for of_models in sums]).all(0)
        if failed.any():
            clients = [self._client_names[i] for i in failed.nonzero()[:, 0].tolist()]
            raise Diverged(
                f"the model of method {name!r} returns NaN or infinity for {self._split} data of "
                f"{first_names(clients, _SHOWN_CLIENTS)}; lower lr (train.lr in a spec) or the tilts, or let the model "
                "return numbers for these samples",
                methods=[name],
            )

    def _counts(self, shared: Tensor, never_selected: Tensor | None, name: str) -> Counts:
        personal = None
        if never_selected is not None:
            mask = never_selected.reshape(-1, *[1] * (shared.dim() - 1))
            personal = torch.where(mask, shared, self._cached[name][1])
        evaluated = shared if personal is None else personal
        chance = (self._of_chance(shared), self._of_chance(evaluated)) if self._fixed_shares else None
        return Counts(
            self._cells.sum(shared, self._by),
            None if personal is None else self._cells.sum(personal, self._by),
            torch.zeros(self._clients, dtype=torch.bool) if never_selected is None else never_selected,
            tuple(GroupCounts(self._cells.sum(evaluated, n), total) for n, total in self._group_totals.items()),
            chance,
        )

    def _of_chance(self, sums: Tensor) -> GroupCounts:
        totals = {self._by: self.total, **self._group_totals}
        by_grouping = {name: GroupCounts(self._cells.sum(sums, name), total) for name, total in totals.items()}
        return counts_of_chance(by_grouping, fixed_shares=True)

    def _sum_shared(self, method: Method, state: FederationState) -> Tensor:
        """The sums of a method's shared model on the data of all clients, (N, cells, …).

        Where clients have local parts or buffers of their own, each client's data is evaluated with its own.
        """
        server, parts = state.server[method.name], self._parts.keeping(method.local_names)
        if parts.is_uniform:
            model, cells = client_model(parts, server, ClientState()), self._clients * self._cells.count
            sums = self._sum(*model, slice(0, len(self._y)), self._client_and_cell, cells)
            return sums.reshape(self._clients, self._cells.count, *sums.shape[1:]).cpu()
        by_client = []
        for client in range(self._clients):
            model = client_model(parts, server, state.client_states.get((method.name, client)))
            by_client.append(self._sum(*model, self._rows(client), self._cell, self._cells.count))
        return torch.stack(by_client).cpu()

    def _rows(self, client: int) -> slice:
        return slice(int(self._starts[client]), int(self._stops[client]))

    def _sum_personal(self, owners: Sequence[Owner], client_states: ClientStates) -> Tensor:
        """The sums of personal models on the data of their clients, (models, cells, …)."""
        if not owners:
            return no_sums(self._target, 0, self._cells.count)
        net = self._stackable_model
        if net is None:
            sums = []
            for owner in owners:
                kept = client_states.get(owner)
                assert kept.personal is not None
                model = kept.personal, kept.personal_buffers
                sums.append(self._sum(*model, self._rows(owner[1]), self._cell, self._cells.count))
            return torch.stack(sums).cpu()
        size = max(1, min(_MODELS, 2 * self._samples // max(1, self._most_samples)))
        stacks = [owners[i : i + size] for i in range(0, len(owners), size)]
        return torch.cat([self._sum_stack(net, stack, size, client_states) for stack in stacks]).cpu()

    def _sum_stack(self, net: nn.Module, owners: Sequence[Owner], size: int, client_states: ClientStates) -> Tensor:
        """Several personal models in one pass, always padded to the same shape: the sums are bit-identical."""
        device = self._y.device
        padded = [*owners, *[owners[-1]] * (size - len(owners))]
        models = [client_states.get(owner).personal for owner in padded]
        weights = torch.stack([model.to(device) for model in models if model is not None])
        clients = torch.tensor([client for _, client in padded])
        rows = torch.arange(self._most_samples) + self._starts[clients][:, None]  # (models, samples)
        mask = (rows < self._stops[clients][:, None]).to(device)
        rows = rows.clamp(max=len(self._y) - 1).to(device)

        def predict(theta: Tensor, x: Inputs) -> Tensor:
            return functional_logits(net, vector_to_parameters(net, theta), x)

        with torch.no_grad(), fp32_deterministic(device), stacked.batched_functions():
            outputs = vmap(predict)(weights, take(self._x, rows))
            scores = sample_sums(self._target, outputs, self._y[rows])  # (models, samples, …)
        shape = *mask.shape, *[1] * (scores.dim() - 2)
        scores = scores.masked_fill(~mask.to(scores.device).reshape(shape), 0)
        cells = self._cell[rows.to(self._cell.device)].reshape(shape).expand_as(scores)
        sums = no_sums(self._target, len(padded), self._cells.count, device=self._sum_device)
        return sums.scatter_add_(1, cells, scores)[: len(owners)]

    def predictions(self, method: Method, state: FederationState) -> Tensor:
        """What a method's evaluated models predict on all samples, ordered by client.

        Probabilities (S, K); of numbers as targets, numbers in their unit (S,); of tokens and several labels, what an
        evaluation sums of every sample (S, sums), because the outputs themselves may not fit into memory.
        """
        server, parts = state.server[method.name], self._parts.keeping(method.local_names)
        if parts.is_uniform and not method.has_personal:
            return self._predict(*client_model(parts, server, ClientState()), slice(0, len(self._y)))
        by_client = []
        for client in range(self._clients):
            kept = state.client_states.get((method.name, client))
            by_client.append(self._predict(*client_model(parts, server, kept, personal=True), self._rows(client)))
        return torch.cat(by_client)

    def _predict(self, weights: Tensor, buffers: Tensor | None, rows: slice) -> Tensor:
        """What one model predicts on these rows, on the CPU."""
        values = self._values(weights, buffers)
        outputs = ((self._outputs(values, batch).float(), self._y[batch]) for batch in self._batches(rows))
        if isinstance(self._target, NumericTarget):
            target = self._target
            return torch.cat([torch.zeros(0, dtype=torch.float64), *(target.predictions(o).cpu() for o, _ in outputs)])
        if self._target is not None:
            return torch.cat([no_sums(self._target, 0), *(sample_sums(self._target, o, y) for o, y in outputs)])
        return torch.cat([torch.zeros(0, self._outputs_per_sample), *(o.softmax(1).cpu() for o, _ in outputs)])

    def _sum(self, weights: Tensor, buffers: Tensor | None, rows: slice, cell: Tensor, cells: int) -> Tensor:
        """The sums of one model on these rows in every cell, (cells, …)."""
        sums = no_sums(self._target, cells, device=self._sum_device)
        values = self._values(weights, buffers)
        for batch in self._batches(rows):
            sums.index_add_(0, cell[batch], sample_sums(self._target, self._outputs(values, batch), self._y[batch]))
        return sums

    def _values(self, weights: Tensor, buffers: Tensor | None) -> dict[str, Tensor]:
        """Parameters and buffers of a model by name, on the device of the data."""
        device = self._y.device
        values = vector_to_parameters(self._model, weights.to(device))
        if buffers is not None:
            values |= vector_to_buffers(self._model, tuple(self._parts.buffers), buffers.to(device))
        return values

    def _outputs(self, values: dict[str, Tensor], batch: slice) -> Tensor:
        with torch.no_grad(), fp32_deterministic(self._y.device):
            return functional_logits(self._model, values, take(self._x, batch))

    def _batches(self, rows: slice) -> Iterator[slice]:
        """These rows in parts of a forward pass."""
        for start in range(rows.start, rows.stop, self._samples):
            yield slice(start, min(start + self._samples, rows.stop))
