"""Evaluate models on the clients' test or validation data: correct predictions per client, class and group."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtilt.data import Federation
from fedtilt.data.groups import CLASS
from fedtilt.data.inputs import Inputs, take, to_device
from fedtilt.evaluation.groups import Cells, groupings
from fedtilt.evaluation.metrics import Counts, GroupCounts
from fedtilt.methods import Method
from fedtilt.models import copy_with_parameters, functional_logits, trained_parameters, vector_to_parameters
from fedtilt.parts import Parts, vector_to_buffers
from fedtilt.rounds.client_states import ClientStates, FederationState, Owner
from fedtilt.rounds.round import client_model
from fedtilt.training import stacked
from fedtilt.training.precision import fp32_deterministic

_SAMPLES = 4096  # in a forward pass: large enough to be fast, small enough for any memory
_MODELS = 64  # personal models in a stack, if they have at most 2 * _SAMPLES samples together


class Evaluator:
    """Counts correct predictions; a personal model is evaluated again only after it was trained again.

    Args:
        federation: the clients' data
        model: the architecture
        parts: its parts
        device: where to evaluate
        split: "test" or "validation"
    """

    def __init__(
        self, federation: Federation, model: nn.Module, parts: Parts, device: torch.device, split: str = "test"
    ) -> None:
        x, y, client = federation.evaluation(split)  # sorted by client
        self._x, self._y = federation.model_input(to_device(x, device)), y.to(device)
        self._parts = parts
        # a copy: evaluation swaps parameters in and out, and must not touch the module that is being trained
        self._model = copy_with_parameters(model, trained_parameters(model)).eval()
        self._classes, self._clients = federation.classes, federation.clients
        sizes = torch.bincount(client, minlength=self._clients)
        self._stops = sizes.cumsum(0)  # (N,) rows of a client: [start, stop)
        self._starts = self._stops - sizes
        self._cells = Cells(groupings(federation, split))
        self._cell = self._cells.codes.to(device)
        self._client_and_cell = client.to(device) * self._cells.count + self._cell
        self._cached: dict[str, tuple[Tensor, Tensor]] = {}  # method → round of training (N,), correct (N, cells)
        self._most_samples = int(sizes.max())  # of one client
        fits = device.type == "cuda" and 0 < self._most_samples <= _SAMPLES
        self._use_stack = fits and not parts.buffers and stacked.can_stack(model, take(self._x, slice(0, 1)))
        self._stackable_model = stacked.stackable_copy(self._model) if self._use_stack else self._model
        cell = client * self._cells.count + self._cells.codes
        totals = torch.bincount(cell, minlength=self._clients * self._cells.count).reshape(self._clients, -1)
        self.total = self._cells.sum(totals, CLASS)  # (N, K)
        self._group_totals = {name: self._cells.sum(totals, name) for name in federation.groups}

    def all_counts(self, methods: Sequence[Method], state: FederationState) -> dict[str, Counts]:
        """Correct predictions of every method: of its shared model and, if it has any, of its personal models."""
        shared = {m.name: self._count_shared(m.name, state) for m in methods}
        personal = [m.name for m in methods if m.personal]
        trained = {name: self._rounds_of_training(name, state.client_states) for name in personal}
        for name in personal:
            self._cached.setdefault(name, (torch.zeros(self._clients, dtype=torch.long), shared[name].clone()))
        changed: list[Owner] = [
            (name, client)
            for name in personal
            for client in (trained[name] != self._cached[name][0]).nonzero()[:, 0].tolist()
        ]
        for (name, client), correct in zip(changed, self._count_personal(changed, state.client_states), strict=True):
            self._cached[name][1][client] = correct
        for name in personal:
            self._cached[name][0].copy_(trained[name])
        return {
            m.name: self._counts(shared[m.name], trained[m.name] == 0 if m.personal else None, m.name) for m in methods
        }

    def _counts(self, shared: Tensor, never_selected: Tensor | None, name: str) -> Counts:
        personal = None
        if never_selected is not None:
            personal = torch.where(never_selected[:, None], shared, self._cached[name][1])
        evaluated = shared if personal is None else personal
        return Counts(
            self._cells.sum(shared, CLASS),
            None if personal is None else self._cells.sum(personal, CLASS),
            torch.zeros(self._clients, dtype=torch.bool) if never_selected is None else never_selected,
            tuple(GroupCounts(self._cells.sum(evaluated, n), total) for n, total in self._group_totals.items()),
        )

    def _rounds_of_training(self, method: str, client_states: ClientStates) -> Tensor:
        return torch.tensor([client_states.round_of((method, client)) for client in range(self._clients)])

    def _count_shared(self, method: str, state: FederationState) -> Tensor:
        """Correct predictions of a method's shared model on the data of all clients, (N, cells).

        Where clients have local parts or buffers of their own, each client's data is evaluated with its own.
        """
        server = state.server[method]
        if self._parts.is_uniform:
            rows = slice(0, len(self._y))
            model = client_model(self._parts, server, {})
            counts = self._count(*model, rows, self._client_and_cell, self._clients * self._cells.count)
            return counts.reshape(self._clients, self._cells.count).cpu()
        by_client = []
        for client in range(self._clients):
            model = client_model(self._parts, server, state.client_states.get((method, client)))
            by_client.append(self._count(*model, self._rows(client), self._cell, self._cells.count))
        return torch.stack(by_client).cpu()

    def _rows(self, client: int) -> slice:
        return slice(int(self._starts[client]), int(self._stops[client]))

    def _count_personal(self, owners: Sequence[Owner], client_states: ClientStates) -> Tensor:
        """Correct predictions of personal models on the data of their clients, (models, cells)."""
        if not owners:
            return torch.zeros(0, self._cells.count, dtype=torch.long)
        if not self._use_stack:
            return torch.stack([self._count_one(owner, client_states) for owner in owners]).cpu()
        size = max(1, min(_MODELS, 2 * _SAMPLES // max(1, self._most_samples)))
        stacks = [owners[i : i + size] for i in range(0, len(owners), size)]
        return torch.cat([self._count_stack(stack, size, client_states) for stack in stacks]).cpu()

    def _count_one(self, owner: Owner, client_states: ClientStates) -> Tensor:
        kept = client_states.get(owner)
        model = kept["personal"], kept.get("personal_buffers")
        return self._count(*model, self._rows(owner[1]), self._cell, self._cells.count)

    def _count_stack(self, owners: Sequence[Owner], size: int, client_states: ClientStates) -> Tensor:
        """Several personal models in one pass, always padded to the same shape, so that the bits are the same too."""
        device = self._y.device
        padded = [*owners, *[owners[-1]] * (size - len(owners))]
        weights = torch.stack([client_states.get(owner)["personal"].to(device) for owner in padded])
        clients = torch.tensor([client for _, client in padded])
        rows = torch.arange(self._most_samples) + self._starts[clients][:, None]  # (models, samples)
        mask = (rows < self._stops[clients][:, None]).to(device)
        rows = rows.clamp(max=len(self._y) - 1).to(device)
        net = self._stackable_model

        def predict(theta: Tensor, x: Inputs) -> Tensor:
            return functional_logits(net, vector_to_parameters(net, theta), x).argmax(1)

        with torch.no_grad(), fp32_deterministic(device):
            correct = (vmap(predict)(weights, take(self._x, rows)) == self._y[rows]) & mask
        counts = torch.zeros(len(padded), self._cells.count, dtype=torch.long, device=device)
        return counts.scatter_add_(1, self._cell[rows], correct.long())[: len(owners)]

    def probabilities(self, method: Method, state: FederationState) -> Tensor:
        """Predicted probabilities of a method's evaluated models on all samples, ordered by client, (S, K)."""
        server = state.server[method.name]
        if self._parts.is_uniform and not method.personal:
            return self._predict(*client_model(self._parts, server, {}), slice(0, len(self._y)))
        by_client = []
        for client in range(self._clients):
            kept = state.client_states.get((method.name, client))
            by_client.append(self._predict(*client_model(self._parts, server, kept, personal=True), self._rows(client)))
        return torch.cat(by_client)

    def _predict(self, weights: Tensor, buffers: Tensor | None, rows: slice) -> Tensor:
        """Predicted probabilities of one model on these rows, on the CPU."""
        values = self._values(weights, buffers)
        predicted = [self._logits(values, batch).float().softmax(1).cpu() for batch in _batches(rows)]
        return torch.cat(predicted) if predicted else torch.zeros(0, self._classes)

    def _count(self, weights: Tensor, buffers: Tensor | None, rows: slice, cell: Tensor, cells: int) -> Tensor:
        """Correct predictions of one model on these rows in every cell, (cells,), on the device of the data."""
        counts = torch.zeros(cells, dtype=torch.long, device=self._y.device)
        values = self._values(weights, buffers)
        for batch in _batches(rows):
            correct = self._logits(values, batch).argmax(1) == self._y[batch]
            counts.scatter_add_(0, cell[batch], correct.long())
        return counts

    def _values(self, weights: Tensor, buffers: Tensor | None) -> dict[str, Tensor]:
        """Parameters and buffers of a model by name, on the device of the data."""
        device = self._y.device
        values = vector_to_parameters(self._model, weights.to(device))
        if buffers is not None:
            values |= vector_to_buffers(self._model, tuple(self._parts.buffers), buffers.to(device))
        return values

    def _logits(self, values: dict[str, Tensor], batch: slice) -> Tensor:
        with torch.no_grad(), fp32_deterministic(self._y.device):
            return functional_logits(self._model, values, take(self._x, batch))


def _batches(rows: slice) -> Iterator[slice]:
    """These rows in parts that fit into a forward pass."""
    for start in range(rows.start, rows.stop, _SAMPLES):
        yield slice(start, min(start + _SAMPLES, rows.stop))
