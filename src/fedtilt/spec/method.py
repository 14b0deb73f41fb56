"""One method of a spec: a preset and its settings, as `fedtilt.methods` defines them."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Self, cast

from pydantic import Field, model_validator

from fedtilt.errors import InputError
from fedtilt.math.aggregate import AGGREGATORS
from fedtilt.math.distances import DISTANCES
from fedtilt.methods import CLIENT_SETTINGS, PRESETS, Method
from fedtilt.spec.table import Table, one_of, says

MAKERS: dict[str, Callable[..., Method]] = {**cast(Any, PRESETS), "custom": Method}


def settings_of(preset: str) -> dict[str, inspect.Parameter]:
    """The settings that a preset takes, its own first.

    >>> list(settings_of("term"))[:3]
    ['t', 'q', 'distance']
    """
    own = inspect.signature(MAKERS[preset]).parameters
    server = {key: p for key, p in inspect.signature(Method).parameters.items() if key not in (*CLIENT_SETTINGS, *own)}
    return {key: p for key, p in {**own, **server}.items() if key not in ("name", "settings")}


def needs(preset: str) -> list[str]:
    """The settings that a preset cannot do without.

    >>> needs("fedtilt")
    ['tau', 'lam']
    """
    return [key for key, p in settings_of(preset).items() if p.default is p.empty]


class MethodSpec(Table):
    """One `[[methods]]`; a setting that is left out is the preset's."""

    preset: Annotated[str, one_of(MAKERS)] = Field(description="the method to start from")
    name: str = Field(
        default="", description="what it is called in the run; no two alike", json_schema_extra=says("a plain name")
    )
    tau: float | None = Field(default=None, description="tilt over the classes of a client")
    lam: float | None = Field(default=None, description="tilt over the samples of a class")
    t: float | None = Field(default=None, description="TERM's one tilt: tau = lam = t")
    mu: float | None = Field(
        default=None, ge=0, description="pull of the personal model (fedprox: of the shared one) to the model received"
    )
    prox: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="pull of the shared model to the model received; custom only",
    )
    q: float | None = Field(default=None, description="tilt over the clients' distances, on the server")
    distance: Annotated[str, one_of(DISTANCES)] | None = Field(
        default=None, description="distance of models on the server"
    )
    steps: tuple[int, float] | None = Field(
        default=None,
        strict=False,
        description="gradient steps on the server; left out: its optimum",
        json_schema_extra=says("[count ≥ 1, size > 0]"),
    )
    aggregator: Annotated[str, one_of(("tilted", *AGGREGATORS))] | None = Field(
        default=None, description="how the server combines models; tilted is the paper's"
    )
    bad_share: float | None = Field(
        default=None, ge=0, lt=0.5, allow_inf_nan=False, description="share of bad clients trimmed_mean and krum stand"
    )
    weighting: Annotated[str, one_of(("equal", "samples"))] | None = Field(
        default=None, description="how much a client counts on the server"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_after_its_preset(cls, raw: Any) -> Any:
        return {"name": raw["preset"], **raw} if isinstance(raw, dict) and "preset" in raw else raw

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.to_method()
        return self

    def to_method(self) -> Method:
        """The method, with the preset's defaults."""
        given = self.model_dump(exclude={"preset", "name"}, exclude_none=True)
        takes, needed = settings_of(self.preset), needs(self.preset)
        for key, value in given.items():
            if key not in takes:
                raise InputError(
                    f"methods.{self.name}.{key} = {value!r} is no setting of preset {self.preset!r}, "
                    f'which takes {", ".join(takes)}; leave it out or use preset = "custom"'
                )
        for key in needed:
            if key not in given:
                raise InputError(
                    f"methods.{self.name}.{key} is missing; preset {self.preset!r} needs {' and '.join(needed)}"
                )
        return MAKERS[self.preset](name=self.name, **given)
