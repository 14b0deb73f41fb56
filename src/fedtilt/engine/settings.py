"""The training settings of a federation."""

import functools
import math
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import nn

from fedtilt import seeds
from fedtilt.attacks.attack import Attack
from fedtilt.config.setting_fields import check_fields_used, check_value, setting
from fedtilt.errors import InputError
from fedtilt.imports import check_name
from fedtilt.math import losses
from fedtilt.math.losses import SampleLoss
from fedtilt.methods import Method, ServerOptimizer, check_methods
from fedtilt.methods.server_optimizers import SERVER_OPTIMIZERS
from fedtilt.parts import BUFFER_MODES
from fedtilt.privacy.privacy import Privacy
from fedtilt.training import BACKENDS, LAST_BATCH, OPTIMIZERS, Optimizer

SCHEDULES = ("constant", "cosine", "step", "exponential")
PRECISIONS = ("float32", "tf32", "bfloat16")
CLUSTER_TIMEOUT = 600.0


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a federation trains, with any method; the defaults are those of the paper.

    This is the one list of the training settings: `ft.run`, `ft.simulate` and the `[train]` table of a spec take these.
    """

    rounds: int = setting(50, "how many rounds", ge=1, heading="Rounds and local steps")
    participation: float = setting(0.1, "the share of clients that take part in a round", gt=0, le=1)
    epochs: int = setting(10, "passes of a client over its data in a round", ge=1, only_with={"local_steps": [None]})
    batch_size: int = setting(10, "samples per step", ge=1)
    last_batch: str = setting(
        "even",
        "how an epoch is split: even batches, a smaller last batch (keep), or without it (drop)",
        choices=LAST_BATCH,
    )
    lr: float = setting(0.01, "learning rate of the shared model", gt=0)
    lr_personal: float | None = setting(None, "learning rate of the personal models; left out: lr", gt=0, example=0.01)
    local_steps: int | None = setting(
        None, "steps of a client in a round, in place of epochs; left out: epochs", ge=1, example=20
    )
    optimizer: str = setting(
        "sgd",
        "the optimiser, as in torch.optim; its state is new in every round",
        choices=OPTIMIZERS,
        heading="The optimiser on the clients",
    )
    momentum: float = setting(0.0, "momentum of sgd", ge=0, lt=1, only_with={"optimizer": ["sgd"]})
    nesterov: bool = setting(False, "whether the momentum is Nesterov's", only_with={"momentum": []})
    weight_decay: float = setting(0.0, "weight decay of the optimiser; decoupled with adamw", ge=0)
    clip_norm: float | None = setting(
        None, "the largest L2 norm of a gradient; longer ones are scaled down; left out: any", gt=0, example=1.0
    )
    schedule: str = setting(
        "constant",
        "constant; cosine: down to 0 after the last round; exponential: times decay every round; step: times decay "
        "every decay_rounds rounds",
        choices=SCHEDULES,
        heading="The learning rates over the rounds",
    )
    decay: float | None = setting(
        None,
        "the factor of exponential and step",
        gt=0,
        le=1,
        example=0.99,
        only_with={"schedule": ["step", "exponential"]},
    )
    decay_rounds: int | None = setting(
        None, "rounds between two decays of step", ge=1, example=10, only_with={"schedule": ["step"]}
    )
    warmup_rounds: int = setting(
        0, "rounds before the schedule starts, over which the learning rates rise in equal steps", ge=0
    )
    loss: str | SampleLoss | None = setting(
        None,
        "the loss of a sample, which the tilts act on; your own is a function of outputs and targets that returns one "
        "value per sample; left out: cross_entropy, or squared with numbers as targets",
        example="focal",
        allowed=f"{', '.join(losses.NAMES)} or package.module:function",
        heading="The loss",
    )
    label_smoothing: float = setting(
        0.0, "label smoothing of cross_entropy", ge=0, lt=1, only_with={"loss": [None, "cross_entropy"]}
    )
    focal_gamma: float | None = setting(
        None, "the exponent of focal; left out: 2", ge=0, example=2.0, only_with={"loss": ["focal"]}
    )
    gce_q: float | None = setting(
        None,
        "the exponent of gce, between the cross-entropy and 1 − p; left out: 0.7",
        gt=0,
        le=1,
        example=0.7,
        only_with={"loss": ["gce"]},
    )
    sce_alpha: float | None = setting(
        None, "the weight of sce's cross-entropy; left out: 0.1", ge=0, example=0.1, only_with={"loss": ["sce"]}
    )
    sce_beta: float | None = setting(
        None, "the weight of sce's reverse cross-entropy; left out: 1", gt=0, example=1.0, only_with={"loss": ["sce"]}
    )
    huber_delta: float | None = setting(
        None,
        "the error from which on huber is linear, in standard deviations of the target; left out: 1",
        gt=0,
        example=1.0,
        only_with={"loss": ["huber"]},
    )
    class_weights: tuple[float, ...] = setting(
        (),
        "a factor of the loss for every class; empty: 1 each",
        gt=0,
        allowed="a list of numbers > 0, such as [1.0, 5.0]",
        only_with={"loss": [None, *losses.CLASS_LOSSES]},
    )
    local: tuple[str, ...] = setting(
        (),
        "parameters of the shared model that stay on their client and are never averaged",
        allowed='a list of patterns of names, such as ["head.*"]',
        heading="The parts of the model and its start",
    )
    buffers: str = setting(
        "local",
        "buffers such as the statistics of BatchNorm: every client keeps its own (local), the server averages them "
        "(average), or they never change (frozen)",
        choices=BUFFER_MODES,
    )
    init: str | nn.Module | None = setting(
        None,
        "the weights that every model starts from; left out: those that the model is built with",
        example="weights.safetensors",
        allowed="a safetensors file",
    )
    server_optimizer: str | None = setting(
        None,
        "takes aggregated − received as a step (FedOpt); left out: the aggregated model is the next one",
        choices=SERVER_OPTIMIZERS,
        example="adam",
        heading="The optimiser on the server",
    )
    server_lr: float = setting(1.0, "learning rate of the server optimiser", gt=0, only_with={"server_optimizer": []})
    server_momentum: float | None = setting(
        None,
        "momentum of the server optimiser; left out: 0 for sgd and adagrad, 0.9 for adam and yogi",
        ge=0,
        lt=1,
        example=0.9,
        only_with={"server_optimizer": []},
    )
    server_epsilon: float | None = setting(
        None,
        "what adam, yogi and adagrad add to the root of the second moment; left out: 0.001",
        gt=0,
        example=0.001,
        only_with={"server_optimizer": ["adam", "yogi", "adagrad"]},
    )
    screen: float | None = setting(
        None,
        "compare every update with the others of its round: one longer than so many times the median is clipped, one "
        "that stands out more is refused; 0: no screening; left out: 0 in the simulator, 3 in a deployment",
        ge=0,
        example=3.0,
    )
    privacy: Privacy | None = setting(
        None,
        "client-level differential privacy, such as ft.Privacy(clip=1.0, epsilon=8, delta=1e-5); left out: none",
        in_table=False,
    )
    attack: Attack | None = setting(
        None,
        "clients that work against the others, such as ft.Attack(kind='alie', share=0.2); left out: none",
        in_table=False,
    )
    audit: bool = setting(False, "whether to collect, for every sample, what fedtilt audit needs to find wrong labels")
    seed: int = setting(0, "the random seed", ge=0, in_table=False)
    eval_every: int | None = setting(
        None,
        "rounds between two evaluations; left out: about fifty evaluations a run",
        ge=1,
        example=5,
        heading="Evaluation and speed",
    )
    device: str = setting(
        "auto", "where to train; auto: cuda if there is one; cuda:all: on all GPUs of this machine", in_table=False
    )
    backend: str = setting(
        "auto",
        "what trains the models; autograd supports any model, the others are faster; native needs a C compiler",
        choices=("auto", *BACKENDS),
    )
    workers: int | None = setting(
        None, "worker processes; left out: one per core or, on a cluster, per CPU or GPU; 0: none", ge=0, example=2
    )
    stack_size: int | None = setting(
        None,
        "clients that a GPU trains together; left out: all of a round or, on a cluster, the share of a worker",
        ge=1,
        example=16,
    )
    cluster: str | None = setting(
        None,
        "the Ray cluster that trains the clients: host:port of its head node, or auto for the one that this machine "
        "belongs to; left out: this machine",
        example="auto",
    )
    cluster_timeout: float = setting(CLUSTER_TIMEOUT, "seconds to wait for a worker when the cluster has none", gt=0)
    precision: str = setting(
        "float32",
        "precision of products on CUDA; tf32 and bfloat16 are faster; models, losses and averages are float32",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, check_value(field, value))
        if isinstance(self.loss, str):
            check_name(self.loss, "loss", losses.NAMES)
        elif self.loss is not None and not callable(self.loss):
            raise InputError(f"loss must be a name or a function of outputs and targets, got {self.loss!r}")
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

    def _check_combinations(self) -> None:
        """Refuse settings that contradict each other, or that need another one."""
        if self.schedule in ("step", "exponential") and self.decay is None:
            raise InputError(f"schedule = {self.schedule!r} needs decay, such as decay = 0.5")
        if self.schedule == "step" and self.decay_rounds is None:
            raise InputError("schedule = 'step' needs decay_rounds, such as decay_rounds = 10")
        if 0 < self.rounds <= self.warmup_rounds:
            raise InputError(
                f"warmup_rounds = {self.warmup_rounds} is not less than rounds = {self.rounds}; choose fewer"
            )
        if self.cluster_timeout != CLUSTER_TIMEOUT and not self.on_cluster:
            raise InputError(
                f"cluster_timeout = {self.cluster_timeout} has no effect here; set cluster, or leave it out"
            )
        if self.workers == 0 and self.on_cluster:
            raise InputError("workers = 0 leaves nothing to train on a cluster; leave it out")
        if self.screen is not None and 0 < self.screen <= 1:
            raise InputError(f"screen = {self.screen:g} would clip ordinary updates; choose 0 (none) or more than 1")
        if self.privacy is not None:
            self.privacy.check_settings(self.screen, self.buffers)
        if self.attack is not None:
            self.attack.check_rounds(self.rounds)

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
            self.loss or "cross_entropy", label_smoothing=self.label_smoothing, focal_gamma=self.focal_gamma,
            class_weights=self.class_weights, huber_delta=self.huber_delta, gce_q=self.gce_q,
            sce_alpha=self.sce_alpha, sce_beta=self.sce_beta,
        )  # fmt: skip

    def for_task(self, task: str) -> Self:
        """The settings with the loss of "classification" or "regression"; a loss of the other one is refused."""
        names = losses.CLASS_LOSSES if task == "classification" else losses.NUMBER_LOSSES
        if self.loss in losses.NAMES and self.loss not in names:
            raise InputError(
                f"loss = {self.loss!r} is not for {task}; choose one of {', '.join(names)}, or leave it out"
            )
        return replace(self, loss=names[0]) if self.loss is None else self

    @property
    def on_cluster(self) -> bool:
        """Whether clients are trained on a Ray cluster, which `cuda:all` starts on this machine."""
        return self.cluster is not None or self.device == "cuda:all"

    @functools.cached_property
    def server_optimizer_component(self) -> ServerOptimizer | None:
        """The server optimiser of methods without their own."""
        if self.server_optimizer is None:
            return None
        given = {"lr": self.server_lr, "momentum": self.server_momentum, "epsilon": self.server_epsilon}
        settings = {key: value for key, value in given.items() if value is not None}
        return SERVER_OPTIMIZERS[self.server_optimizer](**settings)

    def check_methods(self, methods: Iterable[Method]) -> list[Method]:
        """The methods as a list, if they can be trained together with these settings."""
        plain, epochs = self.client_optimizer.is_plain, self.local_steps is None
        methods = check_methods(methods, self.lr, self.lr_personal, plain_sgd=plain, epochs=epochs)
        if self.privacy is not None:
            for method in methods:
                self.privacy.check_method(method)
        for method in methods if self.attack is not None else ():
            rule = method.weighting
            if rule.claims:
                raise InputError(
                    f"weighting = {rule.label!r} of method {method.name!r} counts the {rule.claims} that clients "
                    "claim, and attackers can claim any number; use weighting = 'equal'"
                )
        return methods

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
        """The clients that take part in a round; with secret randomness, every call is another draw."""
        count = self.clients_per_round(clients)
        if self.privacy is not None and self.privacy.randomness == "secret":
            return sorted(secrets.SystemRandom().sample(range(clients), count))
        return seeds.choose(seeds.key(self.seed, "selection", round=round), clients, count)

    def clients_per_round(self, clients: int) -> int:
        """How many clients take part in a round: max(participation · N, 1)."""
        return max(1, round_half_up(self.participation * clients))

    def evaluates(self, round: int) -> bool:
        """Whether models are evaluated after this round; after the last one they always are."""
        return round % self.eval_interval == 0 or round == self.rounds

    @property
    def eval_interval(self) -> int:
        """Rounds between two evaluations."""
        return self.eval_every or default_eval_every(self.rounds)


def default_eval_every(rounds: int) -> int:
    """Rounds between two evaluations, about fifty of them a run."""
    return max(1, rounds // 50)


def round_half_up(value: float) -> int:
    """The nearest whole number; a half is rounded up."""
    return int(value + 0.5)
