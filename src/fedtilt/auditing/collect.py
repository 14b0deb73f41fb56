"""What the audit collects about a client's samples while it trains, as running sums over the rounds it takes part in.

The received model has not been trained on the client's labels in this round, so what it predicts is nearly out of
sample: it says what a label looks like to the other clients. The model that the client trains, its personal one if the
method has them, says how the label is learnt: its loss, the weight that the tilts give it, and its margin, the logit of
the label minus the largest other one (Pleiss et al., "Identifying Mislabeled Data using the Area Under the Margin
Ranking", NeurIPS 2020, arXiv 2001.10528).

The sums are part of what a client keeps, and so stay with it, are checkpointed and resumed. They need
4 · (classes + 5) bytes per sample and method, however many rounds there are:

audit_p        (n, K)  sum of the probabilities of the received model, the r-th times r: later models are better
audit_learnt   (n, 5)  sums of loss, weight and margin of the client's model, then its first and its last margin
audit_rounds   ()      how many rounds were summed
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data.inputs import Inputs, take
from fedtilt.errors import InputError
from fedtilt.math.tilt import nested_tilt_grad
from fedtilt.models import copy_with_parameters, logits, parameters_to_vector, vector_to_parameters
from fedtilt.parts import Parts, Tensors, vector_to_buffers
from fedtilt.training import LocalJob, Trained
from fedtilt.training.precision import fp32_deterministic

_SAMPLES = 4096  # in a forward pass
_LEAST_P = 1e-6  # a probability below it is no more evidence


NAMES = ("audit_p", "audit_learnt", "audit_rounds")


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
    def of(cls, client_state: Tensors) -> "Collected | None":
        """From what a client keeps; None if nothing was collected."""
        if "audit_p" not in client_state:
            return None
        rounds = int(client_state["audit_rounds"])
        loss, weight, margin, first, last = client_state["audit_learnt"].double().unbind(1)
        learnt = Learnt(loss / rounds, weight / rounds, margin / rounds, first, last)
        p = client_state["audit_p"].double() / (rounds * (rounds + 1) / 2)
        return cls(p.clamp_min(_LEAST_P).log(), learnt, rounds)


class Collector:
    """Collects for the audit, in one forward pass per model.

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

    def collect(
        self,
        plans: Mapping[str, Mapping[str, LocalJob]],
        trained: Mapping[str, Mapping[str, Trained]],
        kept: Mapping[str, Tensors],
        x: Inputs,
        y: Tensor,
        groups: Mapping[str, Tensor],
    ) -> dict[str, dict[str, Tensor]]:
        """The sums of a client by method, with this round added.

        Args:
            plans: its jobs by method and model
            trained: the trained models of these jobs
            kept: what the client kept before this round, by method
            x: its samples in this round
            y: their labels
            groups: their groups, by the column of groups
        """
        received: dict[int, Tensor] = {}  # methods that send the same model share its pass
        sums = {}
        for method, jobs in plans.items():
            used = "personal" if "personal" in jobs else "shared"
            w = jobs["shared"]
            if id(w.start) not in received:
                received[id(w.start)] = self._logits(w.start, w.buffers, x).softmax(1)
            model = trained[method][used]
            learnt = _learnt(self._logits(model.parameters, model.buffers, x), jobs[used], y, groups)
            sums[method] = _add(kept[method], received[id(w.start)], learnt)
        return sums

    def _logits(self, weights: Tensor, buffers: Tensor | None, x: Inputs) -> Tensor:
        samples = len(next(iter(x.values())) if isinstance(x, dict) else x)
        with fp32_deterministic(weights.device), torch.no_grad():  # in this order: the first turns gradients on
            self._theta.copy_(weights)
            if buffers is not None:
                values = vector_to_buffers(self._model, self._buffer_names, buffers)
                for name, buffer in self._buffers.items():
                    buffer.copy_(values[name])
            parts = [
                logits(self._model, take(x, slice(start, start + _SAMPLES))).float()
                for start in range(0, samples, _SAMPLES)
            ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def margins(scores: Tensor, y: Tensor) -> Tensor:
    """The score of each label minus the largest other one: negative if another class looks more likely.

    >>> margins(torch.tensor([[2.0, 5.0, 1.0]]), torch.tensor([0]))
    tensor([-3.])
    """
    own = scores.gather(1, y[:, None])[:, 0]
    return own - scores.scatter(1, y[:, None], -torch.inf).amax(1)


def _learnt(outputs: Tensor, job: LocalJob, y: Tensor, groups: Mapping[str, Tensor]) -> Tensor:
    """Loss, weight relative to the mean, and margin of every sample, (n, 3)."""
    losses = job.loss(outputs, y)
    if any(job.tilts):
        weights = nested_tilt_grad(losses, job.groups_of(y, groups), job.tilts) * len(losses)
    else:
        weights = torch.ones_like(losses)
    return torch.stack([losses, weights, margins(outputs, y)], 1)


def _add(before: Tensors, p: Tensor, learnt: Tensor) -> dict[str, Tensor]:
    """The sums with one more round."""
    margin = learnt[:, 2:]
    rounds = torch.ones((), dtype=torch.int64)
    p, learnt = p.cpu(), torch.cat([learnt, margin, margin], 1).cpu()
    if "audit_p" in before:
        if before["audit_p"].shape != p.shape:
            raise InputError(
                f"the audit has {len(before['audit_p'])} samples of this client, and now it has {len(p)}; "
                "its data was changed since the run was started: restore it, or start a new run"
            )
        earlier = before["audit_learnt"].cpu()
        rounds = before["audit_rounds"].cpu() + rounds
        p = before["audit_p"].cpu() + int(rounds) * p
        learnt = torch.cat([earlier[:, :3] + learnt[:, :3], earlier[:, 3:4], learnt[:, 4:]], 1)
    return {"audit_p": p, "audit_learnt": learnt, "audit_rounds": rounds}
