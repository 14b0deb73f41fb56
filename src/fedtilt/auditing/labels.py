"""Which labels look wrong to a model, without a federation."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedtilt.auditing.collect import Collected, Learnt
from fedtilt.auditing.samples import Audit, build_audit
from fedtilt.auditing.scores import fit_mixture
from fedtilt.data.inputs import Inputs
from fedtilt.errors import InputError
from fedtilt.math.losses import cross_entropy
from fedtilt.models import logits


def audit(
    model_or_outputs: nn.Module | Tensor,
    x: Inputs | None,
    y: Tensor,
    groups: Tensor | None = None,
    *,
    class_names: Sequence[str] | None = None,
) -> Audit:
    """Which labels look wrong to a model, without a federation.

    The model must not have memorised these labels: give one that was trained on other samples, or outputs of
    cross-validation.

    Args:
        model_or_outputs: a PyTorch classifier; or its outputs for x, (n, classes); or its cross-entropy losses (n,)
        x: the samples; None with outputs or losses
        y: their labels, whole numbers (n,)
        groups: the group of each sample, such as its source, (n,); groups differ in their share of wrong labels
        class_names: a name for each class; default: their numbers

    >>> losses = torch.tensor([0.1, 0.2, 0.1, 0.3, 0.2, 6.0] * 5)
    >>> audit(losses, None, torch.arange(30) % 6).worst(1)[0].row
    'sample 5'
    """
    outputs = _outputs(model_or_outputs, x)
    if y.dtype not in (torch.int64, torch.int32) or y.shape != outputs.shape[:1]:
        raise InputError(f"y has shape {tuple(y.shape)} and type {y.dtype}; give {len(outputs)} whole-numbered labels")
    y = y.long().cpu()
    groups = torch.zeros(len(y), dtype=torch.int64) if groups is None else groups.cpu()
    if groups.shape != y.shape:
        raise InputError(f"groups has shape {tuple(groups.shape)}; give one for each of the {len(y)} samples")
    values, number = groups.unique(return_inverse=True)
    rows = [(number == k).nonzero()[:, 0] for k in range(len(values))]
    classes = outputs.shape[1] if outputs.dim() == 2 else int(y.max()) + 1
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(f"y goes from {int(y.min())} to {int(y.max())}, and the model has {classes} classes")
    names = tuple(map(str, class_names or range(classes)))
    if len(names) != classes:
        raise InputError(f"class_names has {len(names)} names for {classes} classes; give one for each")
    client_names = tuple(str(value) for value in values.tolist())
    if outputs.dim() == 2:
        losses = cross_entropy(outputs, y)
        entries = {k: Collected(outputs[r].log_softmax(1), _plain(losses[r]), 1) for k, r in enumerate(rows)}
        return build_audit(
            "model", entries, {k: y[r] for k, r in enumerate(rows)}, client_names, names, _sample_names(rows)
        )
    order = torch.cat(rows)
    losses = outputs[order].clamp_min(1e-12)
    margin = -losses - torch.log(-torch.expm1(-losses))  # log p − log(1 − p), with p = exp(−loss)
    return Audit(
        method="losses",
        client=number[order],
        sample=torch.cat([torch.arange(len(r)) for r in rows]),
        label=y[order],
        looks_like=torch.full_like(order, -1),
        score=fit_mixture(margin, number[order], len(values)).score(margin, number[order]),
        margin=margin,
        learnt=_plain(losses),
        rounds=torch.ones_like(order),
        client_names=client_names,
        class_names=names,
        row_names=_sample_names(rows),
    )


def _outputs(model_or_outputs: nn.Module | Tensor, x: Inputs | None) -> Tensor:
    """Outputs (n, K) or losses (n,), float64 on the CPU."""
    outputs = model_or_outputs
    if isinstance(outputs, nn.Module):
        if x is None:
            raise InputError("a model needs samples; give x, or the outputs of the model in place of the model")
        training = outputs.training
        try:
            with torch.no_grad():
                outputs = logits(outputs.eval(), x)
        finally:
            model_or_outputs.train(training)  # type: ignore[union-attr]
    elif x is not None:
        raise InputError("x has no effect beside outputs or losses; give the model, or leave x = None")
    if not isinstance(outputs, Tensor) or outputs.dim() not in (1, 2) or not len(outputs):
        raise InputError("give a classifier, its outputs (n, classes) or its losses (n,)")
    outputs = outputs.detach().double().cpu()
    if not bool(outputs.isfinite().all()):
        raise InputError("the outputs or losses have values that are not finite; remove these samples")
    return outputs


def _plain(losses: Tensor) -> Learnt:
    unknown = torch.full_like(losses, torch.nan)
    return Learnt(losses, torch.ones_like(losses), unknown, unknown, unknown)


def _sample_names(rows: Sequence[Tensor]) -> Callable[[int], Sequence[str]]:
    return lambda group: [f"sample {row}" for row in rows[group].tolist()]
