"""A method: a name and a few components, which say how clients train and how the server aggregates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

from fedtilt.checks import is_plain_name
from fedtilt.config.named import make_named
from fedtilt.config.setting_fields import REQUIRED, check_number, documented, setting
from fedtilt.errors import InputError
from fedtilt.imports import import_function, is_function_path
from fedtilt.methods import aggregators, objectives, weightings
from fedtilt.methods.component import BASES, COMPONENTS, MESSAGES, Component, describe
from fedtilt.methods.functions import FUNCTIONS, function_component
from fedtilt.methods.personal import Moreau, PersonalModel
from fedtilt.text_tables import html_table
from fedtilt.toml_text import format_toml

DEFAULT_RULE = {"personal": "proximal", "local": "local", "objective": "tilted"}  # where a table need not name it


def component_of(kind: str, value: Any, owner: str = "") -> Any:
    """The component that a value stands for: itself, a name, "module:name", a function, or a table with settings.

    Errors say what the value is, and its `owner`, such as " of method 'mine'".

    >>> component_of("aggregator", {"rule": "krum", "bad_share": 0.2})
    Krum(bad_share=0.2)
    >>> component_of("weighting", "samples")
    BySamples()
    """
    what, known = f"{kind}{owner}", COMPONENTS[kind]
    if isinstance(value, Component):
        if value.kind != kind:
            raise InputError(f"{what} is {value.label!r}, which is of kind {value.kind!r}; give it as {value.kind}")
        return value
    if (component := function_component(kind, value, what)) is not None:
        return component
    if isinstance(value, str) and (kind != "local" or value in known or is_function_path(value)):
        value = {"rule": value}
    if kind == "local" and isinstance(value, Sequence):  # patterns of names
        value = {"names": value if isinstance(value, str) else tuple(value)}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        forms = "a table, a component or a function" if kind in FUNCTIONS else "a table or a component"
        raise InputError(f"{what} must be a name, {forms}, got {value!r:.60}")
    settings = {key: part for key, part in value.items() if key != "rule"}
    rule = value.get("rule", DEFAULT_RULE.get(kind))
    cls = known.get(rule) if isinstance(rule, str) else None
    if cls is None:
        if not isinstance(rule, str) or not is_function_path(rule):
            problem = f"{what} needs rule" if rule is None else f"unknown {kind} {rule!r}{owner}"
            raise InputError(f"{problem}; choose one of {', '.join(known)}, or name your own as module:Class")
        found = import_function(rule, what)
        if not settings and (component := function_component(kind, found, what)) is not None:
            return component
        if not isinstance(found, type) or not issubclass(found, Component) or found.kind != kind:
            raise InputError(
                f"{what} = {rule!r} is not a class of {BASES[kind].__name__}; make it a subclass of that"
                + (", or give a function without settings" if kind in FUNCTIONS else "")
            )
        cls = found
    return make_named(cls, settings, what, rule)


class Origin(NamedTuple):
    """How a method was made: by this preset with these arguments."""

    preset: Callable[..., "Method"]
    arguments: Mapping[str, Any]
    parts: Mapping[str, Any]  # what it made


@documented
@dataclass(frozen=True, kw_only=True)
class Method:
    """How clients train and how the server aggregates: a name, and components.

    Every component may be one of `fedtilt.methods`, your own, a built-in one's name, a table of `rule` and settings, or
    a plain function where one suffices: `aggregator=lambda models: models.mean(0)`.

    >>> Method(name="mine", aggregator={"rule": "krum", "bad_share": 0.2}, weighting="equal").aggregator.bad_share
    0.2
    """

    name: str = setting(REQUIRED, "unique in a run")
    objective: Any = setting(
        objectives.Tilted(), "what a client minimises, from the losses of a batch; default: their mean",
        named=COMPONENTS["objective"], own="your own",
    )  # fmt: skip
    personal: Any = setting(
        None, "a second model of every client, which stays there; default: none",
        named=COMPONENTS["personal"], own="your own",
    )  # fmt: skip
    local: Any = setting(
        None, "parameters that stay on their client; default: none",
        named=COMPONENTS["local"], allowed="a list of patterns of names, a table, or your own",
    )  # fmt: skip
    correction: Any = setting(None, "of client drift; default: none", named=COMPONENTS["correction"], own="your own")
    training: Any = setting(
        None, "the whole update of a client in plain PyTorch, in place of the four above; default: none",
        named=COMPONENTS["training"], own="your own",
    )  # fmt: skip
    prox: float = setting(0.0, "weight of a proximal term of the shared model towards the received one (FedProx)", ge=0)
    client_momentum: float = setting(
        0.0, "a client sends the moving average of its updates over rounds, with this weight of earlier ones", ge=0,
        lt=1,
    )  # fmt: skip
    lr: float | None = setting(None, "learning rate of the shared model; default: the run's", gt=0)
    weighting: Any = setting(
        weightings.Equal(), "how clients count on the server; default: equally",
        named=COMPONENTS["weighting"], own="your own",
    )  # fmt: skip
    before: Any = setting(
        (), "steps before the aggregator, in this order; default: none", named=COMPONENTS["before"], own="your own"
    )
    aggregator: Any = setting(
        aggregators.Tilted(), "how models become one model; default: `tilted` with q = 0, the mean",
        named=COMPONENTS["aggregator"], own="your own",
    )  # fmt: skip
    optimizer: Any = setting(
        None, "on the server; default: that of the run", named=COMPONENTS["optimizer"], own="your own"
    )
    origin: Origin | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not is_plain_name(self.name):
            raise InputError(
                "a method's name is a short word without slashes, control characters or a leading dot, "
                f"got {self.name!r:.60}"
            )
        for kind in COMPONENTS:
            value, owner = getattr(self, kind), f" of method {self.name!r}"
            if kind == "before":
                steps = [value] if callable(value) or isinstance(value, Component | str | Mapping) else value
                if not isinstance(steps, Sequence):
                    raise InputError(f"{kind}{owner} must be a list, such as ['nnm'], got {value!r:.60}")
                made: Any = tuple(component_of(kind, step, owner) for step in steps)
            else:
                made = None if value is None else component_of(kind, value, owner)
                if value is None and kind in ("objective", "weighting", "aggregator"):
                    raise InputError(f"{kind}{owner} is missing; leave it out for the default")
            object.__setattr__(self, kind, made)
        self._check_numbers()
        self._check_clients()
        self._check_server()
        if self.origin is not None and self.origin.parts != self.parts():
            object.__setattr__(self, "origin", None)  # changed since: the preset would not make it again

    def _check_numbers(self) -> None:
        for each in fields(self):
            value, limits = getattr(self, each.name), each.metadata.get("limits")
            if limits and not (value is None and each.default is None):
                value = check_number(value, f"{each.name} of method {self.name!r}", limits)
                object.__setattr__(self, each.name, value)

    def _check_clients(self) -> None:
        """Raise InputError if something has no effect beside another component of the clients."""
        name = self.name
        if self.training is not None:
            default = objectives.Tilted()
            given = [key for key in ("personal", "local", "correction") if getattr(self, key) is not None]
            given += [key for key, value in (("objective", default), ("prox", 0.0)) if getattr(self, key) != value]
            if given:
                raise InputError(
                    f"{given[0]} of method {name!r} has no effect beside training, which is a client's whole update; "
                    "leave one of them out"
                )
        if self.correction is not None and self.correction.prox and self.prox:
            raise InputError(
                f"prox = {self.prox:g} of method {name!r} has no effect beside correction {self.correction.label!r}, "
                "which has its own; leave it out"
            )
        if isinstance(self.personal, Moreau) and (self.prox or self.correction is not None):
            key = "prox" if self.prox else "correction"
            raise InputError(f"{key} of method {name!r} has no effect beside personal 'moreau'; leave one of them out")
        first = None if self.local is None else self.local.first_epochs
        if first is not None and (self.personal is not None or self.correction is not None):
            raise InputError(
                f"first_epochs = {first} of method {name!r} is for a method without personal models and without a "
                "correction; leave it out"
            )

    def _check_server(self) -> None:
        """Raise InputError if the rule, or a step before it, would ignore the weights."""
        name, is_equal = self.name, isinstance(self.weighting, weightings.Equal)
        if not is_equal and not self.aggregator.takes_weights:
            raise InputError(
                f"aggregator {self.aggregator.label!r} of method {name!r} takes no weights: use weighting = 'equal'"
            )
        for part in (self.correction, self.training):
            if part is None:
                continue
            if part.messages not in MESSAGES:
                raise InputError(
                    f"messages of {part.label!r} must be one of {', '.join(MESSAGES)}, got {part.messages!r}"
                )
            if part.messages == "trusted" and self.aggregator.is_robust:
                raise InputError(
                    f"{part.kind} {part.label!r} of method {name!r} trusts what clients send, so aggregator "
                    f"{self.aggregator.label!r} protects from none of them; declare messages = 'aggregated' or "
                    "'bounded', or use aggregator = 'mean'"
                )
        if self.correction is not None:
            for vector in self.correction.broadcasts:
                if vector not in self.correction.server_vectors:
                    raise InputError(
                        f"{describe(self.correction)} broadcasts {vector!r}, which is none of its server_vectors: "
                        f"{', '.join(map(repr, self.correction.server_vectors)) or 'it has none'}"
                    )
        labels = [step.label for step in self.before]
        for step in self.before:
            if labels.count(step.label) > 1:
                raise InputError(f"before of method {name!r} has {step.label!r} twice; name it once")
            if not step.takes_weights and not is_equal:
                raise InputError(
                    f"{step.label} of method {name!r} mixes models without weights: use weighting = 'equal'"
                )

    # -- what the engine asks ----------------------------------------------------------------------------------------

    @property
    def has_personal(self) -> bool:
        """Whether every client has a personal model."""
        return self.personal is not None or (self.training is not None and self.training.has_personal)

    @property
    def local_names(self) -> tuple[str, ...]:
        """Patterns of the parameters that stay on their client."""
        return () if self.local is None else self.local.names

    @property
    def needs_losses(self) -> bool:
        """Whether clients declare the loss of the model that they receive."""
        return self.weighting.needs_losses or self.aggregator.needs_losses

    @property
    def is_plain_mean(self) -> bool:
        """Whether the rule is the mean of the models, each with the same weight."""
        return self._is_mean and isinstance(self.weighting, weightings.Equal)

    @property
    def only_averages(self) -> bool:
        """Whether the server takes a mean of what clients send, whatever it is, and does nothing else with it."""
        return self._is_mean and not (self.before or self.correction or self.training or self.needs_losses)

    @property
    def _is_mean(self) -> bool:
        return type(self.aggregator) is aggregators.Mean or self.aggregator == aggregators.Tilted()

    def rates(self, lr: float, lr_personal: float | None) -> tuple[float, float]:
        """The learning rates of w and v in a run with these; the method's own come first.

        >>> Method(name="a", personal={"lr": 0.001}).rates(0.01, None), Method(name="b", lr=0.1).rates(0.01, None)
        ((0.01, 0.001), (0.1, 0.1))
        """
        shared = lr if self.lr is None else self.lr
        own: PersonalModel | None = self.personal
        personal_rate = lr_personal if own is None or own.lr is None else own.lr
        return shared, shared if personal_rate is None else personal_rate

    def components(self) -> dict[str, Component]:
        """All components by the name of their slot: their field, of the steps before the aggregator with a number."""
        found = {kind: getattr(self, kind) for kind in COMPONENTS if kind != "before"}
        steps = {f"before.{i}": step for i, step in enumerate(self.before)}
        return {slot: part for slot, part in (found | steps).items() if part is not None}

    # -- how it is written -------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Any]:
        """Everything but its name."""
        return {name: getattr(self, name) for name in PARTS}

    def to_table(self, *, all: bool = False) -> dict[str, Any]:
        """Everything that differs from the default, as a table of a spec without the name; or all settings."""
        table: dict[str, Any] = {}
        defaults = {each.name: each.default for each in fields(self)}
        for name, value in self.parts().items():
            if value == defaults[name] and not (all and isinstance(value, Component)):
                continue
            if name == "before":
                table["before"] = [step.to_table(all=all) for step in value]
            else:
                table[name] = value.to_table(all=all) if isinstance(value, Component) else value
        return table

    def settings(self) -> dict[str, Any]:
        """What a search may vary, by name: the arguments of its preset, components, and `component.setting`."""
        found = dict(self.origin.arguments) if self.origin is not None else {}
        found |= {"lr": self.lr, "client_momentum": self.client_momentum, "prox": self.prox}
        parts = self.components()
        found |= {
            slot: part.label for slot, part in parts.items() if slot not in ("local", "optimizer") and "." not in slot
        }
        for slot, part in parts.items():
            found |= {f"{slot}.{key}": value for key, value in part.settings(all=True).items()}
        return found

    def changed_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Those that name another component, and all that are no components: the same rule keeps its settings."""
        return {k: v for k, v in settings.items() if k not in COMPONENTS or v != self.settings().get(k)}

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same method with other values of `settings`, or with other components."""
        method: Any = self
        known = self.settings()
        for key, value in settings.items():
            if key not in known and key not in self.parts():
                raise InputError(
                    f"{key} = {value!r} is not a setting of method {self.name!r}, which has {', '.join(known)}; leave "
                    "it out"
                )
        settings = self.changed_settings(settings)
        own = {} if self.origin is None else {k: v for k, v in settings.items() if "." not in k}
        if own:
            assert self.origin is not None
            method = self.origin.preset(**{**self.origin.arguments, **own}, name=self.name)
        for key, value in settings.items():
            if key in own:
                continue
            slot, _, setting = key.rpartition(".")
            changed = method.components()[slot].with_settings(**{setting: value}) if slot else value
            kind, _, number = (slot or key).partition(".")
            if number:  # one of the steps before the aggregator
                changed = tuple(changed if i == int(number) else step for i, step in enumerate(method.before))
            method = replace(method, **{kind: changed})
        return method

    def _repr_html_(self) -> str:
        """What a notebook shows: what differs from the defaults."""
        rows = [(key, format_toml(value)) for key, value in self.to_table().items()]
        return html_table(f"Method {self.name!r}", ["part", "value"], rows, "All others have their defaults.")


PARTS = tuple(each.name for each in fields(Method) if each.name not in ("name", "origin"))  # what a method is made of
