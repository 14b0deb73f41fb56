"""Losses of samples, which the tilts act on: (outputs, targets) → (n,); p is the probability of the label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtilt.config.named import NamedSettings
from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.math.losses import SampleLoss, cross_entropy, label_cross_entropy, squared, token_cross_entropy

BALANCED = "balanced"
REVERSE = 4.0  # −log 0 of the reverse cross-entropy, as in the paper of sce


@dataclass(frozen=True, kw_only=True)
class Loss(NamedSettings):
    """A loss by name; a subclass has `__call__`."""

    task: ClassVar[str] = "classification"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, (n,)."""
        raise InputError(f"loss {self.label!r} has no __call__(outputs, targets)")

    @property
    def function(self) -> SampleLoss:
        """The loss as backends know it: a plain function if it has no settings."""
        return self


@dataclass(frozen=True, kw_only=True)
class ClassLoss(Loss):
    """A loss of classes, with a factor for each."""

    class_weights: tuple[float, ...] | str = setting(
        (), 'a factor of the loss for every class; "balanced": all classes count the same; empty: 1 each', gt=0,
        allowed='a list of numbers > 0, such as [1.0, 5.0], or "balanced"', choices=(BALANCED,),
    )  # fmt: skip

    @property
    def weights(self) -> tuple[float, ...]:
        """The class weights as numbers; empty: 1 each."""
        if isinstance(self.class_weights, str):
            raise InputError(
                f"class_weights = {self.class_weights!r} counts the samples of all clients, which sites do not send; "
                "give the weights as numbers"
            )
        return self.class_weights

    def for_counts(self, counts: Sequence[float]) -> Self:
        """The same with numbers in place of "balanced": n / (classes · n_k), as in scikit-learn.

        >>> CrossEntropy(class_weights="balanced").for_counts([90, 10]).class_weights
        (0.5555555555555556, 5.0)

        Args:
            counts: how much the training samples of every class count at all clients
        """
        if self.class_weights != BALANCED:
            return self
        present = [count for count in counts if count]
        balanced = tuple(sum(present) / (len(present) * count) if count else 1.0 for count in counts)
        return self.with_settings(class_weights=balanced)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, (n,)."""
        return self.weighted(outputs, targets, outputs.new_tensor(self.weights) if self.weights else None)

    def weighted(self, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The loss of every sample, (n,), with the weights of classes as a tensor on its device."""
        losses = self._unweighted(outputs, targets)
        return losses if weights is None else losses * weights[targets]

    def _unweighted(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss without the weights of classes."""
        return cross_entropy(logits, targets)

    def check_classes(self, classes: int) -> None:
        """Raise InputError if there are class weights for another number of classes."""
        if self.weights and len(self.weights) != classes:
            raise InputError(f"class_weights has {len(self.weights)} values for {classes} classes; give one each")


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(ClassLoss):
    """−log p of the label (label smoothing: Szegedy et al., CVPR 2016, arXiv 1512.00567)."""

    rule: ClassVar[str] = "cross_entropy"
    label_smoothing: float = setting(0.0, "share of the target that all classes have in common", ge=0, lt=1)

    @property
    def function(self) -> SampleLoss:
        """The plain function, if nothing is set."""
        return cross_entropy if self == CrossEntropy() else self

    def _unweighted(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.label_smoothing)


@dataclass(frozen=True, kw_only=True)
class Focal(ClassLoss):
    """(1 − p)^gamma · cross-entropy, which weights hard samples.

    Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, arXiv 1708.02002.
    """

    rule: ClassVar[str] = "focal"
    gamma: float = setting(2.0, "the exponent; 0 is the cross-entropy", ge=0)

    def _unweighted(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(logits, targets)
        # the clamp: at p = 1 and gamma < 1 the derivative of the power is infinite, and times 0 not a number
        error = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)
        return error**self.gamma * losses


@dataclass(frozen=True, kw_only=True)
class GCE(ClassLoss):
    """(1 − p^exponent) / exponent, which bounds the loss of wrong labels; towards 0 it is the cross-entropy.

    Zhang et al., Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, NeurIPS 2018,
    arXiv 1805.07836.
    """

    rule: ClassVar[str] = "gce"
    exponent: float = setting(0.7, "between the cross-entropy (towards 0) and 1 − p (1); q in the paper", gt=0, le=1)

    def _unweighted(self, logits: Tensor, targets: Tensor) -> Tensor:
        return -torch.expm1(-self.exponent * cross_entropy(logits, targets)) / self.exponent


@dataclass(frozen=True, kw_only=True)
class SCE(ClassLoss):
    """alpha · cross-entropy + beta · reverse cross-entropy, 4 · (1 − p), which wrong labels cannot dominate.

    Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019, arXiv 1908.06112.
    """

    rule: ClassVar[str] = "sce"
    alpha: float = setting(0.1, "weight of the cross-entropy", ge=0)
    beta: float = setting(1.0, "weight of the reverse cross-entropy", gt=0)

    def _unweighted(self, logits: Tensor, targets: Tensor) -> Tensor:
        losses = cross_entropy(logits, targets)
        return self.alpha * losses - REVERSE * self.beta * torch.expm1(-losses)


@dataclass(frozen=True, kw_only=True)
class PlainLoss(Loss):
    """A loss without settings."""

    plain: ClassVar[SampleLoss]

    @property
    def function(self) -> SampleLoss:
        """The plain function."""
        return type(self).plain

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, (n,)."""
        return type(self).plain(outputs, targets)


@dataclass(frozen=True, kw_only=True)
class Squared(PlainLoss):
    """The squared error of a number."""

    task: ClassVar[str] = "regression"
    rule: ClassVar[str] = "squared"
    plain: ClassVar[SampleLoss] = squared


@dataclass(frozen=True, kw_only=True)
class Huber(Loss):
    """½ · error² up to delta, linear beyond.

    P. J. Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35, 1964.
    """

    task: ClassVar[str] = "regression"
    rule: ClassVar[str] = "huber"
    delta: float = setting(1.0, "the error from which on it is linear, in standard deviations of the target", gt=0)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every number, (n,)."""
        return F.huber_loss(outputs[:, 0], targets, reduction="none", delta=self.delta)


@dataclass(frozen=True, kw_only=True)
class TokenCrossEntropy(PlainLoss):
    """The mean of −log p over the tokens of a sample; −100 is no token."""

    task: ClassVar[str] = "language"
    rule: ClassVar[str] = "token_cross_entropy"
    plain: ClassVar[SampleLoss] = token_cross_entropy


@dataclass(frozen=True, kw_only=True)
class LabelCrossEntropy(PlainLoss):
    """The mean of the binary cross-entropy over the labels of a sample."""

    task: ClassVar[str] = "multilabel"
    rule: ClassVar[str] = "label_cross_entropy"
    plain: ClassVar[SampleLoss] = label_cross_entropy


_ALL = (CrossEntropy, Focal, GCE, SCE, Squared, Huber, TokenCrossEntropy, LabelCrossEntropy)
LOSSES: dict[str, type[Loss]] = {cls.rule: cls for cls in _ALL}


def losses_for(task: str) -> list[str]:
    """The names of the losses for a task; the first is the default."""
    return [name for name, cls in LOSSES.items() if cls.task == task]
