"""How a federation trains, whatever the method and whoever runs it: settings, device, the model it starts from."""

from dataclasses import dataclass

import torch
from torch import nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.models import ModelSource, build

PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Training:
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
    way: str = "auto"
    workers: int | None = None  # None: one per core; 0: train in this process
    precision: str = "float32"  # of products on CUDA; sums and models are always float32

    def __post_init__(self) -> None:
        for key in ("rounds", "epochs", "batch_size", *(("eval_every",) if self.eval_every is not None else ())):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{key} must be a whole number ≥ 1, got {value!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed must be a whole number, got {self.seed!r}")
        for key, rate in (("lr", self.lr), ("lr_personal", self.personal_rate)):
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
                raise InputError(f"{key} must be a number > 0, got {rate!r}")
        if not isinstance(self.participation, int | float) or not 0 < self.participation <= 1:
            raise InputError(f"participation must be in (0, 1], got {self.participation!r}")
        if self.workers is not None and (not isinstance(self.workers, int) or self.workers < 0):
            raise InputError(f"workers must be a whole number ≥ 0, got {self.workers!r}")

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
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is not supported; choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r} is not there ({torch.cuda.device_count()} CUDA devices); use --device cpu")
    return device


def initial_model(federation: Federation, model: ModelSource, seed: int) -> nn.Module:
    """The model every method starts from, checked on one sample of the data."""
    net = build(model, federation.input_shape, federation.classes, seeds.key(seed, "init"))
    x, _ = federation.clean_train(0)
    try:
        with torch.no_grad():
            logits = net.eval()(x[:2])
    except RuntimeError as error:
        raise InputError(f"the model does not take samples of shape {federation.input_shape}: {error}") from error
    if logits.dim() != 2 or logits.shape[1] < federation.classes:
        raise InputError(f"the model returns {tuple(logits.shape)} for 2 samples; expected (2, {federation.classes})")
    return net
