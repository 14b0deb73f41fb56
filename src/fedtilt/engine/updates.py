"""Updates on the server: which must not be aggregated or stored, and how far each is from the others of its round."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedtilt.cluster.remote_tensor import RemoteTensor
from fedtilt.devices import as_rows
from fedtilt.engine.client import ClientUpdate
from fedtilt.errors import Diverged
from fedtilt.methods import Method
from fedtilt.methods.component import describe, is_built_in
from fedtilt.state import ClientState, ServerState, Slot

Reasons = Callable[[], dict[int, str]]  # waits, and gives by client why its update is invalid

_NUMBERS_AT_ONCE = 2**27  # that are checked together on a GPU


def invalid_reason(update: Tensor, reference: Tensor) -> str | None:
    """Why a trained model may not be averaged or stored, or None if it is valid."""
    return invalid_reasons({0: update}, reference).get(0)


def _mismatch(update: Tensor, reference: Tensor) -> str | None:
    if update.shape != reference.shape:
        return f"has shape {tuple(update.shape)} instead of {tuple(reference.shape)}"
    if update.dtype != reference.dtype:
        return f"has type {update.dtype} instead of {reference.dtype}"
    return None


def invalid_reasons(updates: Mapping[int, Tensor], reference: Tensor) -> dict[int, str]:
    """`invalid_reason` by client, for the invalid models only; on a GPU, one synchronisation for all of them."""
    return _look_at(updates, reference)()


def _look_at(updates: Mapping[int, Tensor], reference: Tensor) -> Reasons:
    """Begin with `invalid_reasons`; the function that is returned waits for a GPU."""
    reasons = {client: reason for client, update in updates.items() if (reason := _mismatch(update, reference))}
    remote = {client: update for client, update in updates.items() if isinstance(update, RemoteTensor)}
    comparable = [client for client in updates if client not in reasons and client not in remote]
    finite = _are_finite([updates[client] for client in comparable]) if comparable else torch.ones(0)

    def invalid() -> dict[int, str]:
        reasons.update((client, "is not finite") for client, update in remote.items() if not update.finite)
        reasons.update(
            (client, "is not finite") for client, ok in zip(comparable, finite.tolist(), strict=True) if not ok
        )
        return {client: reasons[client] for client in sorted(reasons)}

    return invalid


def _are_finite(vectors: Sequence[Tensor]) -> Tensor:
    """Whether each of these vectors of one size is finite: its extremes are NaN if one number is.

    On a GPU they are checked in a few operations, where one each would take longer to launch than to run: the largest
    magnitude of a vector, which is read once, is inf or NaN if any is.
    """
    if not vectors[0].numel():
        return torch.ones(len(vectors), dtype=torch.bool)
    if vectors[0].device.type == "cpu":
        return torch.stack([torch.stack(vector.aminmax()) for vector in vectors]).isfinite().all(1)
    at_once = max(1, _NUMBERS_AT_ONCE // vectors[0].numel())
    blocks = [as_rows(vectors[i : i + at_once]).flatten(1) for i in range(0, len(vectors), at_once)]
    return torch.cat([torch.linalg.vector_norm(block, math.inf, 1) for block in blocks]).isfinite()


def invalid_updates(method: Method, updates: Mapping[int, ClientUpdate], server: ServerState) -> dict[int, str]:
    """`invalid_reasons` of everything that these updates must have."""
    return _look_at_updates(method, updates, server)()


def _look_at_updates(method: Method, updates: Mapping[int, ClientUpdate], server: ServerState) -> Reasons:
    """Begin with `invalid_updates`; the function that is returned waits for a GPU."""
    parameters = _look_at({client: u.parameters for client, u in updates.items()}, server.parameters)
    names = () if method.correction is None else method.correction.sends
    vectors = {
        name: _look_at(
            {n: u.sent.get("correction", {}).get(name, u.parameters[:0]) for n, u in updates.items()}, server.parameters
        )
        for name in names
    }
    with_buffers = {} if server.buffers is None else {n: u.buffers for n, u in updates.items() if u.buffers is not None}
    buffers = _look_at(with_buffers, server.parameters if server.buffers is None else server.buffers)

    def invalid() -> dict[int, str]:
        reasons = parameters()
        for name, of_vector in vectors.items():
            for client, reason in of_vector().items():
                reasons.setdefault(client, f"has a vector {name!r} that is wrong: it {reason}")
        for client, update in updates.items():
            for name, tensor in update.sent.get("training", {}).items():
                if not tensor.isfinite().all():
                    reasons.setdefault(client, f"sent {name!r}, which is not finite")
            if method.needs_losses and not 0 <= update.declared.get("loss", math.nan) < math.inf:
                reasons.setdefault(client, "declares no loss ≥ 0 of the received model")
            if server.buffers is not None and update.buffers is None:
                reasons.setdefault(client, "has no buffers")
        for client, reason in buffers().items():
            reasons.setdefault(client, f"has buffers that are wrong: the vector {reason}")
        return {client: reasons[client] for client in sorted(reasons)}

    return invalid


def check_finite(
    number: int,
    methods: Sequence[Method],
    server: Mapping[str, ServerState],
    updates: Mapping[str, Mapping[int, ClientUpdate]],
    kept: Mapping[str, Mapping[int, ClientState]],
) -> Callable[[], None]:
    """Begin to look at all models; the function that is returned waits for a GPU.

    It raises `Diverged` if any model is not finite; the message is about the first.
    """
    checks: dict[str, list[Reasons]] = {}
    for m in methods:
        by_client = {client: state.to_tensors() for client, state in kept[m.name].items() if not state.is_empty}
        checks[m.name] = [_look_at_updates(m, updates[m.name], server[m.name])]
        for name in {name for tensors in by_client.values() for name in tensors}:
            vectors = {client: tensors[name] for client, tensors in by_client.items()}
            checks[m.name].append(_look_at(vectors, next(iter(vectors.values()))))

    def raise_if_diverged() -> None:
        reasons = {
            name: {client: r for check in found for client, r in check().items()} for name, found in checks.items()
        }
        diverged = [name for name, found in reasons.items() if found]
        if diverged:
            client, reason = next(iter(reasons[diverged[0]].items()))
            method = next(m for m in methods if m.name == diverged[0])
            own = [p for p in (method.training, method.correction, method.objective) if p and not is_built_in(p)]
            check = f"check {' and '.join(map(describe, own))}, or " if own else ""
            others = f" (and so did {', '.join(map(repr, diverged[1:]))})" if diverged[1:] else ""
            raise Diverged(
                f"method {diverged[0]!r} diverged in round {number} on client {client}{others}: its model {reason}; "
                f"{check}lower lr (train.lr in a spec) or the tilts",
                methods=diverged,
            )

    return raise_if_diverged


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
