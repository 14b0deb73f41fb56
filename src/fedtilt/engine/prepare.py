"""Check all inputs of a simulation before anything is trained or written."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from fedtilt.attacks.attack import AttackedFederation
from fedtilt.attacks.bounds import check_tolerated
from fedtilt.data import Federation
from fedtilt.data.inputs import take
from fedtilt.engine.client import plan
from fedtilt.engine.initial_model import initial_model
from fedtilt.engine.memory import check_memory
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server
from fedtilt.errors import InputError, NoEffect
from fedtilt.executors.devices import pick_device
from fedtilt.executors.forked import cores
from fedtilt.executors.sharded_models import uses_shards
from fedtilt.methods import Method, check_bad_share, check_levels, check_steps_used
from fedtilt.methods.aggregators import FLTrust
from fedtilt.models import ModelSource, build_without_storage, recipe, trained_parameters
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism
from fedtilt.training import BackendChoice, LocalJob, choose_backend


class PreparedRun(NamedTuple):
    """The checked inputs of a simulation."""

    methods: list[Method]
    federation: Federation
    net: nn.Module  # the initial model of every method
    parts: Parts
    settings: TrainSettings
    device: torch.device
    backend: BackendChoice
    recipe: dict[str, Any] | None  # name and arguments to build the model again; None: a custom model
    mechanism: GaussianMechanism | None = None  # of privacy
    notices: tuple[str, ...] = ()  # what the user should know before the run


def prepare(
    methods: Iterable[Method], federation: Federation, model: ModelSource, settings: TrainSettings
) -> PreparedRun:
    """Check the inputs of a simulation, and refuse what would fail later."""
    methods = settings.check_methods(methods)
    if torch.is_inference_mode_enabled():
        raise InputError("a run trains models, which is not possible in torch.inference_mode(); start it outside")
    if not isinstance(federation, Federation):
        raise InputError(
            f"federation must be a Federation, such as ft.Federation.build(data), got {type(federation).__name__}"
        )
    settings = settings.for_task(federation.dataset.task)
    check_bad_share(methods, settings.clients_per_round(federation.clients))
    _check_root_samples(methods, federation)
    notices: tuple[str, ...] = ()
    if settings.attack is not None:
        federation = AttackedFederation.of(federation, settings.attack, settings.seed)
        notices = check_tolerated(methods, federation.attackers, federation.clients, settings)
    check_levels(methods, federation.groups, federation.label_group)
    if settings.audit and federation.target is not None:
        raise InputError("audit = True finds wrong labels, and the targets are numbers; leave it out")
    if settings.audit and federation.classes < 2:
        raise InputError("audit = True compares classes, and the data has one; leave it out")
    device = pick_device(settings.device)
    template = build_without_storage(model, federation.input_shape, federation.outputs)
    if template is not None:
        _check_memory(template, methods, federation, settings, device)
    net, parts = initial_model(federation, model, settings)
    if template is None:  # a model of the user's own has to be built to know its size
        _check_memory(net, methods, federation, settings, device)
    jobs = example_jobs(methods, net, parts, settings, federation)
    sample = take(federation.clean_train(0)[0], slice(0, 1))
    weighted = federation.dataset.weight_train is not None
    backend = choose_backend(net, jobs, device.type, settings.backend, sample, settings.precision, weighted)
    if settings.stack_size is not None and backend.name != "stacked":
        raise InputError(
            f"stack_size = {settings.stack_size} has no effect: backend {backend.name} trains one client at a time; "
            "leave it out"
        )
    model_recipe = recipe(model, federation.input_shape, federation.outputs)
    mechanism = GaussianMechanism.of(settings, federation.clients, parts)
    if mechanism is not None:
        settings, of_budget = mechanism.within_budget(settings)
        notices += of_budget
    return PreparedRun(methods, federation, net, parts, settings, device, backend, model_recipe, mechanism, notices)


def check_effects(prepared: PreparedRun) -> None:
    """Refuse settings of a new run that have no effect on its model and clients; earlier versions recorded them."""
    settings, parts = prepared.settings, prepared.parts
    if settings.buffers != TrainSettings.buffers and not parts.buffers:
        raise NoEffect(
            f"buffers = {settings.buffers!r} has no effect here: the model has no buffers that change; leave it out",
            key="buffers",
        )
    if settings.server_optimizer is not None and all(m.optimizer is not None for m in prepared.methods):
        raise NoEffect(
            f"server_optimizer = {settings.server_optimizer.label!r} has no effect: every method has an optimizer of "
            "its own; leave it out",
            key="server_optimizer",
        )
    check_steps_used(prepared.methods, settings.clients_per_round(prepared.federation.clients))


def _check_memory(
    net: nn.Module, methods: Sequence[Method], federation: Federation, settings: TrainSettings, device: torch.device
) -> None:
    clients = settings.clients_per_round(federation.clients)
    workers = min(cores(), clients) if settings.workers is None else settings.workers
    elsewhere = device.type != "cpu" or settings.on_cluster
    parameters = sum(p.numel() for p in trained_parameters(net).values())
    sharded = uses_shards(methods, settings, clients, parameters)
    check_memory(
        net, methods, settings, clients=0 if sharded else clients, workers=0 if elsewhere else workers, device=device
    )


def example_jobs(
    methods: Sequence[Method], net: nn.Module, parts: Parts, settings: TrainSettings, federation: Federation
) -> list[LocalJob]:
    """All jobs of one client in a round."""
    jobs: list[LocalJob] = []
    for m in methods:
        server = initial_server(m, parts, federation.clients, net)
        planned = plan(m, server, {}, parts=parts, settings=settings, round=1, group=federation.group, net=net)
        jobs += planned.values()
    return jobs


def _check_root_samples(methods: Iterable[Method], federation: Federation) -> None:
    """Refuse more samples for the root set of FLTrust than there are."""
    samples = int(federation.train_sizes().sum())
    for m in methods:
        if isinstance(m.aggregator, FLTrust) and m.aggregator.root_samples > samples:
            raise InputError(
                f"root_samples = {m.aggregator.root_samples} of method {m.name!r} is more than the {samples} training "
                "samples of all clients; lower it"
            )
