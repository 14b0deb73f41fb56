"""The training settings of a federation, its device and its initial model."""

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

import torch
from torch import nn

from fedtilt import seeds
from fedtilt.checks import number, whole
from fedtilt.errors import InputError
from fedtilt.math import losses
from fedtilt.math.losses import SampleLoss
from fedtilt.parts import BUFFER_MODES
from fedtilt.training import BACKENDS, LAST_BATCH, OPTIMIZERS, Optimizer

SCHEDULES = ("constant", "cosine", "step", "exponential")
SERVER_OPTIMIZERS = ("sgd", "adam", "yogi", "adagrad")
PRECISIONS = ("float32", "tf32", "bfloat16")


def _setting(
    default: Any, meaning: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None,
    lt: float | None = None, choices: Iterable[str] = (), example: Any = None, allowed: str = "",
) -> Any:  # fmt: skip
    """A field with its meaning and limits, or what is allowed in words; with a default of None it is optional."""
    limits = {key: value for key, value in {"ge": ge, "gt": gt, "le": le, "lt": lt}.items() if value is not None}
    metadata = {
        "meaning": meaning, "limits": limits, "choices": tuple(choices), "example": example, "allowed": allowed
    }  # fmt: skip
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
    local_steps: int | None = _setting(
        None, "steps of a client in a round, in place of epochs; left out: epochs", ge=1, example=20
    )
    optimizer: str = _setting("sgd", "the optimiser on the clients, new in every round", choices=OPTIMIZERS)
    momentum: float = _setting(0.0, "of sgd on the clients", ge=0, lt=1)
    nesterov: bool = _setting(False, "whether the momentum is Nesterov's", allowed="true or false")
    weight_decay: float = _setting(0.0, "of the optimiser on the clients", ge=0)
    clip_norm: float | None = _setting(
        None, "the largest norm of a gradient on the clients; left out: none", gt=0, example=1.0
    )
    schedule: str = _setting("constant", "how the learning rates change over the rounds", choices=SCHEDULES)
    decay: float | None = _setting(
        None, "what step and exponential multiply the learning rates with", gt=0, le=1, example=0.99
    )
    decay_rounds: int | None = _setting(None, "rounds between two decays of schedule step", ge=1, example=10)
    warmup_rounds: int = _setting(0, "rounds over which the learning rates rise to their values", ge=0)
    loss: str | SampleLoss = _setting(  # noqa: RUF009
        "cross_entropy",
        "the loss of a sample, which the tilts act on; your own is a function of outputs and labels that returns one "
        "value per sample",
        allowed="cross_entropy, focal or package.module:function",
    )
    label_smoothing: float = _setting(0.0, "of cross_entropy", ge=0, lt=1)
    focal_gamma: float | None = _setting(None, "of focal; left out: 2", ge=0, example=2.0)
    class_weights: tuple[float, ...] = _setting(
        (), "a factor of the loss for every class; empty: 1 each", gt=0, allowed="a list of numbers > 0"
    )
    local: tuple[str, ...] = _setting(
        (),
        "parameters that stay on their client and are never averaged",
        allowed='a list of patterns of names, such as ["head.*"]',
    )
    buffers: str = _setting(
        "local",
        "buffers such as the statistics of BatchNorm: every client keeps its own (local), the server averages them "
        "(average), or they never change (frozen)",
        choices=BUFFER_MODES,
    )
    init: str | nn.Module | None = _setting(  # noqa: RUF009
        None, "the weights to start from; left out: random", example="weights.safetensors", allowed="a safetensors file"
    )
    server_optimizer: str | None = _setting(
        None, "the optimiser on the server; left out: none", choices=SERVER_OPTIMIZERS, example="adam"
    )
    server_lr: float = _setting(1.0, "learning rate of the server optimiser", gt=0)
    server_momentum: float | None = _setting(
        None, "momentum of the server optimiser; left out: 0 for sgd, 0.9 for the others", ge=0, lt=1, example=0.9
    )
    server_epsilon: float | None = _setting(
        None, "what adam, yogi and adagrad add to the root on the server; left out: 0.001", gt=0, example=0.001
    )
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
        self._check_used()

    def _check_used(self) -> None:
        """Refuse settings that have no effect beside the others, or that lack one."""
        needs = [  # a setting, where it has an effect, and what to do otherwise
            ("momentum", self.optimizer == "sgd", "set optimizer = 'sgd'"),
            ("nesterov", self.momentum > 0, "set momentum"),
            ("decay", self.schedule in ("step", "exponential"), "set schedule = 'step' or 'exponential'"),
            ("decay_rounds", self.schedule == "step", "set schedule = 'step'"),
            ("label_smoothing", self.loss == "cross_entropy", "set loss = 'cross_entropy'"),
            ("focal_gamma", self.loss == "focal", "set loss = 'focal'"),
            ("class_weights", self.loss in losses.NAMES, "set loss = 'cross_entropy' or 'focal'"),
            ("server_lr", self.server_optimizer is not None, "set server_optimizer"),
            ("server_momentum", self.server_optimizer is not None, "set server_optimizer"),
            ("server_epsilon", self.server_optimizer not in (None, "sgd"), "set server_optimizer = 'adam'"),
        ]
        defaults = {setting.name: setting.default for setting in fields(self)}
        for key, has_effect, remedy in needs:
            value = getattr(self, key)
            if value != defaults[key] and not has_effect:
                raise InputError(f"{key} = {value!r} has no effect here; {remedy}, or leave it out")
        if self.schedule in ("step", "exponential") and self.decay is None:
            raise InputError(f"schedule = {self.schedule!r} needs decay, such as decay = 0.5")
        if self.schedule == "step" and self.decay_rounds is None:
            raise InputError("schedule = 'step' needs decay_rounds, such as decay_rounds = 10")
        if self.warmup_rounds >= self.rounds and self.warmup_rounds:
            raise InputError(
                f"warmup_rounds = {self.warmup_rounds} is not less than rounds = {self.rounds}; choose fewer"
            )

    @functools.cached_property
    def client_optimizer(self) -> Optimizer:
        """The optimiser of every local job."""
        return Optimizer(
            name=self.optimizer,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
        )

    @functools.cached_property
    def sample_loss(self) -> SampleLoss:
        """The loss of every local job."""
        return losses.sample_loss(
            self.loss, label_smoothing=self.label_smoothing, gamma=self.focal_gamma, class_weights=self.class_weights
        )

    @property
    def server_beta(self) -> float:
        """The momentum of the server optimiser."""
        default = 0.0 if self.server_optimizer == "sgd" else 0.9
        return default if self.server_momentum is None else self.server_momentum

    def lr_factor(self, round: int) -> float:
        """What the learning rates of this round, counted from 1, are multiplied with: warm-up, then the schedule."""
        if round <= self.warmup_rounds:
            return round / (self.warmup_rounds + 1)
        done, rounds = round - 1 - self.warmup_rounds, self.rounds - self.warmup_rounds
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * done / rounds)) / 2
        if self.decay is not None:
            return self.decay ** (done // (self.decay_rounds or 1))
        return 1.0

    def job_epochs(self, epochs: int | None) -> int | None:
        """The epochs of a job: its own, or the run's; None with `local_steps`, which count instead."""
        return None if self.local_steps is not None else epochs or self.epochs

    def selected(self, round: int, clients: int) -> list[int]:
        """The clients that take part in a round: max(participation · N, 1) of them."""
        count = max(1, round_half_up(self.participation * clients))
        return seeds.choose(seeds.key(self.seed, "selection", round=round), clients, count)

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after this round; after the last one they always are."""
        every = self.eval_every or max(1, self.rounds // 50)
        return round % every == 0 or round == self.rounds


def _check(setting: Field[Any], value: Any) -> Any:
    """The value as a plain int, float, bool, text or tuple within the setting's limits, or an InputError."""
    kind, limits, choices = str(setting.type), setting.metadata["limits"], setting.metadata["choices"]
    if kind.startswith("tuple"):
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise InputError(f"{setting.name} must be a list, got {value!r}")
        checked = [_check_number(part, setting.name, limits) if "float" in kind else str(part) for part in value]
        return tuple(checked)
    if kind == "bool":
        if not isinstance(value, bool):
            raise InputError(f"{setting.name} must be True or False, got {value!r}")
        return value
    if "int" in kind:
        return whole(value, setting.name, limits.get("ge"))
    if "float" in kind:
        return _check_number(value, setting.name, limits)
    if choices and value not in choices:
        raise InputError(f"unknown {setting.name} {value!r}; choose one of {', '.join(choices)}")
    return value


def _check_number(value: Any, name: str, limits: Mapping[str, float]) -> float:
    """A finite number within the limits, or an InputError."""
    value = number(value, name)
    below = value < limits["ge"] if "ge" in limits else value <= limits["gt"]
    above = value > limits["le"] if "le" in limits else value >= limits.get("lt", math.inf)
    if below or above or math.isnan(value):
        low = f"≥ {limits['ge']:g}" if "ge" in limits else f"> {limits['gt']:g}"
        high = f" and ≤ {limits['le']:g}" if "le" in limits else f" and < {limits['lt']:g}" if "lt" in limits else ""
        raise InputError(f"{name} must be a number {low}{high}, got {value!r}")
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
