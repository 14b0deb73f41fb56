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
    reasons = {client: reason for client, update in updates.items() if (reason := _mismatch(update, reference))}
    remote = {client: update for client, update in updates.items() if isinstance(update, RemoteTensor)}
    comparable = [client for client in updates if client not in reasons and client not in remote]
    if comparable:
        finite = _are_finite([updates[client] for client in comparable])
        reasons |= {client: "is not finite" for client, ok in zip(comparable, finite, strict=True) if not ok}
    reasons |= {client: "is not finite" for client, update in remote.items() if not update.finite}
    return {client: reasons[client] for client in sorted(reasons)}


def _are_finite(vectors: Sequence[Tensor]) -> list[bool]:
    """Whether each of these vectors of one size is finite: its extremes are NaN if one number is.

    On a GPU they are checked in a few operations, where one each would take longer to launch than to run: the largest
    magnitude of a vector, which is read once, is inf or NaN if any is.
    """
    finite: list[bool]
    if not vectors[0].numel():
        return [True] * len(vectors)
    if vectors[0].device.type == "cpu":
        finite = torch.stack([torch.stack(vector.aminmax()) for vector in vectors]).isfinite().all(1).tolist()
        return finite
    at_once = max(1, _NUMBERS_AT_ONCE // vectors[0].numel())
    blocks = [as_rows(vectors[i : i + at_once]).flatten(1) for i in range(0, len(vectors), at_once)]
    finite = torch.cat([torch.linalg.vector_norm(block, math.inf, 1) for block in blocks]).isfinite().tolist()
    return finite


def invalid_updates(method: Method, updates: Mapping[int, ClientUpdate], server: ServerState) -> dict[int, str]:
    """`invalid_reasons` of everything that these updates must have."""
    reasons = invalid_reasons({client: u.parameters for client, u in updates.items()}, server.parameters)
    names = () if method.correction is None else method.correction.sends
    for name in names:
        vectors = {n: u.sent.get("correction", {}).get(name, u.parameters[:0]) for n, u in updates.items()}
        for client, reason in invalid_reasons(vectors, server.parameters).items():
            reasons.setdefault(client, f"has a vector {name!r} that is wrong: it {reason}")
    for client, update in updates.items():
        for name, tensor in update.sent.get("training", {}).items():
            if not tensor.isfinite().all():
                reasons.setdefault(client, f"sent {name!r}, which is not finite")
    if method.needs_losses:
        for client, update in updates.items():
            if not 0 <= update.declared.get("loss", math.nan) < math.inf:
                reasons.setdefault(client, "declares no loss ≥ 0 of the received model")
    if server.buffers is not None:
        for client, update in updates.items():
            if update.buffers is None:
                reasons.setdefault(client, "has no buffers")
        buffers = {client: u.buffers for client, u in updates.items() if u.buffers is not None}
        for client, reason in invalid_reasons(buffers, server.buffers).items():
            reasons.setdefault(client, f"has buffers that are wrong: the vector {reason}")
    return {client: reasons[client] for client in sorted(reasons)}


def check_finite(
    number: int,
    methods: Sequence[Method],
    server: Mapping[str, ServerState],
    updates: Mapping[str, Mapping[int, ClientUpdate]],
    kept: Mapping[str, Mapping[int, ClientState]],
) -> None:
    """Raise `Diverged` if any model is not finite; the message is about the first."""
    reasons: dict[str, dict[int, str]] = {}
    for m in methods:
        reasons[m.name] = invalid_updates(m, updates[m.name], server[m.name])
        by_client = {client: state.to_tensors() for client, state in kept[m.name].items() if not state.is_empty}
        for name in {name for tensors in by_client.values() for name in tensors}:
            vectors = {client: tensors[name] for client, tensors in by_client.items()}
            reasons[m.name] |= invalid_reasons(vectors, next(iter(vectors.values())))
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
