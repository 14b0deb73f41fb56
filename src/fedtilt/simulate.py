"""A whole federation on one machine: every method on the same clients, batches and outliers, one round at a time."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.descend import choose, trained_once
from fedtilt.errors import InputError
from fedtilt.evaluate import Evaluator
from fedtilt.methods import Method, check_together
from fedtilt.metrics import Counts
from fedtilt.models import ModelSource, build, flat
from fedtilt.placement import Crew, Diet, Here, Placement, can_fork, cores
from fedtilt.round import Plan, flaw, plan, settle
from fedtilt.shelf import Shelf, State


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a federation trains, whatever the method; the defaults are the paper's."""

    rounds: int = 50
    participation: float = 0.1
    epochs: int = 10
    batch_size: int = 10
    lr: float = 0.01
    lr_personal: float | None = None  # None: the same as lr
    seed: int = 0
    eval_every: int | None = None  # None: about fifty times a run
    device: str = "auto"
    way: str = "auto"
    workers: int | None = None  # None: one per core; 0: train in this process

    def __post_init__(self) -> None:
        for key in ("rounds", "epochs", "batch_size", *(("eval_every",) if self.eval_every is not None else ())):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{key} must be a whole number ≥ 1, got {value!r}")
        for key, rate in (("lr", self.lr), ("lr_personal", self.personal_rate)):
            if not 0 < rate < float("inf"):
                raise InputError(f"{key} must be a number > 0, got {rate!r}")
        if not 0 < self.participation <= 1:
            raise InputError(f"participation must be in (0, 1], got {self.participation!r}")
        if self.workers is not None and (isinstance(self.workers, bool) or self.workers < 0):
            raise InputError(f"workers must be ≥ 0, got {self.workers!r}")

    @property
    def personal_rate(self) -> float:
        """The learning rate of the personal models."""
        return self.lr if self.lr_personal is None else self.lr_personal

    def selected(self, round: int, clients: int) -> list[int]:
        """Who takes part in a round: max(participation · N, 1) clients."""
        count = max(1, round_half_up(self.participation * clients))
        return seeds.choose(seeds.key(self.seed, "selection", round=round), clients, count)

    def evaluates(self, round: int) -> bool:
        """Whether models are judged after this round; the last one always is."""
        every = self.eval_every or max(1, self.rounds // 50)
        return round % every == 0 or round == self.rounds


def round_half_up(value: float) -> int:
    """The nearest whole number."""
    return int(value + 0.5)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What happened in one round; `state` is the federation's own and moves on with the next one."""

    number: int
    selected: list[int]
    state: State
    counts: Mapping[str, Counts] | None  # method → right answers, where the round was judged
    total: Tensor  # (N, K) test samples
    seconds: float


def pick_device(name: str) -> torch.device:
    """The device of that name; 'auto' takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is not supported; choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r} is not there ({torch.cuda.device_count()} CUDA devices); use --device cpu")
    return device


def initial_model(federation: Federation, model: ModelSource, seed: int) -> nn.Module:
    """The model every method starts from, checked on one sample of the data."""
    net = build(model, federation.input_shape, federation.classes, seeds.key(seed, "init"))
    x, _ = federation.clean_train(0)
    try:
        with torch.no_grad():
            logits = net.eval()(x[:2])
    except RuntimeError as error:
        raise InputError(f"the model does not take samples of shape {federation.input_shape}: {error}") from error
    if logits.dim() != 2 or logits.shape[1] < federation.classes:
        raise InputError(f"the model returns {tuple(logits.shape)} for 2 samples; expected (2, {federation.classes})")
    return net


def simulate(
    methods: Sequence[Method],
    federation: Federation,
    model: ModelSource,
    *,
    state: State | None = None,
    shelf: Shelf | None = None,
    **training: object,
) -> Iterator[Round]:
    """Train every method on one federation, yielding after every round; see `Training` for the settings.

    All methods see the same clients, batches and outliers. A progress bar, a store or an early stop are plain loop
    bodies around it. With `state`, go on from there.
    """
    settings = Training(**training)  # type: ignore[arg-type]
    check_together(methods, settings.lr, settings.personal_rate)
    device = pick_device(settings.device)
    net = initial_model(federation, model, settings.seed)
    if state is None:
        start = flat(net).to(device)
        state = State(0, {m.name: start for m in methods}, Shelf() if shelf is None else shelf)
    else:
        state.shared = {m.name: state.shared[m.name].to(device) for m in methods}
    way = choose(net, device.type, settings.way)
    return _rounds(methods, federation, net.to(device), settings, state, device, way)


def _rounds(
    methods: Sequence[Method], federation: Federation, net: nn.Module, settings: Training, state: State,
    device: torch.device, way: str,
) -> Iterator[Round]:  # fmt: skip
    evaluator = Evaluator(federation, net, device)
    samples = dict(enumerate(federation.train_sizes().tolist()))
    placement = _placed(federation, net, way, settings, device, len(methods))
    try:
        while state.round < settings.rounds:
            begun = time.perf_counter()
            number = state.round + 1
            selected = settings.selected(number, federation.clients)
            _advance(methods, state, number, selected, placement, settings, samples)
            counts = None
            if settings.evaluates(number):
                counts = {
                    m.name: evaluator.counts(m.name, state.shared[m.name], m.personal, state.shelf) for m in methods
                }
            yield Round(
                number=number,
                selected=selected,
                state=state,
                counts=counts,
                total=evaluator.total,
                seconds=time.perf_counter() - begun,
            )
    finally:
        placement.close()


def _placed(
    federation: Federation, net: nn.Module, way: str, settings: Training, device: torch.device, methods: int
) -> Placement:
    diet = Diet(seed=settings.seed, epochs=settings.epochs, batch_size=settings.batch_size)
    workers = settings.workers
    if workers is None:
        workers = cores() if can_fork() else 0
        workers = (
            0 if workers == 1 else min(workers, max(1, round_half_up(settings.participation * federation.clients)))
        )
    if device.type != "cpu" or way == "stacked" or workers == 0:
        return Here(federation, net, way, diet, device)
    if not can_fork():
        raise InputError(f"workers = {workers} needs Linux (workers are forked); leave it out or set it to 0")
    return Crew(federation, net, way, diet, workers, lanes_per_client=2 * methods)


def _advance(
    methods: Sequence[Method], state: State, number: int, selected: Sequence[int], placement: Placement,
    settings: Training, samples: Mapping[int, int],
) -> None:  # fmt: skip
    """One round: plan and descend on every selected client, settle every method; the state changes at the end."""
    received = _merged(state.shared)
    plans: dict[int, dict[str, Plan]] = {
        client: {
            m.name: plan(
                m, received[m.name], _last(state, m, client, received[m.name].device),
                lr=settings.lr, lr_personal=settings.personal_rate,
            )
            for m in methods
        }
        for client in selected
    }  # fmt: skip
    distinct, twins = {}, {}
    for client, by_method in plans.items():
        distinct[client], twins[client] = trained_once([lane for p in by_method.values() for lane in p.lanes])

    updates: dict[str, dict[int, Tensor]] = {m.name: {} for m in methods}
    personal: dict[str, dict[int, Tensor]] = {m.name: {} for m in methods}
    for client, trained in placement.train(number, distinct):
        results = iter(trained[i] for i in twins[client])
        for m in methods:
            updates[m.name][client] = next(results)
            if m.personal:
                personal[m.name][client] = next(results)

    shared = {}
    for m in methods:
        for client in selected:
            own = personal[m.name].get(client, updates[m.name][client])
            why = flaw(updates[m.name][client], received[m.name]) or flaw(own, received[m.name])
            if why:
                raise InputError(
                    f"method {m.name!r} diverged in round {number} on client {client}: its model {why}; "
                    "lower train.lr or the tilts"
                )
        shared[m.name] = settle(m, received[m.name], updates[m.name], samples).shared

    state.round, state.shared = number, shared
    for m in methods:
        for client, own in sorted(personal[m.name].items()):
            state.shelf.put((m.name, client), number, own.cpu())


def _last(state: State, method: Method, client: int, device: torch.device) -> Tensor | None:
    own = state.shelf.get((method.name, client)) if method.personal else None
    return own if own is None else own.to(device)


def _merged(shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The shared models, equal ones as one tensor, so that their lanes are seen to be identical."""
    kept: list[Tensor] = []
    merged = {}
    for name, model in shared.items():
        twin = next((other for other in kept if torch.equal(other, model)), None)
        if twin is None:
            kept.append(model)
        merged[name] = model if twin is None else twin
    return merged
