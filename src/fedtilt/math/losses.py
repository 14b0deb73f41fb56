"""From per-sample losses to a client's loss: R(tau, lam), the paper's two-level tilted loss."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt import checks
from fedtilt.errors import InputError
from fedtilt.math.tilt import nested_tilt

_IGNORED = -100  # the label that torch leaves out by default
SampleLoss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) → (n,)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sample, shape (n,)."""
    return F.cross_entropy(logits, targets, reduction="none")


def client_loss(
    losses: Tensor, labels: Tensor, tau: float | Tensor, lam: float | Tensor, weights: Tensor | None = None
) -> Tensor:
    """R = 1/tau · log Σ_k n_k/n · exp(tau · R_k) with R_k = 1/lam · log 1/n_k Σ_{z in k} exp(lam · l(z))."""
    return nested_tilt(losses, [labels], [lam, tau], weights)


def _tilt(tilt: float | Tensor, what: str) -> float | Tensor:
    """A tilt as given, if it is a tensor; otherwise a number, or refused."""
    return tilt if isinstance(tilt, Tensor) else checks.number(tilt, what)


def _refuse_ignored(targets: Tensor, weights: Tensor | None) -> None:
    """Refuse samples that torch would leave out and that would be a class of their own here, unless they weigh 0.

    A trace, a vmap and a CUDA graph know no values, and look at none. torch itself refuses other negative labels.
    """
    capturing = targets.is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or capturing:
        return
    ignored = targets == _IGNORED
    try:
        found = bool((ignored if weights is None else ignored & (weights > 0)).any())
    except RuntimeError:  # inside vmap
        return
    if found:
        raise InputError(
            f"targets hold {_IGNORED}, and there is no ignore_index; leave these samples out with "
            f"criterion(logits, targets, weights=targets.ne({_IGNORED}).float())"
        )


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
        self.tau, self.lam, self.loss = _tilt(tau, "tau"), _tilt(lam, "lam"), loss
        self.outer = tuple(_tilt(tilt, "an outer tilt") for tilt in outer)

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
        labels = targets if classes is None else classes
        if labels.is_floating_point():
            raise InputError(
                f"{'targets' if classes is None else 'classes'} are {labels.dtype} of shape {tuple(labels.shape)}, not "
                "labels; pass whole numbers: criterion(logits, targets, classes=...)"
            )
        if not targets.is_floating_point():
            _refuse_ignored(targets, weights)
        losses = self.loss(outputs, targets)
        if losses.dim() != 1 or len(losses) != len(targets) or labels.dim() != 1:
            flat = "flatten them: criterion(logits.movedim(1, -1).flatten(0, -2), targets.flatten())"
            remedy = 'pass reduction="none"' if losses.dim() < 2 else flat
            raise InputError(
                f"loss must return one value per sample, got shape {tuple(losses.shape)} for {len(targets)} samples; "
                f"{remedy}"
            )
        return nested_tilt(losses, [labels, *groups], [self.lam, self.tau, *self.outer], weights)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"tau={self.tau}, lam={self.lam}" + (f", outer={self.outer}" if self.outer else "")
