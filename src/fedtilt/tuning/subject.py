"""The method that is tuned, from Python or from a spec: its own setting, and the method and training of any other."""

import copy
import dataclasses
import difflib
import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedtilt.data import Federation
from fedtilt.engine.prepare import PreparedRun, prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.models import ModelSource
from fedtilt.tuning.axes import Axis, Setting, format_setting, method_axes, training_axes

if TYPE_CHECKING:
    from fedtilt.spec import Spec

VALIDATION_SHARE = 0.1  # of a client's training samples, if a spec has no validation data


class Recipe(NamedTuple):
    """What a setting means: a method and training settings."""

    method: Method
    settings: TrainSettings


class Subject(Protocol):
    """What is tuned."""

    @property
    def yours(self) -> Setting:
        """The setting that the user has."""
        ...

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds that every setting is trained with."""
        ...

    @property
    def name(self) -> str:
        """The name of the method."""
        ...

    @property
    def federation(self) -> Federation:
        """That of the first seed."""
        ...

    def recipe(self, setting: Setting) -> Recipe:
        """The method and the training settings of a setting, if they are possible."""
        ...

    def arguments(self, setting: Setting) -> tuple[tuple[Method, ...], dict[str, Any]]:
        """All methods and the training settings that were given, with a setting, as `ft.run` takes them."""
        ...

    def prepare(self, seed: int, methods: Sequence[Method], settings: TrainSettings) -> PreparedRun:
        """The inputs of a run of methods that have the same training settings."""
        ...


def candidate_name(subject: Subject, setting: Setting) -> str:
    """The name of a setting among the methods of a run; the user's own has the name of the method."""
    return subject.name if setting == subject.yours else f"{subject.name} {format_setting(setting)}"


@dataclass(frozen=True)
class PythonSubject:
    """A method, a federation and a model of a Python program; seeds vary the training alone."""

    methods: tuple[Method, ...]
    index: int  # of the method that is tuned
    data: Federation
    model: ModelSource
    given: Mapping[str, Any]  # training settings
    settings: TrainSettings
    axes: tuple[str, ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(
        cls, methods: Iterable[Method], method: str | None, data: Federation, model: ModelSource,
        settings: TrainSettings, given: Mapping[str, Any], axes: Iterable[str], seeds: int,
    ) -> "PythonSubject":  # fmt: skip
        """The subject, if there is a method of this name (None: the only one), and if it has these settings."""
        found, axes = tuple(settings.check_methods(methods)), tuple(axes)
        if method is None and len(found) > 1:
            raise InputError(f"there are {len(found)} methods; name the one to tune, such as method={found[0].name!r}")
        index = _index([m.name for m in found], method)
        known = [*method_axes(found[index]), *training_axes()]
        for axis in axes:
            if axis not in known:
                raise _unknown_axis(axis, known)
        first = settings.seed
        return cls(found, index, data, model, given, settings, axes, tuple(range(first, first + seeds)))

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.methods[self.index].name

    @property
    def federation(self) -> Federation:
        """The federation."""
        return self.data

    @functools.cached_property
    def yours(self) -> Setting:
        """The setting of the method as it is."""
        return {axis: _current(self.methods[self.index], self.settings, axis) for axis in self.axes}

    def recipe(self, setting: Setting) -> Recipe:
        """The method and the training settings of a setting."""
        method = self.methods[self.index]
        of_method = {key: value for key, value in setting.items() if key in method_axes(method)}
        settings = dataclasses.replace(self.settings, **self._of_training(setting))
        method = method.with_settings(of_method)
        settings.check_methods([method])
        return Recipe(method, settings)

    def arguments(self, setting: Setting) -> tuple[tuple[Method, ...], dict[str, Any]]:
        """All methods and the training settings that were given, with a setting."""
        if setting == self.yours:
            return self.methods, dict(self.given)
        methods = list(self.methods)
        methods[self.index] = self.recipe(setting).method
        # a rate of the run that no method takes any more would be refused
        unused = {"lr": all(m.lr is not None for m in methods)}
        unused["lr_personal"] = all(m.personal is None or m.personal.lr is not None for m in methods)
        given = {key: value for key, value in self.given.items() if not unused.get(key)}
        return tuple(methods), given | self._of_training(setting)

    def _of_training(self, setting: Setting) -> dict[str, Any]:
        of_method = method_axes(self.methods[self.index])
        return {key: value for key, value in setting.items() if key not in of_method}

    def prepare(self, seed: int, methods: Sequence[Method], settings: TrainSettings) -> PreparedRun:
        """The inputs of a run."""
        return prepare(methods, self.data, self.model, dataclasses.replace(settings, seed=seed))


class SpecSubject:
    """A method of a spec; seeds vary the federation too, as in `fedtilt run`.

    Args:
        spec: the spec; without validation data, it gets some
        method: the name of the method; None: the first that has these settings
        axes: the settings that are varied
    """

    def __init__(self, spec: "Spec", method: str | None, axes: Iterable[str]) -> None:
        from fedtilt.spec import dump, parse

        self.spec = spec
        raw = tomllib.loads(dump(spec))
        if not spec.clients.validation:
            raw.setdefault("clients", {})["validation"] = VALIDATION_SHARE
        self._raw = raw
        self.with_validation = parse(raw)
        self._axes = tuple(axes)
        self.index = self._find(method)
        self.seeds = tuple(range(spec.seed, spec.seed + spec.seeds))
        self._federations: dict[int, Federation] = {}
        self.yours = {axis: self._yours(axis) for axis in self._axes}

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.spec.methods[self.index].name

    @property
    def federation(self) -> Federation:
        """That of the first seed."""
        return self._federation(self.seeds[0])

    def recipe(self, setting: Setting) -> Recipe:
        """The method and the training settings of a setting."""
        from fedtilt.spec import train_settings_of

        spec = self._parsed(self._raw, setting)
        return Recipe(spec.methods[self.index].to_method(), train_settings_of(spec, self.seeds[0]))

    def arguments(self, setting: Setting) -> tuple[tuple[Method, ...], dict[str, Any]]:
        """All methods and the training settings of the spec, with a setting."""
        from fedtilt.spec import train_settings_of

        spec = self.spec_with(setting)
        settings = train_settings_of(spec, spec.seed)
        changed = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
        defaults = {f.name: f.default for f in dataclasses.fields(settings)}
        given = {key: value for key, value in changed.items() if value != defaults[key]}
        return tuple(m.to_method() for m in spec.methods), given

    def spec_with(self, setting: Setting) -> "Spec":
        """The user's spec with a setting."""
        from fedtilt.spec import dump

        return self.spec if setting == self.yours else self._parsed(tomllib.loads(dump(self.spec)), setting)

    def prepare(self, seed: int, methods: Sequence[Method], settings: TrainSettings) -> PreparedRun:
        """The inputs of a run."""
        from fedtilt.spec import model_of

        settings = dataclasses.replace(settings, seed=seed)
        return prepare(methods, self._federation(seed), model_of(self.spec), settings)

    def _federation(self, seed: int) -> Federation:
        from fedtilt.spec import federation_of

        if seed not in self._federations:
            self._federations[seed] = federation_of(self.with_validation, seed)
        return self._federations[seed]

    def _parsed(self, raw: Mapping[str, Any], setting: Setting) -> "Spec":
        from fedtilt.spec import parse
        from fedtilt.spec.read import component_table

        of_method = {key: value for key, value in setting.items() if key in self._method_settings(self.index)}
        of_training = {key: value for key, value in setting.items() if key not in of_method}
        methods = [copy.deepcopy(dict(method)) for method in raw["methods"]]
        method = self.spec.methods[self.index].to_method()
        for key, value in method.changed_settings(of_method).items():
            table, name = component_table(methods[self.index], key)
            table[name] = value
        return parse({**raw, "methods": methods, "train": {**raw.get("train", {}), **of_training}})

    def _method_settings(self, index: int) -> list[str]:
        return method_axes(self.spec.methods[index].to_method())

    def _find(self, method: str | None) -> int:
        """The index of the method that is tuned."""
        names = [m.name for m in self.spec.methods]
        candidates = [_index(names, method)] if method is not None else range(len(names))
        training = training_axes()
        for i in candidates:
            if all(axis in (*self._method_settings(i), *training) for axis in self._axes):
                return i
        settings = {i: [key for key in self._method_settings(i) if key not in training] for i in candidates}
        known = list(dict.fromkeys([*(key for keys in settings.values() for key in keys), *training]))
        for axis in self._axes:
            if axis not in known:
                raise _unknown_axis(axis, known)
        possible = "; ".join(f"{names[i]} has {', '.join(settings[i])}" for i in candidates)
        raise InputError(f"no method has all of {' and '.join(self._axes)}; {possible}")

    def _yours(self, axis: str) -> Any:
        from fedtilt.spec import train_settings_of

        return _current(self.spec.methods[self.index].to_method(), train_settings_of(self.spec, self.seeds[0]), axis)


def _current(method: Method, settings: TrainSettings, axis: str) -> Any:
    """The value of an axis as it is; a setting that a method does not have is that of the run."""
    rates = method.rates(settings.lr, settings.lr_personal)
    of_run = {
        "lr": rates[0], "lr_personal": rates[1], "personal.lr": rates[1], "epochs_personal": settings.epochs,
        "personal.epochs": settings.epochs,
    }  # fmt: skip
    own = method.settings().get(axis)
    if own is not None or ("." in axis and axis not in of_run):
        return own
    return of_run[axis] if axis in of_run else getattr(settings, axis)


def _index(names: Sequence[str], method: str | None) -> int:
    if method is not None and method not in names:
        raise InputError(f"method {method!r} is not among the methods; choose from {', '.join(names)}")
    return 0 if method is None else names.index(method)


def _unknown_axis(axis: str, known: Sequence[str]) -> InputError:
    close = difflib.get_close_matches(axis, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"choose from {', '.join(dict.fromkeys(known))}"
    return InputError(f"over {axis}: there is no such setting to tune; {remedy}")


def check_validation(subject: Subject, axes: Mapping[str, Axis]) -> None:
    """Refuse a search without validation samples."""
    federation = subject.federation
    if any(map(len, federation.validation_index)):
        return
    largest = int(federation.train_sizes().max())
    raise InputError(
        f"no client has a validation sample to tune {' and '.join(axes)} on (the largest has {largest} training "
        "samples); give the federation validation = 0.1 (clients.validation in a spec) or a larger share"
    )
