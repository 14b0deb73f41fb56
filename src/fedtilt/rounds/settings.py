"""The training settings of a federation, its device and its initial model."""

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

import torch
from torch import nn

from fedtilt import seeds
from fedtilt.checks import number, whole
from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.models import ModelSource, build
from fedtilt.training import BACKENDS, LAST_BATCH

PRECISIONS = ("float32", "tf32", "bfloat16")


def _setting(
    default: Any, meaning: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None,
    choices: Iterable[str] = (), example: Any = None,
) -> Any:  # fmt: skip
    """A field with its meaning and limits; a default of None means that the setting is optional."""
    limits = {key: value for key, value in {"ge": ge, "gt": gt, "le": le}.items() if value is not None}
    metadata = {"meaning": meaning, "limits": limits, "choices": tuple(choices), "example": example}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a federation trains, with any method; the defaults are those of the paper.

    This is the one list of the training settings: `ft.run`, `ft.simulate` and the `[train]` table of a spec take these.
    """

    rounds: int = _setting(50, "how many rounds", ge=1)
    participation: float = _setting(0.1, "the share of clients that take part in a round", gt=0, le=1)
    epochs: int = _setting(10, "passes of a client over its data in a round", ge=1)
    batch_size: int = _setting(10, "samples per step", ge=1)
    last_batch: str = _setting(
        "even",
        "how an epoch is split: even batches, a smaller last batch (keep), or without it (drop)",
        choices=LAST_BATCH,
    )
    lr: float = _setting(0.01, "learning rate of the shared model", gt=0)
    lr_personal: float | None = _setting(None, "learning rate of the personal models; left out: lr", gt=0, example=0.01)
    seed: int = _setting(0, "the random seed", ge=0)
    eval_every: int | None = _setting(
        None, "rounds between two evaluations; left out: about fifty evaluations a run", ge=1, example=5
    )
    device: str = _setting("auto", "where to train; auto: cuda if there is one")
    backend: str = _setting(
        "auto",
        "what trains the models; autograd supports any model, the others are faster; native needs a C compiler",
        choices=("auto", *BACKENDS),
    )
    workers: int | None = _setting(None, "worker processes; left out: one per core; 0: none", ge=0, example=2)
    precision: str = _setting(
        "float32",
        "of matrix products on CUDA; tf32 and bfloat16 are faster; models are always float32",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if value is not None or setting.default is not None:
                object.__setattr__(self, setting.name, _check(setting, value))

    def selected(self, round: int, clients: int) -> list[int]:
        """The clients that take part in a round: max(participation · N, 1) of them."""
        count = max(1, round_half_up(self.participation * clients))
        return seeds.choose(seeds.key(self.seed, "selection", round=round), clients, count)

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after this round; after the last one they always are."""
        every = self.eval_every or max(1, self.rounds // 50)
        return round % every == 0 or round == self.rounds


def _check(setting: Field[Any], value: Any) -> Any:
    """The value as a plain int, float or text within the setting's limits, or an InputError."""
    type_name, limits, choices = str(setting.type), setting.metadata["limits"], setting.metadata["choices"]
    if "int" in type_name:
        return whole(value, setting.name, limits.get("ge"))
    if "float" in type_name:
        value = number(value, setting.name)
        if "le" in limits and not limits["gt"] < value <= limits["le"]:
            raise InputError(f"{setting.name} must be in ({limits['gt']}, {limits['le']}], got {value!r}")
        if not limits["gt"] < value < math.inf:
            raise InputError(f"{setting.name} must be a number > {limits['gt']}, got {value!r}")
    if choices and value not in choices:
        raise InputError(f"unknown {setting.name} {value!r}; choose one of {', '.join(choices)}")
    return value


def train_settings(settings: Mapping[str, Any]) -> TrainSettings:
    """The settings from keyword arguments; for an unknown name, the error suggests the closest one."""
    names = [setting.name for setting in fields(TrainSettings)]
    for name in settings:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names)}"
            raise InputError(f"{name} is not a training setting; {remedy}")
    return TrainSettings(**settings)


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_train_settings(function: Function) -> Function:
    """List the training settings, in place of `**settings`, in a function's signature and docstring."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(s.name, inspect.Parameter.KEYWORD_ONLY, default=s.default, annotation=s.type)
        for s in fields(TrainSettings)
    ]
    lines = "".join(f"        {s.name}: {s.metadata['meaning']}\n" for s in fields(TrainSettings))
    function.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n{lines}    "
    return function


def round_half_up(value: float) -> int:
    """The nearest whole number; a half is rounded up."""
    return int(value + 0.5)


def pick_device(name: str) -> torch.device:
    """The device of that name; 'auto' is CUDA if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InputError(f"unknown device {name!r}; choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is not supported; choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"device {name!r} is not available ({count} CUDA devices); use device 'cpu'")
    return device


def initial_model(federation: Federation, model: ModelSource, seed: int) -> nn.Module:
    """The initial model of every method, checked on one sample of the data."""
    net = build(model, federation.input_shape, federation.classes, seeds.key(seed, "init"))
    x, _ = federation.clean_train(0)
    for count in (2, 1):  # the last batch of an epoch may have one sample
        _check_output(net.eval(), x[:1].expand(count, *x.shape[1:]), federation.classes)
    return net


def _check_output(net: nn.Module, x: torch.Tensor, classes: int) -> None:
    try:
        with torch.no_grad():
            logits, again = net(x), net(x)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        raise InputError(f"the model does not take samples of shape {tuple(x.shape[1:])}: {error}") from error
    if not isinstance(logits, torch.Tensor):
        raise InputError(f"the model returns a {type(logits).__name__}; expected a tensor ({len(x)}, {classes})")
    if logits.dim() != 2 or len(logits) != len(x) or logits.shape[1] < classes:
        raise InputError(
            f"the model returns {tuple(logits.shape)} for {len(x)} samples; expected ({len(x)}, {classes} or more)"
        )
    if not torch.equal(logits, again) and logits.isfinite().all():
        raise InputError(
            "the model gives different outputs for the same sample in evaluation mode; pass training=self.training to "
            "F.dropout"
        )
