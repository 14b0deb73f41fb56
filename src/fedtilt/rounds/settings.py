"""How a federation trains, whatever the method and whoever runs it: settings, device, the model it starts from."""

from dataclasses import dataclass

import torch
from torch import nn

from fedtilt import seeds
from fedtilt.checks import number, whole
from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.models import ModelSource, build

PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a federation trains, whatever the method; the defaults are the paper's."""

    rounds: int = 50
    participation: float = 0.1
    epochs: int = 10
    batch_size: int = 10
    lr: float = 0.01
    lr_personal: float | None = None  # None: the same as lr
    seed: int = 0
    eval_every: int | None = None  # None: about fifty times a run
    device: str = "auto"
    backend: str = "auto"
    workers: int | None = None  # None: one per core; 0: train in this process
    precision: str = "float32"  # of products on CUDA; sums and models are always float32

    def __post_init__(self) -> None:
        least = {"rounds": 1, "epochs": 1, "batch_size": 1, "eval_every": 1, "workers": 0, "seed": 0}
        for key in (*least, "lr", "lr_personal", "participation"):
            value = getattr(self, key)
            if value is not None or key not in ("eval_every", "workers", "lr_personal"):
                plain = whole(value, key, least[key]) if key in least else number(value, key)
                object.__setattr__(self, key, plain)
        for key, rate in (("lr", self.lr), ("lr_personal", self.personal_rate)):
            if not 0 < rate < float("inf"):
                raise InputError(f"{key} must be a number > 0, got {rate!r}")
        if not 0 < self.participation <= 1:
            raise InputError(f"participation must be in (0, 1], got {self.participation!r}")
        if self.precision not in PRECISIONS:
            raise InputError(f"unknown precision {self.precision!r}; choose one of {', '.join(PRECISIONS)}")

    @property
    def personal_rate(self) -> float:
        """The learning rate of the personal models."""
        return self.lr if self.lr_personal is None else self.lr_personal

    def selected(self, round: int, clients: int) -> list[int]:
        """Who takes part in a round: max(participation · N, 1) clients."""
        count = max(1, round_half_up(self.participation * clients))
        return seeds.choose(seeds.key(self.seed, "selection", round=round), clients, count)

    def evaluates(self, round: int) -> bool:
        """Whether models are judged after this round; the last one always is."""
        every = self.eval_every or max(1, self.rounds // 50)
        return round % every == 0 or round == self.rounds


def round_half_up(value: float) -> int:
    """The nearest whole number."""
    return int(value + 0.5)


def pick_device(name: str) -> torch.device:
    """The device of that name; 'auto' takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InputError(f"unknown device {name!r}; choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is not supported; choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r} is not there ({torch.cuda.device_count()} CUDA devices); use device 'cpu'")
    return device


def initial_model(federation: Federation, model: ModelSource, seed: int) -> nn.Module:
    """The model every method starts from, checked on one sample of the data."""
    net = build(model, federation.input_shape, federation.classes, seeds.key(seed, "init"))
    x, _ = federation.clean_train(0)
    for count in (2, 1):  # an epoch may end with a single sample
        _check_answer(net.eval(), x[:1].expand(count, *x.shape[1:]), federation.classes)
    return net


def _check_answer(net: nn.Module, x: torch.Tensor, classes: int) -> None:
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
            "the model answers the same sample differently each time when it is not training; give F.dropout "
            "training=self.training"
        )
