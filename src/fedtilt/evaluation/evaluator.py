"""Judge models on the clients' own held-out data: right answers of every client and class."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedtilt.data import Federation
from fedtilt.evaluation.metrics import Counts
from fedtilt.methods import Method
from fedtilt.models import unflat
from fedtilt.rounds.client_states import ClientStates, FederationState, Owner
from fedtilt.training import stacked
from fedtilt.training.precision import fp32_deterministic

_SAMPLES = 4096  # a forward pass: large enough to be fast, small enough for any memory
_MODELS = 64  # personal models in one pass on a GPU, if their samples are no more than twice that


class Evaluator:
    """Counts right answers; a personal model is looked at again only when it changed."""

    def __init__(self, federation: Federation, model: nn.Module, device: torch.device, split: str = "test") -> None:
        x, y, client = federation.evaluation(split)
        self._x, self._y = federation.model_ready(x.to(device)), y.to(device)
        # a copy: evaluation swaps parameters in and out, and must not touch the module that is being trained
        self._model = copy.deepcopy(model).eval()
        self._products = stacked.products(self._model)
        self._classes, self._clients = federation.classes, federation.clients
        sizes = torch.bincount(client, minlength=self._clients)
        self._ends = sizes.cumsum(0)
        self._begins = self._ends - sizes
        self._cell = client.to(device) * self._classes + self._y
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}  # method → round looked at (N,), right answers (N, K)
        self._longest = int(sizes.max())
        fits = device.type == "cuda" and 0 < self._longest <= _SAMPLES
        self._together = fits and stacked.supports(model, self._x[:1])
        self.total = federation.class_counts(split)  # (N, K)

    def all_counts(self, methods: Sequence[Method], state: FederationState) -> dict[str, Counts]:
        """Right answers of every method: of its shared model and, if it has them, of its clients' personal ones."""
        shared = {m.name: self._shared(state.shared[m.name]) for m in methods}
        personal = [m.name for m in methods if m.personal]
        trained = {name: self._trained(name, state.client_states) for name in personal}
        for name in personal:
            self._seen.setdefault(name, (torch.zeros(self._clients, dtype=torch.long), shared[name].clone()))
        changed: list[Owner] = [
            (name, client)
            for name in personal
            for client in (trained[name] != self._seen[name][0]).nonzero()[:, 0].tolist()
        ]
        for (name, client), right in zip(changed, self._answers(changed, state.client_states), strict=True):
            self._seen[name][1][client] = right
        for name in personal:
            self._seen[name][0].copy_(trained[name])
        return {
            m.name: self._counts(shared[m.name], trained[m.name] == 0 if m.personal else None, m.name) for m in methods
        }

    def _counts(self, shared: Tensor, never_selected: Tensor | None, name: str) -> Counts:
        if never_selected is None:
            return Counts(shared, None, torch.zeros(self._clients, dtype=torch.bool))
        return Counts(shared, torch.where(never_selected[:, None], shared, self._seen[name][1]), never_selected)

    def _trained(self, method: str, client_states: ClientStates) -> Tensor:
        return torch.tensor([client_states.round_of((method, client)) for client in range(self._clients)])

    def _shared(self, weights: Tensor) -> Tensor:
        """Right answers of one model on all clients' data, (N, K)."""
        counts = self._counted(weights, slice(0, len(self._y)), self._cell, self._clients * self._classes)
        return counts.reshape(self._clients, self._classes).cpu()

    def _answers(self, owners: Sequence[Owner], client_states: ClientStates) -> Tensor:
        """Right answers of personal models on their clients' data, (models, K)."""
        if not owners:
            return torch.zeros(0, self._classes, dtype=torch.long)
        size = max(1, min(_MODELS, 2 * _SAMPLES // max(1, self._longest))) if self._together else 1
        parts = [owners[i : i + size] for i in range(0, len(owners), size)]
        if self._together:
            return torch.cat([self._stacked(part, size, client_states) for part in parts]).cpu()
        return torch.stack([self._alone(owner, client_states) for owner in owners]).cpu()

    def _alone(self, owner: Owner, client_states: ClientStates) -> Tensor:
        rows = slice(int(self._begins[owner[1]]), int(self._ends[owner[1]]))
        weights = client_states.get(owner)
        assert weights is not None  # owners are those that the shelf has models of
        return self._counted(weights, rows, self._y, self._classes)

    def _stacked(self, owners: Sequence[Owner], size: int, client_states: ClientStates) -> Tensor:
        """Several personal models in one pass, padded to always the same shape, so that the bits are the same too."""
        device = self._y.device
        filled = [*owners, *[owners[-1]] * (size - len(owners))]
        weights = torch.stack([w.to(device) for owner in filled if (w := client_states.get(owner)) is not None])
        clients = torch.tensor([client for _, client in filled])
        place = torch.arange(self._longest) + self._begins[clients][:, None]  # (models, samples)
        held = (place < self._ends[clients][:, None]).to(device)
        place = place.clamp(max=len(self._y) - 1).to(device)
        net = self._products

        def answer(theta: Tensor, x: Tensor) -> Tensor:
            return functional_call(net, unflat(net, theta), (x,)).argmax(1)

        label = self._y[place]
        with torch.no_grad(), fp32_deterministic(device):
            right = (vmap(answer)(weights, self._x[place]) == label) & held
        counts = torch.zeros(len(filled), self._classes, dtype=torch.long, device=device)
        return counts.scatter_add_(1, label, right.long())[: len(owners)]

    def _counted(self, weights: Tensor, rows: slice, cell: Tensor, cells: int) -> Tensor:
        """Right answers of one model in every cell of these samples, where the data is."""
        counts = torch.zeros(cells, dtype=torch.long, device=self._y.device)
        if rows.stop == rows.start:
            return counts
        values = unflat(self._model, weights.to(self._y.device))
        with torch.no_grad(), fp32_deterministic(self._y.device):
            for x, y, of in zip(*(t[rows].split(_SAMPLES) for t in (self._x, self._y, cell)), strict=True):
                right = functional_call(self._model, values, (x,)).argmax(1) == y
                counts.scatter_add_(0, of, right.long())
        return counts
