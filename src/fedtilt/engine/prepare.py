"""Check all inputs of a simulation before anything is trained or written."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedtilt.attacks.attack import AttackedFederation, check_tolerated
from fedtilt.data import Federation
from fedtilt.data.inputs import byte_count
from fedtilt.data.targets import Target
from fedtilt.devices import pick_device
from fedtilt.engine.client import plan
from fedtilt.engine.initial_model import initial_model
from fedtilt.engine.root_set import RootSet
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server, messages_of
from fedtilt.errors import InputError, NoEffect
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.forked import ForkedExecutor, can_fork, cores
from fedtilt.executors.in_process import ClientTraining, Executor, InProcessExecutor
from fedtilt.executors.ray_executor import RayExecutor
from fedtilt.executors.sharded_models import uses_shards
from fedtilt.executors.spawned import SpawnedExecutor, can_start_processes, default_workers
from fedtilt.math.client_models import column_blocks
from fedtilt.methods import Method, check_bad_share, check_levels, check_steps_used
from fedtilt.methods.component import check_declared
from fedtilt.models import ModelSource, build_without_storage, recipe, trained_parameters
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism
from fedtilt.state import ClientState
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
    roots: Mapping[str, RootSet]  # of the methods whose rule needs one
    mechanism: GaussianMechanism | None = None  # of privacy
    notices: tuple[str, ...] = ()  # what the user should know before the run


def prepare(
    methods: Iterable[Method], federation: Federation, model: ModelSource, settings: TrainSettings
) -> PreparedRun:
    """Check the inputs of a simulation: what would fail later is an InputError now."""
    methods = settings.check_methods(methods)
    if torch.is_inference_mode_enabled():
        raise InputError("a run trains models, which is not possible in torch.inference_mode(); start it outside")
    if not isinstance(federation, Federation):
        raise InputError(
            f"federation must be a Federation, such as ft.Federation.build(data), got {type(federation).__name__}"
        )
    settings = settings.for_task(federation.dataset.task).for_classes(federation)
    settings.check_left_out(federation.left_out)
    check_bad_share(methods, settings.clients_per_round(federation.clients))
    roots = {m.name: root for m in methods if (root := RootSet.of(m, federation, settings.seed)) is not None}
    notices: tuple[str, ...] = ()
    if settings.attack is not None:
        federation = AttackedFederation.of(federation, settings.attack, settings.seed)
        notices = check_tolerated(methods, federation.attackers, federation.clients, settings)
    check_levels(methods, federation.groups, federation.label_group)
    check_audit(settings, federation.target, federation.classes)
    if settings.stop is not None and not any(map(len, federation.validation_index)):
        raise InputError(
            f"stop = {settings.stop.label!r} needs validation data, and the clients have none; build the federation "
            "with, for example, validation=0.2 (clients.validation in a spec), or leave it out"
        )
    device = pick_device(settings.device)
    template = build_without_storage(model, federation.input_shape, federation.outputs)
    if template is not None:
        _check_memory(template, methods, federation, settings, device)
    net, parts = initial_model(federation, model, settings)
    for method in methods:
        messages_of(method, parts, federation.population, net)  # raises for what cannot be sent
    if template is None:  # a model of the user's own has to be built to know its size
        _check_memory(net, methods, federation, settings, device)
    jobs = example_jobs(methods, net, parts, settings, federation)
    backend = backend_for(jobs, net, settings, federation, device)
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
    return PreparedRun(
        methods, federation, net, parts, settings, device, backend, model_recipe, roots, mechanism, notices
    )  # fmt: skip


def check_audit(settings: TrainSettings, target: Target | None, classes: int) -> None:
    """Raise InputError if labels are audited and the data has none, or one class of them."""
    if settings.audit and target is not None:
        raise InputError(f"audit = True finds wrong labels, and the data has {target.words}; leave it out")
    if settings.audit and classes < 2:
        raise InputError("audit = True compares classes, and the data has one; leave it out")


def check_effects(prepared: PreparedRun) -> None:
    """`check_settings_used` of a new simulation."""
    check_settings_used(prepared.methods, prepared.settings, prepared.parts, prepared.federation.clients)


def check_settings_used(methods: Sequence[Method], settings: TrainSettings, parts: Parts, clients: int) -> None:
    """Raise NoEffect if settings of a new run have no effect on its model and clients; earlier versions had them."""
    if settings.buffers != TrainSettings.buffers and not parts.buffers:
        raise NoEffect(
            f"buffers = {settings.buffers!r} has no effect here: the model has no buffers that change; leave it out",
            key="buffers",
        )
    if settings.server_optimizer is not None and all(m.optimizer is not None for m in methods):
        raise NoEffect(
            f"server_optimizer = {settings.server_optimizer.label!r} has no effect: every method has an optimizer of "
            "its own; leave it out",
            key="server_optimizer",
        )
    check_steps_used(methods, settings.clients_per_round(clients))


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
        server = initial_server(m, parts, federation.population, net)
        planned = plan(
            m, server, ClientState(), parts=parts, settings=settings, round=1, group=federation.group, net=net
        )
        jobs += planned.values()
    return jobs


def backend_for(
    jobs: Sequence[LocalJob], net: nn.Module, settings: TrainSettings, federation: Federation, device: torch.device,
    client: int | None = None,
) -> BackendChoice:  # fmt: skip
    """The backend that trains these jobs, by a sample of this client; None: of the first one with data."""
    sample, weighted = federation.sample(client), federation.dataset.weight_train is not None
    return choose_backend(net, jobs, device.type, settings.backend, sample, settings.precision, weighted)


_OPTIMIZER_TENSORS = {"adam": 2, "adamw": 2}  # besides sgd, which has one with momentum


def check_memory(
    model: nn.Module, methods: Sequence[Method], settings: TrainSettings, *, clients: int, workers: int,
    device: torch.device,
) -> None:  # fmt: skip
    """Raise InputError if the models of a run do not fit into memory.

    Args:
        model: the model, or one of `build_without_storage`
        methods: the methods of the run
        settings: the optimisers
        clients: how many send a model to this process in a round
        workers: worker processes; 0: none
        device: where models are trained
    """
    trained = sum(p.numel() for p in trained_parameters(model).values())
    total = sum(p.numel() for p in model.parameters())
    kept = models_kept(methods, settings, clients=clients, workers=workers)
    needed, available = 4 * (kept * trained + total), available_bytes(device)
    if available is not None and needed > available:
        raise InputError(
            f"the run keeps {kept + 1} models of {total:,} parameters, about {_gigabytes(needed)}, and "
            f"{_gigabytes(available)} of memory are available; use a smaller model, or a smaller participation, fewer "
            "methods or workers"
        )


def models_kept(methods: Sequence[Method], settings: TrainSettings, *, clients: int, workers: int) -> int:
    """How many trained models a round has in memory besides the network itself."""
    # of a client: its models, the vector of a correction, and which parameters train first
    jobs = sum(1 + m.has_personal + (m.correction is not None) + _trains_apart(m) for m in methods)
    optimizers = [m.optimizer or settings.server_optimizer for m in methods]
    slots = [check_declared(o, "its slot", o.init(torch.zeros(1))) for o in optimizers if o is not None]
    server = len(methods) + sum(map(len, slots))  # w, and the optimiser's slot
    client = settings.client_optimizer
    optimizer = _OPTIMIZER_TENSORS.get(client.name, 2 if client.is_of_torch else int(client.momentum > 0))
    in_training = 2 + optimizer  # parameters, gradients, state of the optimiser
    initial = 1
    return initial + server + clients * jobs + max(1, workers) * (in_training + jobs * (workers > 0))


def available_bytes(device: torch.device) -> int | None:
    """The memory that is free for models; None if the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = [bytes_ for bytes_ in (_available_in_system(), _limit_of_container()) if bytes_ is not None]
    return min(limits, default=None)


def _available_in_system() -> int | None:
    """What the kernel can give without swapping; elsewhere than on Linux, the whole memory."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:
            return 1024 * int(fields["MemAvailable"].split()[0])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has none
        return None


def _limit_of_container(path: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 1e10 else f"{size / 1e9:.1f} GB"


def _trains_apart(method: Method) -> bool:
    """Whether some parameters of the shared model train while the others do not."""
    return method.local is not None and (method.local.first_epochs is not None or not method.local.trains)


def make_executor(prepared: PreparedRun, notice: Callable[[str], None]) -> Executor:
    """The executor that the settings of a run ask for; by default, the fastest on this machine."""
    federation, settings, device = prepared.federation, prepared.settings, prepared.device
    backend, workers = prepared.backend.name, settings.workers
    training = ClientTraining(federation, prepared.net, backend, BatchSettings.of(settings))
    if settings.on_cluster:
        shape = settings.clients_per_round(federation.clients), prepared.parts.shared_size
        on_nodes, columns = None, [slice(None)]
        if uses_shards(prepared.methods, settings, *shape):
            on_nodes, columns = True, column_blocks(*shape)
        elif settings.audit or settings.privacy is not None:  # needs the models here, or cannot repeat a round
            on_nodes = False
        return RayExecutor(
            training, device=device, precision=settings.precision,
            address=settings.cluster or "local", workers=workers, stack_size=settings.stack_size,
            timeout=settings.cluster_timeout, notice=notice, on_nodes=on_nodes, columns=columns,
        )  # fmt: skip
    clients = settings.clients_per_round(federation.clients)
    if backend == "stacked":
        if workers:
            notice(f"workers = {workers} has no effect: all clients of a round train in one step")
        workers = 0
    elif device.type != "cpu":
        count = workers
        if count is None:
            free = [available_bytes(each) for each in (device, torch.device("cpu"))]
            data = sum(map(byte_count, (federation.dataset.x_train, federation.dataset.x_test)))
            known = min((bytes_ for bytes_ in free if bytes_ is not None), default=None)
            count = default_workers(cores(), clients, data, known)
        elif count and not can_start_processes():
            raise InputError(
                f"workers = {workers} cannot be started here (a daemon or a worker of Ray); leave it out or set it to 0"
            )
        if count:
            return SpawnedExecutor(
                training, device, settings.precision, workers=count, rounds=settings.rounds,
                at_once=workers is not None, notice=notice,
            )  # fmt: skip
        workers = 0
    elif workers is None:
        workers = min(cores(), clients) if cores() > 1 and can_fork(backend) else 0
    elif workers and not can_fork(backend):
        raise InputError(
            f"workers = {workers} cannot be forked here (not Linux, a daemon, or autograd was used with a GPU); "
            "leave it out or set it to 0"
        )
    if workers == 0:
        is_secret = settings.privacy is not None and settings.privacy.randomness == "secret"
        ahead = backend == "stacked" and not is_secret

        def selected(round: int) -> list[int]:
            return settings.selected(round, federation.clients, federation.left_out) if round <= settings.rounds else []

        return InProcessExecutor(training, device, settings.precision, settings.stack_size, selected if ahead else None)
    jobs = example_jobs(prepared.methods, prepared.net, prepared.parts, settings, federation)
    return ForkedExecutor(training, workers, jobs)
