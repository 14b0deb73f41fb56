"""Losses of samples, which the tilts act on: (outputs, targets) → (n,); p is the probability of the label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from fedtilt.config.named import NamedSettings
from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.math.losses import ClassLoss, HuberLoss, SampleLoss, cross_entropy, squared

BALANCED = "balanced"


@dataclass(frozen=True, kw_only=True)
class Loss(NamedSettings):
    """A loss by name."""

    task: ClassVar[str] = "classification"

    @property
    def function(self) -> SampleLoss:
        """The loss as backends know it."""
        raise InputError(f"loss {self.label!r} has no function")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample, (n,)."""
        return self.function(outputs, targets)


@dataclass(frozen=True, kw_only=True)
class ClassificationLoss(Loss):
    """A loss of classes, with class weights."""

    class_weights: tuple[float, ...] | str = setting(
        (), 'a factor of the loss for every class; "balanced": all classes count the same; empty: 1 each', gt=0,
        allowed='a list of numbers > 0, such as [1.0, 5.0], or "balanced"', choices=(BALANCED,),
    )  # fmt: skip

    def for_counts(self, counts: Sequence[int]) -> Self:
        """The same with numbers in place of "balanced": n / (classes · n_k), as in scikit-learn.

        >>> CrossEntropy(class_weights="balanced").for_counts([90, 10]).class_weights
        (0.5555555555555556, 5.0)

        Args:
            counts: the training samples of every class at all clients
        """
        if self.class_weights != BALANCED:
            return self
        present = [count for count in counts if count]
        balanced = tuple(sum(present) / (len(present) * count) if count else 1.0 for count in counts)
        return self.with_settings(class_weights=balanced)

    @property
    def _weights(self) -> tuple[float, ...]:
        if isinstance(self.class_weights, str):
            raise InputError(
                f"class_weights = {self.class_weights!r} counts the samples of all clients, which sites do not send; "
                "give the weights as numbers"
            )
        return self.class_weights

    def check_classes(self, classes: int) -> None:
        """Raise InputError if there are class weights for another number of classes."""
        if self._weights and len(self.class_weights) != classes:
            raise InputError(f"class_weights has {len(self.class_weights)} values for {classes} classes; give one each")


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(ClassificationLoss):
    """−log p of the label (label smoothing: Szegedy et al., CVPR 2016, arXiv 1512.00567)."""

    rule: ClassVar[str] = "cross_entropy"
    label_smoothing: float = setting(0.0, "share of the target that all classes have in common", ge=0, lt=1)

    @property
    def function(self) -> SampleLoss:
        """See `fedtilt.math.losses`."""
        if self == CrossEntropy():
            return cross_entropy
        return ClassLoss(label_smoothing=self.label_smoothing, class_weights=self._weights)


@dataclass(frozen=True, kw_only=True)
class Focal(ClassificationLoss):
    """(1 − p)^gamma · cross-entropy, which weights hard samples.

    Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, arXiv 1708.02002.
    """

    rule: ClassVar[str] = "focal"
    gamma: float = setting(2.0, "the exponent; 0 is the cross-entropy", ge=0)

    @property
    def function(self) -> SampleLoss:
        """See `fedtilt.math.losses`."""
        return ClassLoss(gamma=self.gamma, class_weights=self._weights)


@dataclass(frozen=True, kw_only=True)
class GCE(ClassificationLoss):
    """(1 − p^exponent) / exponent, which bounds the loss of wrong labels; towards 0 it is the cross-entropy.

    Zhang et al., Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy Labels, NeurIPS 2018,
    arXiv 1805.07836.
    """

    rule: ClassVar[str] = "gce"
    exponent: float = setting(0.7, "between the cross-entropy (towards 0) and 1 − p (1); q in the paper", gt=0, le=1)

    @property
    def function(self) -> SampleLoss:
        """See `fedtilt.math.losses`."""
        return ClassLoss(gce_q=self.exponent, class_weights=self._weights)


@dataclass(frozen=True, kw_only=True)
class SCE(ClassificationLoss):
    """alpha · cross-entropy + beta · reverse cross-entropy, 4 · (1 − p), which wrong labels cannot dominate.

    Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019, arXiv 1908.06112.
    """

    rule: ClassVar[str] = "sce"
    alpha: float = setting(0.1, "weight of the cross-entropy", ge=0)
    beta: float = setting(1.0, "weight of the reverse cross-entropy", gt=0)

    @property
    def function(self) -> SampleLoss:
        """See `fedtilt.math.losses`."""
        return ClassLoss(sce_alpha=self.alpha, sce_beta=self.beta, class_weights=self._weights)


@dataclass(frozen=True, kw_only=True)
class Squared(Loss):
    """The squared error of a number."""

    task: ClassVar[str] = "regression"
    rule: ClassVar[str] = "squared"

    @property
    def function(self) -> SampleLoss:
        """See `fedtilt.math.losses`."""
        return squared


@dataclass(frozen=True, kw_only=True)
class Huber(Loss):
    """½ · error² up to delta, linear beyond.

    P. J. Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35, 1964.
    """

    task: ClassVar[str] = "regression"
    rule: ClassVar[str] = "huber"
    delta: float = setting(
        1.0, "the error from which on it is linear, in standard deviations of the target", gt=0
    )  # fmt: skip

    @property
    def function(self) -> SampleLoss:
        """See `fedtilt.math.losses`."""
        return HuberLoss(delta=self.delta)


LOSSES: dict[str, type[Loss]] = {cls.rule: cls for cls in (CrossEntropy, Focal, GCE, SCE, Squared, Huber)}


def losses_for(task: str) -> list[str]:
    """The names of the losses for "classification" or "regression"; the first is the default."""
    return [name for name, cls in LOSSES.items() if cls.task == task]
