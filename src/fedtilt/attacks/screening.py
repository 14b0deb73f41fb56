"""Screening: what a client sends is compared with what the others send, before any of it is used.

One finite update can destroy a shared model: the mean of three models near w and one at 1e30 is near 1e30. Screening
bounds what one client can do, whatever the aggregation rule and the components of a method:

    length      A vector longer than k times the reference is clipped to the reference, so that it counts as an ordinary
                one; one longer than GROSS · k times it is rejected. Vectors are the update u_n = w_n − w, every tensor
                that a component sends, and the changes of averaged buffers. The reference is the median length of the
                round; of updates, also of the medians of the last rounds. Two clients have no majority: there it is
                the shorter length.
    distance    An update that is farther from the geometric median of all than k times the median distance is moved
                back to the median distance. A component's tensor of the model's size that is too far, or too long,
                becomes the geometric median: an error in what a component remembers stays there.
    agreement   A client that works against the others for several rounds is rejected. Its agreement is

                    A_n = Σ ⟨u_n, m_n⟩ / Σ ‖u_n‖ · ‖m_n‖   over its rounds, each counting DECAY times the next,

                where m_n is the mean of the other updates, and no update is longer than the median. A client is
                suspected after ROUNDS_BEFORE rounds, if A_n < AGAINST while the median of the others' is > AGREED, and
                then until A_n > 0.
    samples     A claim counts for at most k times the median of the claims.
    losses      With the losses in descending order L_0 ≥ L_1 ≥ …, one above L_f + k · (L_f − the least) and above
                k/2 · L_f counts as L_f.

A robust rule compares the updates itself: before one they are named, or rejected, but not clipped, as long as fewer are
rejected than the rule tolerates. At most f clients of a round are rejected: `bad_share` of the method, or less than a
third; a rule with `bad_share` excludes that many less. The thresholds are those at which honest
clients were practically never rejected: `python -m benchmarks.screening`. Screening does not protect from a majority,
or from clients that stay within these bounds: use a robust rule against those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedtilt.math.gram_solvers import geometric_median_weights
from fedtilt.state import ServerState, Slot

if TYPE_CHECKING:
    from fedtilt.engine.client import ClientUpdate


GROSS = 10.0  # times the length at which a vector is clipped
AGAINST, AGREED = -0.25, 0.3
DECAY = 0.95
ROUNDS_BEFORE = 3
_UNCHANGED = 1e-6  # times the reference: an update shorter than that is none
_LENGTHS = 10  # how many medians of earlier rounds are kept
_LEAST_FOR_DISTANCES = 4
_TINY = torch.finfo(torch.float64).tiny


class Screened(NamedTuple):
    """The updates that may be aggregated, what was done to which client, and what is remembered."""

    updates: dict[int, ClientUpdate]
    rejected: dict[int, str]  # client → reason
    bounded: dict[int, str]  # client → what was bounded
    slot: dict[str, Tensor]  # lengths (≤ 10,); agreement (N, 3): inner products, lengths, rounds; suspected (N,)


def tolerated_count(bad_shares: Sequence[float], selected: int) -> int:
    """How many of a round's clients may be rejected: the share that the method is set for, or less than a third.

    >>> tolerated_count([], 10), tolerated_count([], 3), tolerated_count([], 2), tolerated_count([0.2], 10)
    (3, 1, 0, 2)
    """
    if bad_shares:
        return int(min(bad_shares) * selected + 1e-9)
    return max(1, (selected - 1) // 3) if selected > 2 else 0


def screen(
    server: ServerState, updates: Mapping[int, ClientUpdate], k: float, *, clients: int | None = None,
    bad: int | None = None, trusted: Sequence[str] = (), tolerated: int = 0,
) -> Screened:  # fmt: skip
    """Reject or bound what stands out.

    Args:
        server: the state of the server, with what was remembered in its slot "screening"
        updates: client → its update, all finite
        k: how many times longer than the median a vector may be
        clients: how many there are; None: up to the last of these
        bad: how many may be rejected; None: less than a third
        trusted: slots whose messages are not screened
        tolerated: how many bad updates the rule that follows tolerates; if fewer are rejected, none is clipped
    """
    names = sorted(updates)
    bad = min(bad if bad is not None else tolerated_count((), len(names)), max(0, len(names) - 2))
    state = _Round(names, k, bad, dict(updates))
    received, slot = server.parameters.double(), server.slot("screening")
    # float64: the square of 3e38 is beyond float32
    steps = torch.stack([updates[client].parameters.double() - received for client in names])  # (C, S)
    earlier = slot.get("lengths", torch.zeros(0)).double().cpu()
    population = max(max(names) + 1 if clients is None else clients, len(slot.get("suspected", ())))
    rows = {"agreement": torch.zeros(population, 3).double(), "suspected": torch.zeros(population)}
    for name in rows.keys() & slot.keys():  # clients may have joined since the last round
        rows[name][: len(slot[name])] = slot[name]
    slot = {**slot, **rows}
    agreement, suspected = _agreement(slot, names, steps)
    state.suspects = {n: float(agreement[n, 0] / agreement[n, 1]) for n in names if suspected[n]}
    _screen_buffers(state, server, updates)
    messages = {(of_slot, name) for u in updates.values() for of_slot, sent in u.sent.items() for name in sent}
    for of_slot, name in sorted(message for message in messages if message[0] not in trusted):
        sent = torch.stack([updates[client].sent[of_slot][name].double() for client in names])
        sent, _ = state.bound(repr(name), sent, by_distance=sent[0].shape == received.shape)
        state.replace(name, sent, of_slot)
    steps, lengths = state.bound("an update", steps, earlier, by_distance=True)
    rejected = state.rejected()
    if len(rejected) >= tolerated:
        state.replace("parameters", received + steps)
    accepted = {client: update for client, update in state.updates.items() if client not in rejected}
    accepted = state.bound_samples(state.bound_losses(accepted))
    kept = lengths[[client not in rejected for client in names]]
    kept = torch.cat([earlier, kept.median().reshape(1)])[-_LENGTHS:].float() if len(kept) else earlier.float()
    bounded = {client: ", ".join(texts) for client, texts in state.bounded.items() if texts and client in accepted}
    return Screened(accepted, rejected, bounded, {"lengths": kept, "agreement": agreement, "suspected": suspected})


class _Round:
    """The updates of a round while they are screened, and what was found."""

    def __init__(self, clients: list[int], k: float, bad: int, updates: dict[int, ClientUpdate]) -> None:
        self._clients, self._k, self._bad, self.updates = clients, k, bad, updates
        self.bounded: dict[int, list[str]] = {client: [] for client in clients}
        self._gross: dict[int, tuple[float, str]] = {}  # client → how many times the reference, and what
        self._unchanged: list[int] = []
        self._changed: list[int] = []  # clients with another vector since the last `bound`
        self.suspects: dict[int, float] = {}  # client → its agreement with the others

    def bound(
        self, what: str, vectors: Tensor, earlier: Tensor | None = None, *, by_distance: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The vectors (C, …), none longer or farther from the others than allowed; and their lengths as sent."""
        flat = vectors.reshape(len(vectors), -1)
        lengths = flat.norm(dim=1).cpu()
        reference = self._reference(lengths, earlier)
        self._changed = []
        if reference is None:
            return vectors, lengths
        scale = torch.where(lengths > self._k * reference, reference / lengths.clamp_min(_TINY), 1.0)
        for client, length, factor in zip(self._clients, lengths.tolist(), scale.tolist(), strict=True):
            times = length / reference if reference else torch.inf
            if factor < 1:
                self._change(client, f"sent {what} {times:.3g} times as long as the median")
            if times > GROSS * self._k and factor < 1 and times > self._gross.get(client, (0.0, ""))[0]:
                self._gross[client] = times, f"sent {what} {times:.3g} times as long as the median"
            if earlier is not None and length < _UNCHANGED * reference:
                self._unchanged.append(client)
        if self._changed:
            flat = flat * scale.to(flat)[:, None]
        if by_distance and len(flat) >= _LEAST_FOR_DISTANCES:
            flat = self._bound_distances(what, flat, to_centre=earlier is None)
        return flat.reshape(vectors.shape), lengths

    def _reference(self, lengths: Tensor, earlier: Tensor | None) -> float | None:
        """The length to compare with; None: there is nothing."""
        if earlier is not None:  # updates: there are some
            known = torch.cat([lengths[lengths > 0], earlier])
            return float(known.median()) if len(known) > 1 else None  # of two, the shorter
        if len(lengths) < 2:
            return None
        # where most send nothing: at least one of the longest bad + 1 is of an honest client
        longest = lengths.sort(descending=True).values[min(max(1, self._bad), len(lengths) - 1)]
        return float(lengths.median()) or float(longest)

    def _bound_distances(self, what: str, vectors: Tensor, *, to_centre: bool) -> Tensor:
        """The vectors, those that are too far moved back; `to_centre`, all that stand out become the centre."""
        matrix = (vectors @ vectors.T).cpu()
        centre = geometric_median_weights(matrix, torch.full((len(matrix),), 1 / len(matrix), dtype=torch.float64))
        inner = matrix @ centre
        distances = (matrix.diagonal() - 2 * inner + centre @ inner).clamp_min(0).sqrt()
        median = float(distances.median())
        for client, distance in zip(self._clients, distances.tolist(), strict=True):
            if distance > self._k * median > 0:
                times = distance / median
                self._change(client, f"sent {what} {times:.3g} times as far from the others as the median")
        if not self._changed:
            return vectors
        share = torch.where(distances > self._k * median, median / distances.clamp_min(_TINY), 1.0)
        if to_centre:
            share[[client in self._changed for client in self._clients]] = 0.0
        middle = centre.to(vectors) @ vectors
        return middle + (vectors - middle) * share.to(vectors)[:, None]

    def _change(self, client: int, reason: str) -> None:
        self.bounded[client].append(reason)
        self._changed.append(client)

    def replace(self, name: str, vectors: Tensor, slot: str | None = None) -> None:
        """Put the vectors that the last `bound` changed into the updates, or into what they have in a slot."""
        for client, vector in zip(self._clients, vectors, strict=True):
            if client not in self._changed:
                continue
            self.bounded[client][-1] += ": clipped"
            update = self.updates[client]
            if slot is None:
                self.updates[client] = update._replace(**{name: vector.to(getattr(update, name).dtype)})
            else:
                tensors = {**update.sent[slot], name: vector.to(update.sent[slot][name].dtype)}
                self.updates[client] = update._replace(sent={**update.sent, slot: tensors})

    def rejected(self) -> dict[int, str]:
        """The clients that stand out most, at most as many as may be bad, and why."""
        gross = sorted(self._gross, key=lambda client: -self._gross[client][0])
        reasons = {client: self._gross[client][1] for client in gross}
        for client, agreement in sorted(self.suspects.items(), key=lambda item: item[1]):
            text = f"has sent updates against the others for several rounds (agreement {agreement:.2f})"
            reasons.setdefault(client, text)
        for client in self._unchanged:
            reasons.setdefault(client, "sent the model back as it received it")
        return dict(sorted(list(reasons.items())[: self._bad]))

    def bound_samples(self, updates: Mapping[int, ClientUpdate]) -> dict[int, ClientUpdate]:
        """The updates, with claims of samples bounded by k times their median."""
        if len(updates) < 3:
            return dict(updates)
        most = self._k * float(torch.tensor([float(update.samples) for update in updates.values()]).median())
        found = dict(updates)
        for client, update in updates.items():
            if update.samples > most:
                self.bounded[client].append(f"claimed {update.samples:.12g} samples, of which {most:.12g} count")
                found[client] = update._replace(samples=most)
        return found

    def bound_losses(self, updates: Mapping[int, ClientUpdate]) -> dict[int, ClientUpdate]:
        """The updates, with declared losses bounded by what the others allow."""
        losses = sorted((u.declared["loss"] for u in updates.values() if "loss" in u.declared), reverse=True)
        if len(losses) < 2:
            return dict(updates)
        reference = losses[min(max(1, self._bad), len(losses) - 1)]
        most = max(reference + self._k * (reference - losses[-1]), self._k / 2 * reference)
        found = dict(updates)
        for client, update in updates.items():
            if (loss := update.declared.get("loss", 0.0)) > most:
                self.bounded[client].append(f"declared a loss of {loss:.4g}, of which {reference:.4g} counts")
                found[client] = update._replace(declared={**update.declared, "loss": reference})
        return found


def _agreement(slot: Slot, clients: list[int], steps: Tensor) -> tuple[Tensor, Tensor]:
    """The agreement (N, 3) of all clients with the others after this round, and who is suspected, (N,)."""
    agreement, suspected = slot["agreement"].double().cpu().clone(), slot["suspected"].cpu().clone()
    if len(clients) < 3:
        return agreement, suspected
    matrix = (steps @ steps.T).cpu()
    lengths = matrix.diagonal().clamp_min(0).sqrt()
    scale = (lengths.median() / lengths.clamp_min(_TINY)).clamp(max=1)
    clipped = scale[:, None] * matrix * scale
    # m_n without its factor 1 / (C − 1), which cancels
    inner = clipped.sum(1) - clipped.diagonal()
    sq_length = (clipped.sum() - inner - clipped.sum(1)).clamp_min(0)
    round = torch.stack([inner, scale * lengths * sq_length.sqrt(), torch.ones_like(inner)], 1)
    agreement[clients] = agreement[clients] * torch.tensor([DECAY, DECAY, 1.0]).double() + round
    now = agreement[clients, 0] / agreement[clients, 1].clamp_min(_TINY)
    for i, client in enumerate(clients):
        others = float(torch.cat([now[:i], now[i + 1 :]]).median())
        stands_out = agreement[client, 2] >= ROUNDS_BEFORE and now[i] < AGAINST and others > AGREED
        suspected[client] = float(stands_out or (bool(suspected[client]) and now[i] <= 0))
    return agreement, suspected


def _screen_buffers(state: _Round, server: ServerState, updates: Mapping[int, ClientUpdate]) -> None:
    """Bound the changes of averaged buffers: those of statistics, and those of counters."""
    sent = [buffers for _, u in sorted(updates.items()) if (buffers := u.buffers) is not None]
    if server.buffers is None or len(sent) < 3:
        return
    received, values = server.buffers.double(), torch.stack([buffers.double() for buffers in sent])  # (C, B)
    counters = (values == values.round()).double().mean(0) > 0.5  # whole at most clients
    for part, what in ((counters, "counters"), (~counters, "statistics")):
        if part.any():
            changes, _ = state.bound(f"a change of {what}", (values - received)[:, part])
            values[:, part] = received[part] + changes
            state.replace("buffers", values)
