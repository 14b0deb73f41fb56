"""From per-sample losses to a client's loss: R(tau, lam), the paper's two-level tilted loss."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.tilt import nested_tilt

SampleLoss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) → (n,)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sample, shape (n,)."""
    return F.cross_entropy(logits, targets, reduction="none")


def client_loss(
    losses: Tensor, labels: Tensor, tau: float | Tensor, lam: float | Tensor, weights: Tensor | None = None
) -> Tensor:
    """R = 1/tau · log Σ_k n_k/n · exp(tau · R_k) with R_k = 1/lam · log 1/n_k Σ_{z in k} exp(lam · l(z))."""
    return nested_tilt(losses, [labels], [lam, tau], weights)


class TiltedLoss(nn.Module):
    """A criterion for any training loop: fair to the classes with `tau` > 0, robust to bad samples with `lam` < 0.

    `lam` tilts over the samples of each class, `tau` over the classes; 0, 0 is the ordinary mean. `loss` gives the
    per-sample losses (cross-entropy by default). More levels nest around these two: `outer` holds a tilt for each of
    the `groups` (labels from fine to coarse, such as site, then country) passed to the call. Samples to leave out get
    weight 0; there is no `ignore_index`.

    >>> import torch
    >>> logits, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> TiltedLoss()(logits, targets) == F.cross_entropy(logits, targets)
    tensor(True)
    >>> TiltedLoss(tau=5.0, lam=-2.0)
    TiltedLoss(tau=5.0, lam=-2.0)
    """

    def __init__(
        self,
        tau: float | Tensor = 0.0,
        lam: float | Tensor = 0.0,
        *,
        outer: Sequence[float | Tensor] = (),
        loss: SampleLoss = cross_entropy,
    ) -> None:
        super().__init__()
        self.tau, self.lam, self.outer, self.loss = tau, lam, tuple(outer), loss

    def forward(
        self,
        outputs: Tensor,
        targets: Tensor,
        groups: Sequence[Tensor] = (),
        weights: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        """The tilted loss of a batch; `classes` are the labels to be fair to where the targets are not labels."""
        if len(groups) != len(self.outer):
            raise InputError(f"TiltedLoss has {len(self.outer)} outer tilts, got {len(groups)} groups")
        losses = self.loss(outputs, targets)
        if losses.dim() != 1 or len(losses) != len(targets):
            raise InputError(
                f"loss must return one value per sample, got shape {tuple(losses.shape)} for {len(targets)} samples; "
                'pass reduction="none"'
            )
        labels = targets if classes is None else classes
        if labels.is_floating_point() or labels.dim() != 1:
            raise InputError(f"targets are {labels.dtype} of shape {tuple(labels.shape)}: pass integer classes=")
        return nested_tilt(losses, [labels, *groups], [self.lam, self.tau, *self.outer], weights)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"tau={self.tau}, lam={self.lam}" + (f", outer={self.outer}" if self.outer else "")
