"""Screening: a client's update is compared with the others before it is aggregated.

One finite update can destroy a shared model: the mean of three models near w and one at 1e30 is near 1e30. Screening
bounds what one client can do, whatever the aggregation rule:

    length      an update u = w_n − w longer than k times the reference is clipped to that length; one longer than
                REJECTED_FACTOR · k times it is rejected. The reference is the median length of this round's updates and
                of the medians of the last rounds, so a round with few clients is compared with earlier ones. A model
                sent back as it was received is rejected too.
    direction   an update that points away from the others is rejected: the median of its cosines with them is below
                −0.1, while the median of theirs with each other is above 0.1. It needs four updates or more.
    samples     a claimed number of samples counts for at most k times the median of the claims.
    buffers     if buffers are averaged, the changes of statistics and those of counters have lengths too. They are
                compared with the medians of this round, if it has three updates or more.

It protects the mean and the tilted rules from a minority of clients whose updates stand out. It does not protect from
clients that stay within these bounds, or from a majority: use a robust rule against those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedtilt.parts import Tensors

if TYPE_CHECKING:
    from fedtilt.engine.client import ClientUpdate


REJECTED_FACTOR = 2.0  # times the length at which an update is clipped
OPPOSITE = -0.1  # a cosine below it: two updates work against each other
_UNCHANGED = 1e-6  # times the reference: an update shorter than that is none
_ROUNDS = 10  # how many medians of earlier rounds are kept


class Screened(NamedTuple):
    """The updates that may be aggregated, what was done to which client, and the lengths to compare with."""

    updates: dict[int, ClientUpdate]
    rejected: dict[int, str]  # client → reason
    bounded: dict[int, str]  # client → what was bounded
    slot: dict[str, Tensor]  # lengths (≤ _ROUNDS,): the median lengths of the updates of the last rounds


def screen(server: Tensors, updates: Mapping[int, ClientUpdate], k: float, slot: Tensors) -> Screened:
    """Reject or bound the updates that stand out.

    Args:
        server: the state of the server: `parameters`, and `buffers` if they are averaged
        updates: client → its update, all finite
        k: how many times longer than the median an update may be
        slot: the median lengths of the last rounds; empty in the first
    """
    clients = sorted(updates)
    received = server["parameters"].double()
    # float64: the square of 3e38 is beyond float32
    steps = torch.stack([updates[client].parameters.double() - received for client in clients])  # (C, S)
    lengths = steps.norm(dim=1)
    earlier = slot.get("lengths", lengths.new_zeros(0)).to(lengths)
    reference = float(torch.cat([lengths, earlier]).median()) if len(clients) > 2 or len(earlier) else None
    rejected = _rejected_by_length(clients, lengths, reference, k)
    rest = [i for i, client in enumerate(clients) if client not in rejected]
    rejected |= _rejected_by_direction([clients[i] for i in rest], steps[rest], lengths[rest])
    accepted, bounded = {}, {}
    buffers, wrong_buffers, clipped_buffers = _screen_buffers(server, updates, k)
    rejected |= {client: reason for client, reason in wrong_buffers.items() if client not in rejected}
    for i, client in enumerate(clients):
        if client in rejected:
            continue
        accepted[client], reason = _bound(updates[client], steps[i], lengths[i], received, reference, k)
        if client in buffers:
            accepted[client] = accepted[client]._replace(buffers=buffers[client])
        if reasons := [text for text in (reason, clipped_buffers.get(client)) if text]:
            bounded[client] = ", ".join(reasons)
    accepted, claims = _bound_samples(accepted, k)
    for client, reason in claims.items():
        bounded[client] = f"{bounded[client]}, {reason}" if client in bounded else reason
    kept = [float(lengths[i]) for i, client in enumerate(clients) if client not in rejected]
    median = torch.tensor(kept, dtype=torch.float64).median().reshape(1) if kept else lengths.new_zeros(0)
    lengths_now = torch.cat([earlier.cpu(), median.cpu()])[-_ROUNDS:].float()
    return Screened(accepted, rejected, bounded, {"lengths": lengths_now})


def _rejected_by_length(clients: list[int], lengths: Tensor, reference: float | None, k: float) -> dict[int, str]:
    if not reference:
        return {}
    rejected = {}
    for client, length in zip(clients, lengths.tolist(), strict=True):
        if length > REJECTED_FACTOR * k * reference:
            rejected[client] = f"sent an update {length / reference:.3g} times as long as the median"
        elif length < _UNCHANGED * reference:
            rejected[client] = "sent the model back as it received it"
    return rejected


def _rejected_by_direction(clients: list[int], steps: Tensor, lengths: Tensor) -> dict[int, str]:
    """Clients whose update is opposed to most others, while the others agree with each other."""
    if len(clients) < 4:
        return {}
    unit = steps / lengths.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    cosine = unit @ unit.T
    rejected = {}
    for i, client in enumerate(clients):
        others = [j for j in range(len(clients)) if j != i]
        to_others = float(cosine[i, others].median())
        pairs = torch.combinations(torch.tensor(others))
        among_others = float(cosine[pairs[:, 0], pairs[:, 1]].median())
        if to_others < OPPOSITE and among_others > -OPPOSITE:
            rejected[client] = f"sent an update that points away from the others (cosine {to_others:.2f})"
    return rejected


def _bound(
    update: ClientUpdate, step: Tensor, length: Tensor, received: Tensor, reference: float | None, k: float
) -> tuple[ClientUpdate, str]:
    """The update, clipped to k times the reference."""
    if not reference or float(length) <= k * reference:
        return update, ""
    clipped = (received + step * (k * reference / length)).to(update.parameters.dtype)
    reason = f"sent an update {float(length) / reference:.3g} times as long as the median: it was clipped"
    return update._replace(parameters=clipped), reason


def _screen_buffers(
    server: Tensors, updates: Mapping[int, ClientUpdate], k: float
) -> tuple[dict[int, Tensor], dict[int, str], dict[int, str]]:
    """Clipped buffers, clients to reject and clients whose buffers were clipped, with the reasons."""
    sent = {client: buffers for client, u in sorted(updates.items()) if (buffers := u.buffers) is not None}
    if "buffers" not in server or len(sent) < 3:
        return {}, {}, {}
    received = server["buffers"].double()
    values = torch.stack([buffers.double() for buffers in sent.values()])  # (C, B)
    counters = (values == values.round()).double().mean(0) > 0.5  # whole at most clients
    clipped, rejected, bounded = {}, dict[int, str](), dict[int, str]()
    for part in (counters, ~counters):
        steps = (values - received)[:, part]
        lengths = steps.norm(dim=1)
        reference = float(lengths.median())
        if not reference:
            continue
        for i, client in enumerate(sent):
            times = float(lengths[i]) / reference
            if times > REJECTED_FACTOR * k:
                rejected[client] = f"sent buffers that changed {times:.3g} times as much as the median"
            elif times > k:
                values[i, part] = received[part] + steps[i] * (k / times)
                clipped[client] = values[i].to(sent[client].dtype)
                bounded[client] = f"sent buffers that changed {times:.3g} times as much as the median: clipped"
    return clipped, rejected, bounded


def _bound_samples(updates: Mapping[int, ClientUpdate], k: float) -> tuple[dict[int, ClientUpdate], dict[int, str]]:
    """The updates, with claims of samples bounded by k times their median."""
    if len(updates) < 3:
        return dict(updates), {}
    median = float(torch.tensor([float(update.samples) for update in updates.values()]).median())
    most = k * median
    reasons = {
        client: f"claimed {update.samples:.12g} samples, of which {most:.12g} count"
        for client, update in updates.items()
        if update.samples > most
    }
    return {client: u._replace(samples=min(u.samples, most)) for client, u in updates.items()}, reasons
