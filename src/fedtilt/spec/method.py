"""One method of a spec: a preset and its settings, as `fedtilt.methods` defines them."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Self, cast

from pydantic import Field, model_validator

from fedtilt.errors import InputError
from fedtilt.math.aggregate import AGGREGATORS, PRE_AGGREGATORS
from fedtilt.math.distances import DISTANCES
from fedtilt.methods import CLIENT_SETTINGS, CORRECTIONS, PERSONAL_START, PRESETS, WEIGHTINGS, Method
from fedtilt.spec.table import SpecTable, allowed_text, one_of

METHOD_FACTORIES: dict[str, Callable[..., Method]] = {**cast(Any, PRESETS), "custom": Method}


def preset_settings(preset: str) -> dict[str, inspect.Parameter]:
    """The settings of a preset: its parameters, then the server settings.

    >>> list(preset_settings("term"))[:3]
    ['t', 'q', 'distance']
    """
    parameters = inspect.signature(METHOD_FACTORIES[preset]).parameters
    excluded = (*CLIENT_SETTINGS, *parameters)
    server = {key: p for key, p in inspect.signature(Method).parameters.items() if key not in excluded}
    return {key: p for key, p in {**parameters, **server}.items() if key not in ("name", "settings")}


def required_settings(preset: str) -> list[str]:
    """The settings of a preset that have no default; of FedTilt, `levels` may take the place of `tau`.

    >>> required_settings("fedtilt")
    ['tau', 'lam']
    """
    own = inspect.signature(METHOD_FACTORIES[preset]).parameters if preset != "custom" else {}
    return [key for key, p in own.items() if p.default in (p.empty, None) and p.kind is not p.VAR_KEYWORD]


class MethodSpec(SpecTable):
    """One `[[methods]]`; a setting left out has the preset's default."""

    preset: Annotated[str, one_of(METHOD_FACTORIES)] = Field(description="the method to start from")
    name: str = Field(
        default="", description="the name in the run, which is unique", json_schema_extra=allowed_text("a plain name")
    )
    tau: float | None = Field(
        default=None, description="tilt over the groups of a client: those of data.group, else its classes"
    )
    lam: float | None = Field(default=None, description="tilt over the samples of a group")
    levels: tuple[Annotated[tuple[str, float], Field(strict=False)], ...] | None = Field(
        default=None,
        strict=False,
        description='more levels in place of tau, each a name and a tilt, from inner to outer; "class" is the labels, '
        "other names are columns of data.group",
        examples=[[["class", 5.0], ["ward", 2.0]]],
        json_schema_extra=allowed_text('a list of pairs, such as [["class", 5], ["ward", 2]]'),
    )
    t: float | None = Field(
        default=None, description="TERM's one tilt: tau = lam = t; of term_clients, the tilt over the clients' losses"
    )
    mu: float | None = Field(
        default=None,
        ge=0,
        description="weight of the personal (fedprox: shared) model's proximal term; inf: no personal model",
    )
    prox: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="weight of the proximal term of the shared model; custom only",
    )
    alpha: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="weight of FedDyn's two terms")
    correction: Annotated[str, one_of(("none", *CORRECTIONS))] | None = Field(
        default=None, description="of client drift; custom only"
    )
    utility: float | None = Field(
        default=None,
        gt=0,
        description="clients minimise −log(utility − loss): more than the loss of any batch; inf: they minimise it",
    )
    local: tuple[str, ...] | None = Field(
        default=None,
        strict=False,
        description='parameters that stay on their client, beside those of train.local; "last" is the last layer',
        examples=[["last"]],
        json_schema_extra=allowed_text('a list of patterns of names, such as ["head.*"]'),
    )
    head_epochs: int | None = Field(
        default=None, ge=1, description="passes that train the local parameters alone before the shared ones train"
    )
    inner_steps: int | None = Field(
        default=None, ge=1, description="steps of pFedMe's personal model on every batch, before the shared one follows"
    )
    q: float | None = Field(
        default=None, description="tilt over the clients, on the server; of qffl, the exponent of the clients' losses"
    )
    distance: Annotated[str, one_of(DISTANCES)] | None = Field(
        default=None, description="distance between models, on the server"
    )
    steps: tuple[int, float] | None = Field(
        default=None,
        strict=False,
        description="gradient steps on the server; left out: the exact optimum",
        json_schema_extra=allowed_text("[count ≥ 1, size > 0]"),
    )
    aggregator: Annotated[str, one_of(("tilted", *AGGREGATORS))] | None = Field(
        default=None, description="how the server aggregates models; tilted is FedTilt's"
    )
    bad_share: float | None = Field(
        default=None,
        ge=0,
        lt=0.5,
        allow_inf_nan=False,
        description="share of bad clients that trimmed_mean, krum, multi_krum, bulyan and nnm tolerate",
    )
    pre_aggregators: tuple[Annotated[str, one_of(PRE_AGGREGATORS)], ...] | None = Field(
        default=None,
        strict=False,
        description="steps before the aggregator, in this order: clipping of updates to clip_radius, nearest-neighbour "
        "mixing, bucketing",
        examples=[["nnm"]],
        json_schema_extra=allowed_text('a list of clipping, nnm and bucketing, such as ["nnm"]'),
    )
    clip_radius: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="largest length of an update, with clipping, norm_clipped and centered_clipping; left out: the "
        "median length of the round",
        examples=[1.0],
    )
    bucket_size: int | None = Field(default=None, ge=1, description="models in a bucket, with bucketing")
    root_samples: int | None = Field(
        default=None, ge=1, description="clean samples on the server, with fltrust, which trains on them in every round"
    )
    client_momentum: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="weight of its earlier updates in the moving average of updates that a client sends",
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="learning rate of the shared model; left out: train.lr",
    )
    lr_personal: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="learning rate of the personal model; left out: train.lr_personal, else that of the shared model",
    )
    epochs_personal: int | None = Field(
        default=None, ge=1, description="passes of the personal model over the data in a round; left out: train.epochs"
    )
    personal_start: Annotated[str, one_of(PERSONAL_START)] | None = Field(
        default=None,
        description="where the personal model starts in a round: where its last round ended (first at the received "
        "model, or at the initial one), or at the received model every time",
    )
    weighting: Annotated[str, one_of(WEIGHTINGS)] | None = Field(
        default=None,
        description=f"weights of the clients, on the server: {'; '.join(f'{k}, {v}' for k, v in WEIGHTINGS.items())}",
    )
    client_tilt: float | None = Field(default=None, description='tilt over the clients\' losses, with weighting "loss"')
    weights_lr: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description='step of the clients\' weights, with weighting "afl"'
    )
    weights_bound: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="how much the clients' weights may differ from equal ones, with aggregator fedmgda",
    )
    update_length: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="length of every update, with aggregator fedmgda"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_name(cls, raw: Any) -> Any:
        return {"name": raw["preset"], **raw} if isinstance(raw, dict) and "preset" in raw else raw

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        self.to_method()
        return self

    def to_method(self) -> Method:
        """The method that this table describes."""
        settings = self.model_dump(exclude={"preset", "name"}, exclude_none=True)
        allowed, required = preset_settings(self.preset), required_settings(self.preset)
        for key, value in settings.items():
            if key not in allowed:
                raise InputError(
                    f"methods.{self.name}.{key} = {value!r} is not a setting of preset {self.preset!r}, "
                    f'which takes {", ".join([*allowed][:8])}, …; leave it out or use preset = "custom"'
                )
        for key in required:
            if key not in settings and not (key == "tau" and "levels" in settings):
                raise InputError(
                    f"methods.{self.name}.{key} is missing; preset {self.preset!r} needs {' and '.join(required)}"
                )
        return METHOD_FACTORIES[self.preset](name=self.name, **settings)
