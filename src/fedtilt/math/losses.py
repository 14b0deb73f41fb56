"""The losses of samples of every task, and the tilted loss of a batch as a PyTorch criterion."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt import checks
from fedtilt.data.targets import IGNORED
from fedtilt.errors import InputError
from fedtilt.math.tilt import nested_tilt

SampleLoss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) → (n,)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sample, shape (n,)."""
    return F.cross_entropy(logits, targets, reduction="none")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error of every number; outputs are (n, 1), targets (n,)."""
    return F.mse_loss(outputs[:, 0], targets, reduction="none")


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the tokens of every sample; logits are (n, T, V), targets (n, T), −100: no token."""
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.reshape(targets.shape).sum(1) / (targets != IGNORED).sum(1).clamp_min(1)


def label_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy of the labels of every sample; logits and targets are (n, labels)."""
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)


def _check_tilt(tilt: float | Tensor, name: str) -> float | Tensor:
    """The tilt: a tensor is not checked, anything else must be a number."""
    return tilt if isinstance(tilt, Tensor) else checks.number(tilt, name)


def _reject_ignored(targets: Tensor, weights: Tensor | None) -> None:
    """Reject labels that torch ignores by default, unless they have weight 0: here they would be one more class.

    Values cannot be read inside a trace, a vmap or a CUDA graph, so nothing is checked there. torch itself rejects
    other negative labels.
    """
    capturing = targets.is_cuda and torch.cuda.is_current_stream_capturing()
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or capturing:
        return
    ignored = targets == IGNORED
    try:
        has_ignored = bool((ignored if weights is None else ignored & (weights > 0)).any())
    except RuntimeError:  # inside vmap
        return
    if has_ignored:
        raise InputError(
            f"targets contain {IGNORED}, and TiltedLoss has no ignore_index; exclude these samples with "
            f"criterion(logits, targets, weights=targets.ne({IGNORED}).float())"
        )


class TiltedLoss(nn.Module):
    """A PyTorch criterion: fair to the classes with `tau` > 0, robust to mislabelled samples with `lam` < 0.

    The two-level tilted loss of FedTilt (arXiv 2503.13537), and with tau = lam that of TERM (arXiv 2007.01162):

        R = 1/tau · log Σ_k n_k/n · exp(tau · R_k)  with  R_k = 1/lam · log 1/n_k Σ_{z in k} exp(lam · l(z))

    0, 0 is the ordinary mean. To exclude samples, give them weight 0; there is no `ignore_index`.

    Args:
        tau: The tilt over the classes.
        lam: The tilt over the samples of each class.
        outer: One more tilt for each of the `groups` passed to the call.
        loss: Per-sample losses (n,) from outputs and targets; cross-entropy by default.

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
        self.tau, self.lam, self.loss = _check_tilt(tau, "tau"), _check_tilt(lam, "lam"), loss
        self.outer = tuple(_check_tilt(tilt, "an outer tilt") for tilt in outer)

    def forward(
        self,
        outputs: Tensor,
        targets: Tensor,
        groups: Sequence[Tensor] = (),
        weights: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        """The tilted loss of a batch.

        Args:
            outputs: What the model returns, such as logits.
            targets: What `loss` compares the outputs with; by default also the class labels.
            groups: Labels of the outer levels, from fine to coarse, such as site, then country.
            weights: Non-negative sample weights.
            classes: Class labels, if the targets are none.
        """
        if len(groups) != len(self.outer):
            raise InputError(f"TiltedLoss has {len(self.outer)} outer tilts, got {len(groups)} groups")
        labels = targets if classes is None else classes
        if labels.is_floating_point():
            raise InputError(
                f"{'targets' if classes is None else 'classes'} are {labels.dtype} of shape {tuple(labels.shape)}, not "
                "labels; pass whole numbers: criterion(logits, targets, classes=...)"
            )
        if not targets.is_floating_point():
            _reject_ignored(targets, weights)
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
