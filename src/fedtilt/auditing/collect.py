"""What the audit collects about a client's samples while it trains, as running sums over the rounds it takes part in.

The received model has not been trained on the client's labels in this round, so what it predicts is nearly out of
sample: it says what a label looks like to the other clients. The model that the client trains, its personal one if the
method has them, says how the label is learnt: its loss, the weight that the tilts give it, and its margin, the logit of
the label minus the largest other one (Pleiss et al., "Identifying Mislabeled Data using the Area Under the Margin
Ranking", NeurIPS 2020, arXiv 2001.10528).

The sums are the slot `audit` of the client's state, and so stay with it, are checkpointed and resumed. They need
4 · (classes + 5) bytes per sample and method, however many rounds there are:

p        (n, K)  sum of the probabilities of the received model, the r-th times r: later models are better
learnt   (n, 5)  sums of loss, weight and margin of the client's model, then its first and its last margin
rounds   ()      how many rounds were summed
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data.inputs import Inputs, concatenate, split
from fedtilt.errors import InputError
from fedtilt.math.tilt import nested_tilt_grad
from fedtilt.models import copy_with_parameters, logits, parameters_to_vector, vector_to_parameters
from fedtilt.parts import Parts, vector_to_buffers
from fedtilt.state import ClientState, Slot
from fedtilt.training import LocalJob, Trained
from fedtilt.training.precision import fp32_deterministic

_SAMPLES = 4096  # at a time, in a forward pass and of clients together
_LEAST_P = 1e-6  # a probability below it is no more evidence


class Learnt(NamedTuple):
    """How a client's model has learnt its samples, (n,) each; `loss`, `weight` and `margin` are means over rounds."""

    loss: Tensor
    weight: Tensor  # of the tilts, relative to the mean: 1 is an ordinary sample, 0 one that is ignored
    margin: Tensor
    first_margin: Tensor
    last_margin: Tensor


class Collected(NamedTuple):
    """What was collected about the samples of a client."""

    log_p: Tensor  # (n, K) logarithm of the mean probabilities of the received model
    learnt: Learnt
    rounds: int

    @classmethod
    def of(cls, client_state: ClientState) -> "Collected | None":
        """From a client's state; None if nothing was collected."""
        if not (sums := client_state.slot("audit")):
            return None
        rounds = int(sums["rounds"])
        loss, weight, margin, first, last = sums["learnt"].double().unbind(1)
        learnt = Learnt(loss / rounds, weight / rounds, margin / rounds, first, last)
        p = sums["p"].double() / (rounds * (rounds + 1) / 2)
        return cls(p.clamp_min(_LEAST_P).log(), learnt, rounds)


class ClientRound(NamedTuple):
    """A client that has trained in a round: its jobs and models by method, and its samples."""

    plans: Mapping[str, Mapping[str, LocalJob]]
    trained: Mapping[str, Mapping[str, Trained]]
    kept: Mapping[str, ClientState]  # before this round, by method
    x: Inputs
    y: Tensor
    groups: Mapping[str, Tensor]  # of its samples, by the column of groups


class Collector:
    """Collects for the audit, in one forward pass per model; clients that receive the same model share its pass.

    Args:
        model: the architecture
        parts: its parts
    """

    def __init__(self, model: nn.Module, parts: Parts) -> None:
        # a copy, since the module that is being trained must not change; faster than `functional_logits`
        self._theta = parameters_to_vector(model)
        self._model = copy_with_parameters(model, vector_to_parameters(model, self._theta)).eval()
        self._buffers = {name: b for name, b in self._model.named_buffers() if name in parts.buffers}
        self._buffer_names = tuple(parts.buffers)

    def collect(self, clients: Iterable[ClientRound]) -> Iterator[dict[str, dict[str, Tensor]]]:
        """The sums of every client by method, with this round added.

        Args:
            clients: those of the round; those that have `_SAMPLES` samples together are held at a time
        """
        together: list[ClientRound] = []
        samples = 0
        for client in clients:
            together.append(client)
            samples += len(client.y)
            if samples >= _SAMPLES:
                yield from self._collect(together)
                together, samples = [], 0
        if together:
            yield from self._collect(together)

    def _collect(self, clients: Sequence[ClientRound]) -> list[dict[str, dict[str, Tensor]]]:
        y = torch.cat([client.y for client in clients])
        sizes = [len(client.y) for client in clients]
        sums: list[dict[str, dict[str, Tensor]]] = [{} for _ in clients]
        received: dict[tuple[int, ...], Tensor] = {}  # methods that send the same models share their passes
        with fp32_deterministic(y.device), torch.no_grad():  # in this order: the first turns gradients on
            for method, jobs in clients[0].plans.items():
                sent = [client.plans[method]["shared"] for client in clients]
                key = tuple(id(tensor) for w in sent for tensor in (w.start, w.buffers))
                if key not in received:
                    received[key] = self._outputs([(w.start, w.buffers) for w in sent], clients).softmax(1)
                used = "personal" if "personal" in jobs else "shared"
                models = [client.trained[method][used] for client in clients]
                outputs = self._outputs([(model.parameters, model.buffers) for model in models], clients)
                learnt = _learnt(outputs, jobs[used], y, clients)
                parts = zip(received[key].cpu().split(sizes), learnt.cpu().split(sizes), clients, sums, strict=True)
                for p, client_learnt, client, client_sums in parts:
                    client_sums[method] = _add(client.kept[method].slot("audit"), p, client_learnt)
        return sums

    def _outputs(self, models: Sequence[tuple[Tensor, Tensor | None]], clients: Sequence[ClientRound]) -> Tensor:
        """The logits of each client's samples by its model, one client after the other; one pass for equal models."""
        outputs: list[Tensor] = []
        for _, run in groupby(zip(models, clients, strict=True), key=lambda pair: tuple(map(id, pair[0]))):
            equal = list(run)
            weights, buffers = equal[0][0]
            self._theta.copy_(weights)
            if buffers is not None:
                values = vector_to_buffers(self._model, self._buffer_names, buffers)
                for name, buffer in self._buffers.items():
                    buffer.copy_(values[name])
            x = concatenate([client.x for _, client in equal])
            samples = sum(len(client.y) for _, client in equal)
            parts = [x] if samples <= _SAMPLES else split(x, _SAMPLES)
            outputs += [logits(self._model, part).float() for part in parts]
        return torch.cat(outputs)


def margins(scores: Tensor, y: Tensor) -> Tensor:
    """The score of each label minus the largest other one: negative if another class looks more likely.

    >>> margins(torch.tensor([[2.0, 5.0, 1.0]]), torch.tensor([0]))
    tensor([-3.])
    """
    own = scores.gather(1, y[:, None])[:, 0]
    return own - scores.scatter(1, y[:, None], -torch.inf).amax(1)


def _learnt(outputs: Tensor, job: LocalJob, y: Tensor, clients: Sequence[ClientRound]) -> Tensor:
    """Loss, weight relative to the mean of its client, and margin of every sample of these clients, (n, 3)."""
    losses = job.loss(outputs, y)
    weights = torch.ones_like(losses)
    if any(job.tilts):
        groups = {name: torch.cat([client.groups[name] for client in clients]) for name in clients[0].groups}
        sizes = torch.tensor([len(client.y) for client in clients], device=y.device)
        client = torch.arange(len(clients), device=y.device).repeat_interleave(sizes)
        # clients are a further level without a tilt: each then weighs as much as it has samples
        weights = nested_tilt_grad(losses, [*job.groups_of(y, groups), client], [*job.tilts, 0.0]) * len(losses)
    return torch.stack([losses, weights, margins(outputs, y)], 1)


def _add(before: Slot, p: Tensor, learnt: Tensor) -> dict[str, Tensor]:
    """The sums with one more round; `p` and `learnt` may be views."""
    if not before:
        margin = learnt[:, 2:]
        rounds = torch.ones((), dtype=torch.int64)
        return {"p": p.clone(), "learnt": torch.cat([learnt, margin, margin], 1), "rounds": rounds}
    if before["p"].shape != p.shape:
        raise InputError(
            f"the audit has {len(before['p'])} samples of this client, and now it has {len(p)}; "
            "its data was changed since the run was started: restore it, or start a new run"
        )
    rounds = before["rounds"].cpu() + 1
    earlier = before["learnt"].cpu()
    sums = torch.cat([earlier[:, :3] + learnt, earlier[:, 3:4], learnt[:, 2:]], 1)
    return {"p": before["p"].cpu().add(p, alpha=int(rounds)), "learnt": sums, "rounds": rounds}
