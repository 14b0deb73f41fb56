"""The training settings of a federation: what follows from them, and which contradict each other."""

import difflib
import functools
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

from torch import nn

from fedtilt import seeds
from fedtilt.attacks.attack import Attack
from fedtilt.config.named import NamedSettings, named_settings
from fedtilt.config.setting_fields import check_fields_used, check_table, takes_settings
from fedtilt.data import Federation
from fedtilt.engine.train_fields import TrainFields
from fedtilt.errors import InputError, NoEffect
from fedtilt.imports import import_function, is_function_path
from fedtilt.losses import BALANCED, LOSSES, ClassLoss, CrossEntropy, Loss, losses_for
from fedtilt.math.losses import SampleLoss
from fedtilt.methods import Method, check_methods, component_of
from fedtilt.optimizers import Optimizer, optimizer_of
from fedtilt.privacy.privacy import Privacy
from fedtilt.schedules import SCHEDULES
from fedtilt.stopping import STOPS
from fedtilt.training.augmentation import Transform


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TrainFields):
    """How a federation trains, with any method; the defaults are those of the paper."""

    def __post_init__(self) -> None:
        check_table(self)
        self._make_objects()
        if isinstance(self.init, os.PathLike):
            object.__setattr__(self, "init", os.fspath(self.init))
        if not isinstance(self.init, str | nn.Module | None):
            raise InputError(f"init must be a safetensors file or an nn.Module, got {self.init!r}")
        if not isinstance(self.privacy, Privacy | None):
            raise InputError(f"privacy must be an ft.Privacy, got {self.privacy!r}")
        if not isinstance(self.attack, Attack | None):
            raise InputError(f"attack must be an ft.Attack, got {self.attack!r}")
        check_fields_used(self)
        self._check_combinations()

    def _make_objects(self) -> None:
        """Optimisers, the schedule and the loss from their names or tables, and the short forms of their settings."""
        made: dict[str, Any] = {
            "optimizer": optimizer_of(self.optimizer),
            "schedule": named_settings(self.schedule, SCHEDULES, "schedule"),
        }
        if self.server_optimizer is not None:
            made["server_optimizer"] = component_of("optimizer", self.server_optimizer, " of the server")
        if self.stop is not None:
            made["stop"] = named_settings(self.stop, STOPS, "stop")
        is_path = isinstance(self.loss, str) and is_function_path(self.loss)  # imported when it is used
        if self.loss is not None and not is_path and (isinstance(self.loss, Loss) or not callable(self.loss)):
            made["loss"] = named_settings(self.loss, LOSSES, "loss", ", or a function as package.module:function")
        for key, value in made.items():
            object.__setattr__(self, key, value)
        for key, owner in self._owners():
            value = getattr(self, key)
            if value and not _has(owner, key):
                name = getattr(owner, "label", owner)
                raise NoEffect(f"{key} = {value:g} has no effect with {name!r}; leave it out", key=key)
            if value and getattr(owner, key):
                raise InputError(f"{key} = {value:g} is given twice: beside {owner!r}; leave one of them out")

    def _check_combinations(self) -> None:
        """Raise InputError if settings contradict each other, or need another one."""
        warmup = self.schedule.warmup_rounds
        if 0 < self.rounds <= warmup:
            raise InputError(f"warmup_rounds = {warmup} is not less than rounds = {self.rounds}; choose fewer")
        is_path = isinstance(self.transform, str) and is_function_path(self.transform)
        if not (
            self.transform is None or is_path or (callable(self.transform) and not isinstance(self.transform, str))
        ):
            raise InputError(
                f"transform = {self.transform!r} is no function of a batch; name it as package.module:function, or "
                "give a function in Python"
            )
        if self.micro_batch_size is not None and self.micro_batch_size >= self.batch_size:
            raise InputError(
                f"micro_batch_size = {self.micro_batch_size} has no effect: batch_size = {self.batch_size} is not "
                "more; leave it out, or choose less"
            )
        if self.cluster_timeout != TrainFields.cluster_timeout and not self.on_cluster:
            raise InputError(
                f"cluster_timeout = {self.cluster_timeout} has no effect here; set cluster, or leave it out"
            )
        if self.workers == 0 and self.on_cluster:
            raise InputError("workers = 0 leaves nothing to train on a cluster; leave it out")
        if self.screen is not None and 0 < self.screen <= 1:
            raise InputError(f"screen = {self.screen:g} would clip ordinary updates; choose 0 (none) or more than 1")
        if self.privacy is not None:
            self.privacy.check_settings(self.screen, self.buffers, counts_classes=self._counts_classes)
        if self.privacy is not None and self.stop is not None and self.stop.restore_best:
            raise InputError(
                "restore_best = True of stop would hide the epsilon of later rounds; leave it out with privacy"
            )
        if self.attack is not None:
            self.attack.check_rounds(self.rounds)

    @property
    def unused(self) -> tuple[str, ...]:
        """The settings without effect beside the others, whatever their value."""
        owners = {key: owner for key, owner in self._owners() if not _has(owner, key)}
        return (*owners, *(() if self.on_cluster else ("cluster_timeout",)))

    def _owners(self) -> list[tuple[str, Any]]:
        """The short forms of settings of the optimiser and the loss, and whose they are."""
        loss = CrossEntropy() if self.loss is None else self.loss
        return [("momentum", self.optimizer), ("weight_decay", self.optimizer), ("label_smoothing", loss)]

    @functools.cached_property
    def client_optimizer(self) -> Optimizer:
        """The optimiser of every local job."""
        short = {key: value for key in ("momentum", "weight_decay") if (value := getattr(self, key))}
        return cast(Optimizer, self.optimizer.with_settings(**short))

    @functools.cached_property
    def sample_loss(self) -> SampleLoss:
        """The loss of every local job."""
        if isinstance(self.loss, str):
            return import_function(self.loss, "loss")
        loss = CrossEntropy() if self.loss is None else self.loss
        if not isinstance(loss, Loss):
            return cast(SampleLoss, loss)
        return (loss.with_settings(label_smoothing=self.label_smoothing) if self.label_smoothing else loss).function

    @functools.cached_property
    def batch_transform(self) -> Transform | None:
        """The function of `transform`; None: there is none."""
        return import_function(self.transform, "transform") if isinstance(self.transform, str) else self.transform

    def for_task(self, task: str) -> Self:
        """The settings with the default loss of a task; a loss of another one is rejected."""
        names = losses_for(task)
        if isinstance(self.loss, Loss) and self.loss.task != task:
            raise InputError(
                f"loss = {self.loss.label!r} is not for {task}; choose one of {', '.join(names)}, or leave it out"
            )
        return replace(self, loss=names[0]) if self.loss is None else self

    def for_classes(self, federation: Federation) -> Self:
        """The settings with numbers in place of balanced class weights."""
        if not self._counts_classes:
            return self
        return replace(self, loss=self.loss.for_counts(federation.class_sizes()))

    @property
    def _counts_classes(self) -> bool:
        """Whether the loss depends on how many samples of each class all clients have."""
        return isinstance(self.loss, ClassLoss) and self.loss.class_weights == BALANCED

    @property
    def on_cluster(self) -> bool:
        """Whether clients are trained on a Ray cluster, which `cuda:all` starts on this machine."""
        return self.cluster is not None or self.device == "cuda:all"

    def check_methods(self, methods: Iterable[Method]) -> list[Method]:
        """The methods as a list, if they can be trained together with these settings."""
        plain, epochs = self.client_optimizer.is_plain, self.local_steps is None
        methods = check_methods(methods, self.lr, self.lr_personal, plain_sgd=plain, epochs=epochs)
        if self.privacy is not None:
            for method in methods:
                self.privacy.check_method(method)
        own = next((m for m in methods if m.training is not None and self.micro_batch_size is not None), None)
        if own is not None:
            raise InputError(
                f"micro_batch_size = {self.micro_batch_size} has no effect on method {own.name!r}, whose training "
                "takes whole batches; leave it out"
            )
        for method in methods if self.attack is not None else ():
            rule = method.weighting
            if rule.claims:
                raise InputError(
                    f"weighting = {rule.label!r} of method {method.name!r} counts the {rule.claims} that clients "
                    "claim, and attackers can claim any number; use weighting = 'equal'"
                )
        return methods

    def keywords_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for these values, of which some are of an object: `server_optimizer.lr`."""
        keywords = {key: value for key, value in values.items() if "." not in key}
        for key, value in values.items():
            name, dot, setting = key.partition(".")
            if not dot:
                continue
            owner = getattr(replace(self, **keywords), name)
            if not isinstance(owner, NamedSettings) or setting not in owner.settings(all=True):
                what = owner.label if isinstance(owner, NamedSettings) else owner
                raise InputError(f"{key} = {value!r} has no effect with {name} = {what!r}; set another {name}")
            keywords[name] = owner.with_settings(**{setting: value})
        return keywords

    def lr_factor(self, round: int) -> float:
        """What the learning rates of this round, counted from 1, are multiplied with: warm-up, then the schedule."""
        return cast(float, self.schedule.factor(round, self.rounds))

    def job_epochs(self, epochs: int | None) -> int | None:
        """The epochs of a job: its own, or the run's; None with `local_steps`, which count instead."""
        return None if self.local_steps is not None else epochs or self.epochs

    def selected(self, round: int, clients: int, left_out: Sequence[int] = ()) -> list[int]:
        """The clients that take part in a round; with secret randomness, every call is another draw.

        Clients that are left out are drawn like the others and then removed, so that the others are selected as with
        them; the round may have no client.
        """
        count = self.clients_per_round(clients)
        if self.privacy is not None and self.privacy.randomness == "secret":
            drawn = sorted(secrets.SystemRandom().sample(range(clients), count))
        else:
            drawn = seeds.choose(seeds.key(self.seed, "selection", round=round), clients, count)
        return [client for client in drawn if client not in left_out]

    def check_left_out(self, left_out: Sequence[int]) -> None:
        """Raise InputError if clients are left out and the privacy of the run counts on all of them."""
        if left_out and self.privacy is not None:
            raise InputError(
                "leave_out gives rounds fewer clients than the privacy of the run is computed for; remove these "
                "clients from the data, and start a new run"
            )

    def clients_per_round(self, clients: int) -> int:
        """How many clients take part in a round: max(participation · N, 1)."""
        return max(1, int(self.participation * clients + 0.5))  # a half is rounded up

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after this round; after the last one they always are."""
        return round % self.eval_interval == 0 or round == self.rounds

    @property
    def eval_interval(self) -> int:
        """Rounds between two evaluations, by default about fifty of them a run."""
        return self.eval_every or max(1, self.rounds // 50)


def train_settings(keywords: Mapping[str, Any], settings: TrainSettings | None = None) -> TrainSettings:
    """The settings with those of the keyword arguments; for an unknown name, the error suggests the closest one."""
    if not isinstance(settings, TrainSettings | None):
        raise InputError(f"settings must be an ft.TrainSettings, got {settings!r:.60}; give others as keywords")
    names = [field.name for field in fields(TrainSettings)]
    for name in keywords:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names[:8])}, … (help(ft.run))"
            if (written := table_with(name)) is not None:
                remedy = f"write {written}"
            raise InputError(f"{name} is not a training setting; {remedy}")
    return TrainSettings(**keywords) if settings is None else replace(settings, **keywords)


def table_with(name: str) -> str | None:
    """How an optimiser, schedule, loss or stop, or a setting of the first that has it, is written; None: none has it.

    >>> table_with("nesterov"), table_with("patience")
    ('optimizer = { name = "sgd", nesterov = … }', 'stop = "patience"')
    """
    for field in fields(TrainSettings):
        for rule, cls in field.metadata["named"].items():
            if name == rule:
                return f'{field.name} = "{rule}"'
            if name in {each.name for each in fields(cls)}:
                return f'{field.name} = {{ {cls.key} = "{rule}", {name} = … }}'
    return None


def given_settings(keywords: Mapping[str, Any], settings: TrainSettings | None) -> set[str]:
    """The names of the settings that are given: the keywords, and those of an object that are not the default."""
    of_object = [] if settings is None else [s.name for s in fields(settings) if getattr(settings, s.name) != s.default]
    return {*keywords, *of_object}


def _has(owner: object, key: str) -> bool:
    """Whether an optimiser or a loss has a setting."""
    return isinstance(owner, NamedSettings) and key in owner.settings(all=True)


takes_train_settings = takes_settings(TrainSettings)
