"""The axes of a search: settings of a method or of the training, each with a list of values or a range of numbers."""

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from types import MappingProxyType
from typing import Any, get_args, get_origin

from fedtilt.checks import number
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.methods import COMPONENTS, PRESETS, Method

Setting = Mapping[str, Any]  # axis → value
_LOG_RATIO = 10.0  # a range over more than this factor is searched on a logarithmic scale
_DIGITS = 3  # significant digits of a sampled number
_NOT_TUNED = {  # settings of the run that do not belong to a recipe
    "rounds", "seed", "device", "eval_every", "backend", "workers", "precision", "audit", "privacy", "init",
    "cluster", "cluster_timeout", "stack_size", "attack",
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """All numbers from low to high, as an axis of a search.

    Args:
        low: the smallest value
        high: the largest value
        log: whether to sample the logarithm; default: if low > 0 and high is at least ten times as large

    >>> Range(0.001, 0.1).log, Range(0, 50).log
    (True, False)
    """

    low: float
    high: float
    log: bool | None = None

    def __post_init__(self) -> None:
        for key in ("low", "high"):
            object.__setattr__(self, key, number(getattr(self, key), f"the {key} end of a range"))
        if not -math.inf < self.low < self.high < math.inf:
            raise InputError(
                f"the range {self} is empty or not finite; give a low end below the high end, such as 0.001..0.1"
            )
        if self.log is None:
            object.__setattr__(self, "log", self.low > 0 and self.high >= _LOG_RATIO * self.low)
        elif self.log and self.low <= 0:
            raise InputError(f"the range {self} cannot have a logarithmic scale; give a low end above 0")

    def __str__(self) -> str:
        return f"{format_value(self.low)}..{format_value(self.high)}"

    def rounded(self, value: float) -> float:
        """A sampled value with few digits, inside the range."""
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)


Axis = tuple[Any, ...] | Range
DEFAULT_AXES: Mapping[str, Axis] = MappingProxyType({"tau": (0.0, 1.0, 10.0, 50.0), "lam": (-2.0, 0.0, 1.0, 10.0)})


def axes_of(over: Mapping[str, object] | None) -> dict[str, Axis]:
    """Checked axes; None: the default tilts.

    >>> axes_of({"lr": Range(0.001, 0.1), "mu": [0.1, 1, 0.1], "batch_size": "10,20"})
    {'lr': Range(low=0.001, high=0.1, log=True), 'mu': (0.1, 1), 'batch_size': (10, 20)}
    """
    if over is None:
        return dict(DEFAULT_AXES)
    if not isinstance(over, Mapping) or not over:
        raise InputError(
            f"over must be a dict of settings and their values, such as {{'lam': [-2, 0, 1]}}; got {over!r}"
        )
    return {str(name): _axis(str(name), values) for name, values in over.items()}


def _axis(name: str, values: object) -> Axis:
    if isinstance(values, str):
        values = _parse(name, values)
    if isinstance(values, Range):
        return values
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        raise InputError(f"over {name} = {values!r} is neither a list nor a range; write [{values!r}] or ft.Range(…)")
    found = tuple(dict.fromkeys(value.item() if hasattr(value, "item") else value for value in values))
    if not found:
        raise InputError(f"over {name} is empty; give at least one value")
    return found


def parse_axes(texts: Iterable[str]) -> dict[str, Axis] | None:
    """Axes from texts of the command line; None if there are none.

    >>> parse_axes(["mu=0.01,1", "lam=-inf", "lr=0.001..0.1", "optimizer=sgd,adamw"])
    {'mu': (0.01, 1), 'lam': (-inf,), 'lr': Range(low=0.001, high=0.1, log=True), 'optimizer': ('sgd', 'adamw')}
    """
    axes: dict[str, Axis] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise InputError(f"--over {text!r} is not KEY=VALUES; write for example --over tau=0,1,10")
        if name in axes:
            raise InputError(f"--over {name} is given twice; write all its values in one, such as --over {name}=0,1,10")
        axes[name] = _axis(name, values)
    return axes or None


def _parse(name: str, text: str) -> Axis:
    if ".." in text:
        low, _, high = text.partition("..")
        ends = [parse_value(low), parse_value(high)]
        if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            raise InputError(f"over {name} = {text!r} is not a range of numbers; write for example {name}=0.001..0.1")
        try:
            return Range(*ends)
        except InputError as error:
            raise InputError(f"over {name}: {error}") from None
    return tuple(dict.fromkeys(parse_value(part) for part in text.split(",") if part.strip()))


def parse_value(text: str) -> Any:
    """A value of the command line: a number, true, false or text.

    >>> [parse_value(text) for text in ("10", "1e-3", "-inf", "true", "median")]
    [10, 0.001, -inf, True, 'median']
    """
    text = text.strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)
    return text if math.isnan(value) else value


def texts_of(axes: Mapping[str, "Axis"]) -> dict[str, str]:
    """The values of every axis as text, which `axes_of` reads.

    >>> texts_of({"lam": [-2.0, 0.0], "lr": Range(0.01, 0.1)})
    {'lam': '-2,0', 'lr': '0.01..0.1'}
    """
    return {
        name: str(axis) if isinstance(axis, Range) else ",".join(map(format_value, axis)) for name, axis in axes.items()
    }


def format_value(value: Any) -> str:
    """The shortest text that keeps every digit.

    >>> format_value(10.0), format_value(0.0123456789), format_value(float("-inf")), format_value(True)
    ('10', '0.0123456789', '-inf', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def format_setting(setting: Setting) -> str:
    """A setting in one line.

    >>> format_setting({"tau": 0.0, "optimizer": "adam"})
    'tau=0 optimizer=adam'
    """
    return " ".join(f"{name}={format_value(value)}" for name, value in setting.items())


def grid_size(axes: Mapping[str, Axis]) -> float:
    """How many settings a grid has; infinite with a range."""
    return math.prod(math.inf if isinstance(axis, Range) else len(axis) for axis in axes.values())


def grid(axes: Mapping[str, Axis]) -> Iterator[dict[str, Any]]:
    """Every combination of the values."""
    for values in product(*(axis for axis in axes.values() if isinstance(axis, tuple))):
        yield dict(zip(axes, values, strict=True))


def training_axes() -> list[str]:
    """The training settings that a search may vary, those of a loss or a schedule too: `loss.gamma`."""
    axes = []
    for field in fields(TrainSettings):
        if field.name in _NOT_TUNED or get_origin(field.type) is tuple:
            continue
        objects = field.metadata["named"].values()
        axes += [field.name, *dict.fromkeys(f"{field.name}.{each.name}" for cls in objects for each in fields(cls))]
    return [axis for axis in axes if axis not in ("optimizer.momentum", "optimizer.weight_decay", "loss.class_weights")]


def method_axes(method: Method) -> list[str]:
    """The settings of a method that a search may vary: numbers and words, not lists."""
    return [key for key, value in method.settings().items() if not isinstance(value, Mapping | tuple | list)]


def is_whole(name: str) -> bool:
    """Whether the values of an axis are whole numbers.

    >>> is_whole("batch_size"), is_whole("epochs_personal"), is_whole("local.first_epochs"), is_whole("lr")
    (True, True, True, False)
    """
    slot, _, setting = name.rpartition(".")
    of_train = {field.name: field.metadata["named"].values() for field in fields(TrainSettings)}
    of_method = COMPONENTS.get(slot.partition(".")[0], {}).values()
    classes = [*of_method, *of_train.get(slot, ())] if slot else [TrainSettings]
    types = [field.type for cls in classes for field in fields(cls) if field.name == setting]
    presets = [inspect.signature(preset).parameters for preset in PRESETS.values()]
    types += [parameters[name].annotation for parameters in presets if name in parameters]
    return any(int in {kind, *get_args(kind)} for kind in types)
