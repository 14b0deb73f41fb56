"""The method that is tuned, from Python or from a spec: its current setting, and the candidate of any other."""

import copy
import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedtilt.config.named import NamedSettings
from fedtilt.config.setting_fields import settings_of
from fedtilt.data import Federation
from fedtilt.engine.prepare import PreparedRun, prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.models import ModelSource
from fedtilt.spec import Spec, dump, federation_of, model_of, parse, train_settings_of
from fedtilt.spec.overrides import component_table, settings_table
from fedtilt.tuning.axes import Setting, format_setting, method_axes, training_axes

VALIDATION_SHARE = 0.1  # of a client's training samples, if a spec has no validation data


class Candidate(NamedTuple):
    """A setting as a method and training settings."""

    method: Method
    settings: TrainSettings


class TunedMethod:
    """The method of this index of a Python program, with its federation and model; seeds vary the training alone.

    `given` are the training settings that are not the default.
    """

    def __init__(
        self, methods: Iterable[Method], index: int, axes: Iterable[str], seeds: Sequence[int], settings: TrainSettings,
        *, given: Mapping[str, Any], federation: Federation | None, model: ModelSource,
    ) -> None:  # fmt: skip
        self.methods, self.index, self.seeds = tuple(methods), index, tuple(seeds)
        self._settings, self._given, self._federation, self._model = settings, given, federation, model
        self.method = self.methods[index]
        self.name = self.method.name
        self.current: Setting = {axis: self._current_value(axis) for axis in axes}

    def _current_value(self, axis: str) -> Any:
        """The value of an axis as it is; a setting that the method does not have is that of the run."""
        settings = self._settings
        lr, lr_personal = self.method.rates(settings.lr, settings.lr_personal)
        of_run = {
            "lr": lr, "lr_personal": lr_personal, "personal.lr": lr_personal, "epochs_personal": settings.epochs,
            "personal.epochs": settings.epochs,
        }  # fmt: skip
        own = self.method.settings().get(axis)
        if own is not None or ("." in axis and axis not in (*of_run, *training_axes())):
            return own
        name, _, part = axis.partition(".")
        if axis in of_run or part:
            return of_run[axis] if axis in of_run else getattr(getattr(settings, name), part, None)
        value = getattr(settings, axis)
        return value.to_value() if isinstance(value, NamedSettings) else value

    def candidate_name(self, setting: Setting) -> str:
        """The name of a setting among the methods of a run; the current one has the name of the method."""
        return self.name if setting == self.current else f"{self.name} {format_setting(setting)}"

    def candidate(self, setting: Setting) -> Candidate:
        """The method and the training settings of a setting; InputError if they are not possible."""
        of_method, of_training = self._split(setting)
        settings = dataclasses.replace(self._settings, **self._settings.keywords_of(of_training))
        method = self.method.with_settings(of_method)
        settings.check_methods([method])
        return Candidate(method, settings)

    def _split(self, setting: Setting) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings of the method, and those of the training."""
        axes = method_axes(self.method)
        of_method = {key: value for key, value in setting.items() if key in axes}
        return of_method, {key: value for key, value in setting.items() if key not in axes}

    def arguments(self, setting: Setting) -> tuple[tuple[Method, ...], dict[str, Any]]:
        """All methods and the training settings that are not the default, with a setting, as `ft.run` takes them."""
        if setting == self.current:
            return self.methods, dict(self._given)
        methods = list(self.methods)
        methods[self.index] = self.candidate(setting).method
        # a rate of the run that no method takes any more would be an error
        unused = {"lr": all(m.lr is not None for m in methods)}
        unused["lr_personal"] = all(m.personal is None or m.personal.lr is not None for m in methods)
        given = {key: value for key, value in self._given.items() if not unused.get(key)}
        return tuple(methods), given | self._settings.keywords_of(self._split(setting)[1])

    def federation(self, seed: int) -> Federation:
        """The federation of a seed."""
        assert self._federation is not None
        return self._federation

    def prepare(self, seed: int, methods: Sequence[Method], settings: TrainSettings) -> PreparedRun:
        """The inputs of a run of methods that have the same training settings."""
        return prepare(methods, self.federation(seed), self._model, dataclasses.replace(settings, seed=seed))


class SpecMethod(TunedMethod):
    """A method of a spec, by name, or the first that has these settings; seeds vary the federation too.

    A spec without validation data gets some.
    """

    def __init__(self, spec: Spec, method: str | None, axes: Iterable[str]) -> None:
        self.spec, axes = spec, tuple(axes)
        self._raw = tomllib.loads(dump(spec))
        if not spec.clients.validation:
            self._raw.setdefault("clients", {})["validation"] = VALIDATION_SHARE
        self.with_validation = parse(self._raw)
        self._federations: dict[int, Federation] = {}
        methods, settings = [m.to_method() for m in spec.methods], train_settings_of(spec, spec.seed)
        values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
        given = {f.name: values[f.name] for f in dataclasses.fields(settings) if values[f.name] != f.default}
        super().__init__(
            methods, find_method(methods, method, axes), axes, range(spec.seed, spec.seed + spec.seeds), settings,
            given=given, federation=None, model=model_of(spec),
        )  # fmt: skip

    def candidate(self, setting: Setting) -> Candidate:
        """The method and the training settings of a setting; InputError if the spec cannot have them."""
        spec = self._parsed(self._raw, setting)
        return Candidate(spec.methods[self.index].to_method(), train_settings_of(spec, spec.seed))

    def spec_with(self, setting: Setting) -> Spec:
        """The user's spec with a setting."""
        return self.spec if setting == self.current else self._parsed(tomllib.loads(dump(self.spec)), setting)

    def _parsed(self, raw: Mapping[str, Any], setting: Setting) -> Spec:
        of_method, of_training = self._split(setting)
        methods = [copy.deepcopy(dict(method)) for method in raw["methods"]]
        for key, value in self.method.changed_settings(of_method).items():
            table, name = component_table(methods[self.index], key)
            table[name] = value
        train = copy.deepcopy(dict(raw.get("train", {})))
        for key, value in of_training.items():
            name, _, part = key.partition(".")
            table = settings_table(train, settings_of(TrainSettings)[name]) if part else train
            table[part or name] = value
        return parse({**raw, "methods": methods, "train": train})

    def federation(self, seed: int) -> Federation:
        """The federation of a seed, which is read once."""
        if seed not in self._federations:
            self._federations[seed] = federation_of(self.with_validation, seed)
        return self._federations[seed]


def find_method(methods: Sequence[Method], name: str | None, axes: Sequence[str]) -> int:
    """The index of the method of this name, or of the first that has these settings; InputError if there is none."""
    names, training = [m.name for m in methods], training_axes()
    if name is not None and name not in names:
        raise InputError(f"method {name!r} is not among the methods; choose from {', '.join(names)}")
    candidates = range(len(names)) if name is None else [names.index(name)]
    of_method = {i: method_axes(methods[i]) for i in candidates}
    for i in candidates:
        if all(axis in (*of_method[i], *training) for axis in axes):
            return i
    known = list(dict.fromkeys([*(key for keys in of_method.values() for key in keys), *training]))
    for axis in axes:
        if axis not in known:
            close = [key for key in known if key.endswith(f".{axis}")] or difflib.get_close_matches(axis, known, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
            raise InputError(f"over {axis}: there is no such setting to tune; {remedy}")
    possible = "; ".join(
        f"{names[i]} has {', '.join(key for key in of_method[i] if key not in training)}" for i in candidates
    )
    raise InputError(f"no method has all of {' and '.join(axes)}; {possible}")
