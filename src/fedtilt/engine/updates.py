"""Updates on the server: which must not be aggregated or stored, and how far each is from the others of its round."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedtilt.cluster.remote_tensor import RemoteTensor
from fedtilt.devices import as_rows
from fedtilt.engine.client import ClientUpdate
from fedtilt.errors import Diverged
from fedtilt.methods import Method
from fedtilt.methods.component import describe, is_built_in
from fedtilt.state import ClientState, ServerState, Slot

_NUMBERS_AT_ONCE = 2**27  # that are checked together on a GPU


class FiniteCheck:
    """Looks for updates that are not finite, or have another shape or type; a GPU may still work on them.

    `add` queues a look, and `reasons` reads what all of them found, for which it waits.
    """

    def __init__(self) -> None:
        # reasons that are known by client; the clients that are looked at, whether they are finite, and else the reason
        self._looks: list[tuple[dict[int, str], list[int], Tensor, str]] = []

    def add(self, vectors: Mapping[int, Tensor], reference: Tensor, prefix: str = "") -> None:
        """Look at a vector of every client; a reason begins with the prefix."""
        known, queued = dict[int, str](), dict[int, Tensor]()
        for client, vector in vectors.items():
            reason = _mismatch(vector, reference)
            if reason is None and isinstance(vector, RemoteTensor):
                reason = None if vector.finite else "is not finite"
            elif reason is None:
                queued[client] = vector
            if reason is not None:
                known[client] = prefix + reason
        finite = _are_finite(list(queued.values())) if queued else torch.zeros(0)
        self._looks.append((known, list(queued), finite, f"{prefix}is not finite"))

    def add_known(self, reasons: Mapping[int, str]) -> None:
        """Add reasons by client that need no look."""
        self._looks.append((dict(reasons), [], torch.zeros(0), ""))

    def add_updates(self, method: Method, updates: Mapping[int, ClientUpdate], server: ServerState) -> None:
        """Look at everything that these updates must have."""
        self.add({client: u.parameters for client, u in updates.items()}, server.parameters)
        for name in () if method.correction is None else method.correction.sends:
            vectors = {n: u.sent.get("correction", {}).get(name, u.parameters[:0]) for n, u in updates.items()}
            self.add(vectors, server.parameters, f"has a vector {name!r} that is wrong: it ")
        for client, update in updates.items():
            for name, tensor in update.sent.get("training", {}).items():
                if not tensor.isfinite().all():
                    self.add_known({client: f"sent {name!r}, which is not finite"})
        if method.needs_losses:
            declared = {client: update.declared.get("loss", math.nan) for client, update in updates.items()}
            wrong = [client for client, loss in declared.items() if not 0 <= loss < math.inf]
            self.add_known(dict.fromkeys(wrong, "declares no loss ≥ 0 of the received model"))
        if server.buffers is not None:
            buffers = {client: u.buffers for client, u in updates.items() if u.buffers is not None}
            self.add_known({client: "has no buffers" for client in updates if client not in buffers})
            self.add(buffers, server.buffers, "has buffers that are wrong: the vector ")

    def reasons(self) -> dict[int, str]:
        """By client, the first reason why its update is invalid."""
        found: dict[int, str] = {}
        for known, clients, finite, reason in self._looks:
            not_finite = (client for client, ok in zip(clients, finite.tolist(), strict=True) if not ok)
            found = known | dict.fromkeys(not_finite, reason) | found
        return {client: found[client] for client in sorted(found)}


def invalid_reason(update: Tensor, reference: Tensor) -> str | None:
    """Why a trained model may not be averaged or stored, or None if it is valid."""
    check = FiniteCheck()
    check.add({0: update}, reference)
    return check.reasons().get(0)


def invalid_updates(method: Method, updates: Mapping[int, ClientUpdate], server: ServerState) -> dict[int, str]:
    """By client, why its update is invalid; on a GPU, one synchronisation for all of them."""
    check = FiniteCheck()
    check.add_updates(method, updates, server)
    return check.reasons()


def _mismatch(update: Tensor, reference: Tensor) -> str | None:
    if update.shape != reference.shape:
        return f"has shape {tuple(update.shape)} instead of {tuple(reference.shape)}"
    if update.dtype != reference.dtype:
        return f"has type {update.dtype} instead of {reference.dtype}"
    return None


def _are_finite(vectors: Sequence[Tensor]) -> Tensor:
    """Whether each of these tensors of one shape is finite: its extremes are NaN if one number is.

    On a GPU they are checked in a few operations, where one each would take longer to launch than to run: the largest
    magnitude of a vector, which is read once, is inf or NaN if any is.
    """
    if not vectors[0].numel() or not vectors[0].is_floating_point():
        return torch.ones(len(vectors), dtype=torch.bool)
    if vectors[0].device.type == "cpu":
        return torch.stack([torch.stack(vector.aminmax()) for vector in vectors]).isfinite().all(1)
    at_once = max(1, _NUMBERS_AT_ONCE // vectors[0].numel())
    blocks = [as_rows(vectors[i : i + at_once]) for i in range(0, len(vectors), at_once)]
    largest = [torch.linalg.vector_norm(block.reshape(len(block), -1), math.inf, 1) for block in blocks]
    return torch.cat(largest).isfinite()


def start_finite_check(
    methods: Sequence[Method],
    server: Mapping[str, ServerState],
    updates: Mapping[str, Mapping[int, ClientUpdate]],
    kept: Mapping[str, Mapping[int, ClientState]],
) -> dict[str, FiniteCheck]:
    """Begin to look at all models of a round; by method."""
    checks = {}
    for m in methods:
        check = checks[m.name] = FiniteCheck()
        check.add_updates(m, updates[m.name], server[m.name])
        by_client = {client: state.to_tensors() for client, state in kept[m.name].items() if not state.is_empty}
        for name in sorted({name for tensors in by_client.values() for name in tensors}):
            vectors = {client: tensors[name] for client, tensors in by_client.items()}
            check.add(vectors, next(iter(vectors.values())))
    return checks


def raise_if_diverged(number: int, methods: Sequence[Method], checks: Mapping[str, FiniteCheck]) -> None:
    """Raise `Diverged` if any model of round `number` is not finite; the message is about the first."""
    reasons = {name: check.reasons() for name, check in checks.items()}
    diverged = [name for name, found in reasons.items() if found]
    if diverged:
        client, reason = next(iter(reasons[diverged[0]].items()))
        method = next(m for m in methods if m.name == diverged[0])
        own = [p for p in (method.training, method.correction, method.objective) if p and not is_built_in(p)]
        advice = f"check {' and '.join(map(describe, own))}, or " if own else ""
        others = f" (and so did {', '.join(map(repr, diverged[1:]))})" if diverged[1:] else ""
        raise Diverged(
            f"method {diverged[0]!r} diverged in round {number} on client {client}{others}: its model {reason}; "
            f"{advice}lower lr (train.lr in a spec) or the tilts",
            methods=diverged,
        )


def add_distances(slot: Slot, updates: Mapping[int, ClientUpdate]) -> dict[str, Tensor]:
    """The slot of the audit with the rows of this round, of two or more updates, added.

    The distance is that from the mean update of the other clients, in units of the median over the clients of the
    round: 1 is an ordinary client.
    """
    earlier = slot.get("distances", torch.zeros(0, 3)).cpu()
    clients = sorted(updates)
    models = torch.stack([updates[client].parameters for client in clients]).float()  # (C, S)
    distances = (models - models.mean(0)).norm(dim=1).cpu()
    relative = distances / distances.median().clamp_min(torch.finfo(torch.float32).tiny)
    round = float(earlier[-1, 0]) + 1 if len(earlier) else 1.0
    rows = torch.stack([torch.full_like(relative, round), torch.tensor(clients, dtype=torch.float32), relative], 1)
    return {"distances": torch.cat([earlier, rows])}


def distances_by_round(server: ServerState, clients: int) -> Tensor:
    """The distances of all rounds, (rounds, clients); NaN where a client did not take part."""
    rows = server.slot("audit").get("distances", torch.zeros(0, 3)).cpu()
    rounds = int(rows[-1, 0]) if len(rows) else 0
    distances = torch.full((rounds, clients), torch.nan)
    distances[rows[:, 0].long() - 1, rows[:, 1].long()] = rows[:, 2]
    return distances
