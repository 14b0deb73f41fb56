"""Judge models on the clients' own held-out data: right answers of every client and class."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedtilt.data import Federation
from fedtilt.methods import Method
from fedtilt.metrics import Counts, confusion_counts
from fedtilt.models import unflat
from fedtilt.shelf import Shelf, State

_SAMPLES = 4096  # a forward pass: large enough to be fast, small enough for any memory


class Evaluator:
    """Counts right answers; a personal model is looked at again only when it changed."""

    def __init__(self, federation: Federation, model: nn.Module, device: torch.device, split: str = "test") -> None:
        x, y, self._client = federation.evaluation(split)
        self._x, self._y = federation.model_ready(x.to(device)), y.to(device)
        # a copy: evaluation swaps parameters in and out, and must not touch the module that is being trained
        self._model = copy.deepcopy(model).eval()
        self._classes, self._clients = federation.classes, federation.clients
        sizes = torch.bincount(self._client, minlength=self._clients)
        self._rows = [slice(int(e - n), int(e)) for e, n in zip(sizes.cumsum(0), sizes, strict=True)]
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}  # method → round looked at (N,), right answers (N, K)
        everything = torch.ones(len(y), dtype=torch.bool)
        _, self.total = confusion_counts(everything, y, self._client, self._clients, self._classes)  # (N, K)

    def shared(self, weights: Tensor) -> Tensor:
        """Right answers of one model on all clients' data, (N, K)."""
        right = self._right(weights, slice(0, len(self._y)))
        counts, _ = confusion_counts(right, self._y.cpu(), self._client, self._clients, self._classes)
        return counts

    def all_counts(self, methods: Sequence[Method], state: State) -> dict[str, Counts]:
        """Right answers of every method."""
        return {m.name: self.counts(m.name, state.shared[m.name], m.personal, state.shelf) for m in methods}

    def counts(self, method: str, weights: Tensor, personal: bool, shelf: Shelf) -> Counts:
        """Right answers of a method's shared model and, if it has them, of its clients' personal ones."""
        shared = self.shared(weights)
        if not personal:
            return Counts(shared, None, torch.zeros(self._clients, dtype=torch.bool))
        looked, right = self._seen.setdefault(method, (torch.zeros(len(shared), dtype=torch.long), shared.clone()))
        trained = torch.tensor([shelf.round_of((method, client)) for client in range(self._clients)])
        for client in (trained != looked).nonzero()[:, 0].tolist():
            rows = self._rows[client]
            answers = self._right(shelf.get((method, client)), rows)
            right[client] = torch.bincount(self._y[rows].cpu()[answers], minlength=self._classes)
        looked.copy_(trained)
        unvisited = trained == 0
        return Counts(shared, torch.where(unvisited[:, None], shared, right), unvisited)

    @torch.no_grad()
    def _right(self, weights: Tensor | None, rows: slice) -> Tensor:
        if weights is None or rows.start == rows.stop:
            return torch.zeros(0, dtype=torch.bool)
        values = unflat(self._model, weights.to(self._y.device))
        right = [
            functional_call(self._model, values, (x,)).argmax(1) == y
            for x, y in zip(self._x[rows].split(_SAMPLES), self._y[rows].split(_SAMPLES), strict=True)
        ]
        return torch.cat(right).cpu()
