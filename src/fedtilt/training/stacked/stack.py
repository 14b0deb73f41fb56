"""The buffers of one stack of jobs and the training step over them, captured in a CUDA graph where there is one."""

import functools
import importlib.util
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data.inputs import Inputs
from fedtilt.devices import as_rows, upload
from fedtilt.math.losses import cross_entropy
from fedtilt.training.local_job import Batches, LocalJob, Trained
from fedtilt.training.precision import fp32_deterministic
from fedtilt.training.sequential import SequentialNet
from fedtilt.training.stacked.buffers import Buffers, Recipe, Rows, SpecialSteps
from fedtilt.training.stacked.layers import ParameterRows, parameter_index, read_models
from fedtilt.training.stacked.vmap_step import VmapStep

_SIZE_MULTIPLE = 256  # sizes are rounded up to a multiple of this, so that few shapes are compiled
_COLUMN_MULTIPLE = 16  # the length of a column of all jobs is rounded up to a multiple of this
_STEPS_OF_GRAPHS = (16, 8, 4, 2, 1)  # a round replays a few of these: it costs the steps that it has


class StackSizes(NamedTuple):
    """The sizes that a step is compiled for."""

    jobs: int
    clients: int
    samples: int  # of the largest client, rounded up
    batches: int  # of the longest job, rounded up
    batch_size: int
    inputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]  # of a sample: names, shapes and types
    model_buffers: int
    target_type: torch.dtype = torch.long
    target_shape: tuple[int, ...] = ()  # of a sample

    @classmethod
    def of(cls, jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> "StackSizes":
        """The sizes of these jobs."""
        return cls(
            jobs=len(jobs),
            clients=len(_distinct(batches)),
            samples=_round_up(max(data.samples for data in batches)),
            batches=_round_up(max(data.steps(job) for job, data in zip(jobs, batches, strict=True))),
            batch_size=_largest_batch(batches),
            inputs=tuple((name, tuple(t.shape[1:]), _stored(t.dtype)) for name, t in _named(batches[0].x).items()),
            model_buffers=0 if jobs[0].buffers is None else len(jobs[0].buffers),
            target_type=batches[0].y.dtype,
            target_shape=tuple(batches[0].y.shape[1:]),
        )

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """The shape of a sample that is one tensor of numbers; None: it is another."""
        name, shape, dtype = self.inputs[0]
        return shape if not name and dtype == torch.float32 else None


_ONE_TENSOR = ""  # the name of inputs that have none


def _named(x: Inputs) -> dict[str, Tensor]:
    return x if isinstance(x, dict) else {_ONE_TENSOR: x}


def _distinct(batches: Sequence[Batches]) -> list[Batches]:
    """Every client once, whose batches several jobs may train on."""
    return list({id(data): data for data in batches}.values())


def _stored(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point else dtype


def _largest_batch(batches: Sequence[Batches]) -> int:
    """Samples of the largest batch; clients with as many samples share their bounds."""
    return max(data.size for data in {id(data.bounds): data for data in batches}.values())


def _round_up(count: int) -> int:
    return -(-count // _SIZE_MULTIPLE) * _SIZE_MULTIPLE


def kernel_net(
    model: nn.Module, recipe: Recipe, shape: tuple[int, ...] | None, batch: int, device: torch.device
) -> SequentialNet | None:
    """The model as a network that the Triton kernels train with this recipe on this device, or None."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # on the CPU, slowly: for tests
    if device.type != ("cpu" if interpreted else "cuda") or importlib.util.find_spec("triton") is None:
        return None
    from fedtilt.training.stacked.launch import MAX_BATCH_SIZE, MAX_CHANNELS, MAX_CLASSES, supports_optimizer

    if recipe.loss is not cross_entropy or len(recipe.groups) > 1 or not supports_optimizer(recipe.optimizer):
        return None
    if recipe.special != SpecialSteps() or shape is None:
        return None
    net = SequentialNet.from_module(model, shape)
    if net is None or batch > MAX_BATCH_SIZE or net.layers[-1].out_features > MAX_CLASSES:
        return None
    if any(max(block.in_channels, block.out_channels) > MAX_CHANNELS for block in net.blocks):
        return None
    return net if all(p.requires_grad for p in model.parameters()) else None


def _batch_indices(clients: Sequence[Batches], steps: int, size: int, device: torch.device) -> Tensor:
    """The samples of every step of every client, (steps, C, size), −1 for padding and after its last epoch."""
    bounds, shapes = zip(*((data.bounds, tuple(data.order.shape)) for data in clients), strict=True)
    index, is_sample = places_of_batches(bounds, shapes, steps, size, device)
    order = torch.cat([data.order.reshape(-1) for data in clients])
    return torch.where(is_sample, order[index], -1)


@functools.lru_cache(maxsize=2)  # clients with as many samples share their bounds: often the same in every round
def places_of_batches(
    bounds: tuple[Tensor, ...], shapes: tuple[tuple[int, int], ...], steps: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where `_batch_indices` finds the samples in the orders (epochs, samples) of all clients, and where there is one.

    Args:
        bounds: of every client, where the batches of an epoch begin and end
        shapes: of every client's order
        steps: of the longest job
        size: of every batch, with its padding
        device: of the result
    """
    alike = {id(of_client): of_client for of_client in bounds}
    number = {key: i for i, key in enumerate(alike)}
    padded = nn.utils.rnn.pad_sequence(list(alike.values()), batch_first=True)  # (K, batches + 1)
    position = padded[:, :-1, None] + torch.arange(size)
    position = upload(torch.where(position < padded[:, 1:, None], position, -1), device)  # (K, batches, size)
    of_clients = [(*shape, len(b) - 1, number[id(b)]) for shape, b in zip(shapes, bounds, strict=True)]
    epochs, samples, per_epoch, kind = upload(torch.tensor(of_clients), device).unbind(1)
    first = (epochs * samples).cumsum(0) - epochs * samples  # where a client's order begins
    step = torch.arange(steps, device=device)[:, None]
    epoch = step // per_epoch  # (steps, C)
    position = position[kind, step % per_epoch]  # (steps, C, size)
    is_sample = (position >= 0) & (epoch < epochs)[..., None]
    return torch.where(is_sample, (first + epoch * samples)[..., None] + position, 0), is_sample


class Stack:
    """The buffers for one set of sizes, and the training step over them."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, sizes: StackSizes, device: torch.device, precision: str
    ) -> None:
        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self._recipe, self._precision = recipe, precision
        self._net = kernel_net(model, recipe, sizes.sample_shape, sizes.batch_size, device)
        self._layout = self._net or ParameterRows(model)
        self._parameter_index = parameter_index(self._layout, device)
        jobs, clients, inputs = sizes.jobs, sizes.clients, sizes.inputs
        self._rows = Rows.zeros(jobs, self._layout.row_length, recipe, device)
        if self._net is not None:
            from fedtilt.training.stacked.launch import KernelStep, storage_dtype

            inputs = ((_ONE_TENSOR, (self._net.sample_size,), storage_dtype(precision)),)
        x = {name: zeros(clients, sizes.samples, *shape, dtype=dtype) for name, shape, dtype in inputs}
        # the columns of all jobs, in two tensors that are loaded at once; a column is aligned as a tensor of its own
        length, levels = -(-jobs // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE, len(recipe.groups)
        self._numbers = zeros(5 + levels, length)[:, :jobs]
        self._integers = zeros(5, length, dtype=torch.long)[:, :jobs]
        prox, lr, utility, anchor_rate = self._numbers[:4]
        anchor_index, client_index, steps, dropout_key, first_steps = self._integers
        self._buffers = Buffers(
            model_buffers=zeros(jobs, sizes.model_buffers),
            anchor_index=anchor_index,
            prox=prox,
            lr=lr,
            tilts=self._numbers[4:],
            client_index=client_index,
            steps=steps,
            x=x.get(_ONE_TENSOR, x),
            y=zeros(clients, sizes.samples, *sizes.target_shape, dtype=sizes.target_type),
            groups=zeros(levels, clients, sizes.samples, dtype=torch.long),
            batch_indices=zeros(sizes.batches, clients, sizes.batch_size, dtype=torch.long),
            first_step=zeros(1, dtype=torch.long),
            dropout_key=dropout_key,
            utility=utility,
            anchor_rate=anchor_rate,
            first_steps=first_steps,
        )
        named = dict(model.named_buffers())
        counts = [torch.full(named[name].shape, not named[name].is_floating_point()) for name in recipe.buffer_names]
        self._counters = torch.cat([t.reshape(-1) for t in counts]).nonzero()[:, 0].to(device) if counts else None
        # whose samples the buffers have, and the batches of how many steps
        self._loaded: list[weakref.ref[Batches]] = []
        self._loaded_steps = 0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by the number of their steps
        self._step: Callable[[int], None] = (
            VmapStep(model, recipe, self._rows, self._buffers, precision)
            if self._net is None
            else KernelStep(self._net, recipe.optimizer, self._rows, self._buffers, precision)
        )

    def train(self, jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> list[Trained]:
        """Train these jobs, which have the sizes and the recipe of the stack."""
        steps = [data.steps(job) * job.repeats for job, data in zip(jobs, batches, strict=True)]
        self._load(jobs, batches, steps)
        self._run(max(steps))
        rows, views, none = self._rows, self._layout.views, [None] * len(jobs)
        theta = read_models(views(rows.theta)).unbind()
        model_buffers = self._buffers.model_buffers.clone().unbind() if self._recipe.trains_buffers else none
        anchors = read_models(views(rows.anchor)).unbind() if self._recipe.special.moves_anchor else none
        return [Trained(*result) for result in zip(theta, model_buffers, anchors, strict=True)]

    def _load(self, jobs: Sequence[LocalJob], batches: Sequence[Batches], steps: Sequence[int]) -> None:
        """Fill the buffers for one round."""
        rows, b = self._rows, self._buffers
        shares_anchors = not self._recipe.special.moves_anchor
        anchor_of = [id(job.anchor) if shares_anchors else i for i, job in enumerate(jobs)]
        anchors = {key: job.anchor for key, job in zip(anchor_of, jobs, strict=True)}
        # models first: meanwhile, this process does the rest
        self._load_models(rows.theta, [job.start for job in jobs])
        self._load_models(rows.anchor[: len(anchors)], list(anchors.values()))
        if self._recipe.special.has_drift:
            self._load_models(rows.drift, [cast(Tensor, job.drift) for job in jobs])
        if self._recipe.special.has_first:
            self._load_models(rows.first, [cast(Tensor, job.first) for job in jobs])
        rows.optimizer_state.zero_()
        if self._recipe.trains_buffers:
            torch.stack([cast(Tensor, job.buffers) for job in jobs], out=b.model_buffers)
            b.model_buffers[:, self._counters] = b.model_buffers[:, self._counters].round()  # see `vector_to_buffers`
        b.first_step.zero_()
        anchor_row = {key: i for i, key in enumerate(anchors)}
        client_row = {id(data): i for i, data in enumerate(_distinct(batches))}
        numbers = [(job.prox, job.lr, job.utility, job.anchor_rate, *job.tilts) for job in jobs]
        integers = [
            (
                anchor_row[key],
                client_row[id(data)],
                count,
                seeds.to_signed(data.key),
                job.first_epochs * data.per_epoch * job.repeats,
            )
            for job, data, key, count in zip(jobs, batches, anchor_of, steps, strict=True)
        ]
        for target, values in ((self._numbers, numbers), (self._integers, integers)):
            target.copy_(upload(torch.from_numpy(np.array(values)).to(target.dtype), target.device).T)
        self.load_samples(jobs, batches)

    def load_samples(self, jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> None:
        """Load what jobs train on, unless the buffers have it: see `stacked.load_ahead`."""
        b, clients = self._buffers, _distinct(batches)
        steps = max(data.steps(job) for job, data in zip(jobs, batches, strict=True))
        if [data() for data in self._loaded] == clients and steps <= self._loaded_steps:
            return
        self._loaded = []  # also if loading fails
        b.batch_indices[:steps] = _batch_indices(clients, steps, b.batch_indices.shape[2], b.batch_indices.device)
        places = seeds.owners_and_positions([data.samples for data in clients], b.y.device)  # in (C, samples)
        for name, target in _named(b.x).items():
            samples = torch.cat([_named(data.x)[name] for data in clients])
            samples = samples if self._net is None else self._net.sample_rows(samples)
            target[places] = samples.to(target.dtype)
        b.y[places] = torch.cat([data.y for data in clients])
        of_levels = zip(*(data.groups_of(jobs[0]) for data in clients), strict=True)  # all jobs have the same levels
        for codes, groups in zip(b.groups, of_levels, strict=True):
            codes[places] = torch.cat(groups)
        self._loaded, self._loaded_steps = [weakref.ref(data) for data in clients], steps

    def _load_models(self, rows: Tensor, models: Sequence[Tensor]) -> None:
        """Models by row; those that are one tensor, as the received model is, are rearranged once."""
        distinct = {id(model): model for model in models}
        if len(distinct) == len(models):
            rows[:, self._parameter_index] = as_rows(models)
            return
        arranged = rows.new_zeros(len(distinct), rows.shape[1])
        arranged[:, self._parameter_index] = as_rows(list(distinct.values()))
        number = {key: i for i, key in enumerate(distinct)}
        index = upload(torch.tensor([number[id(model)] for model in models]), rows.device)
        torch.index_select(arranged, 0, index, out=rows)

    def _run(self, steps: int) -> None:
        device = self._rows.theta.device
        if device.type != "cuda":
            for offset in range(steps):
                self._step(offset)
            return
        with torch.cuda.device(device):
            for count in _STEPS_OF_GRAPHS:
                for _ in range(steps // count):
                    self._graph(count).replay()
                steps %= count

    def _graph(self, count: int) -> torch.cuda.CUDAGraph:
        """These many steps as a CUDA graph, captured once; the buffers are unchanged afterwards."""
        if count not in self._graphs:
            b = self._buffers
            with fp32_deterministic(b.y.device, tf32=self._precision == "tf32"), warnings.catch_warnings():
                # inductor advises to allow TF32; here `precision` decides
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
                if not self._graphs:
                    self._warm_up()
                graph = torch.cuda.CUDAGraph()
                pool = next((other.pool() for other in self._graphs.values()), None)  # no two run at the same time
                with torch.cuda.graph(graph, pool=pool):
                    for offset in range(count):
                        self._step(offset)
                    b.first_step.add_(count)
            self._graphs[count] = graph
        return self._graphs[count]

    def _warm_up(self) -> None:
        """Run a few steps, which compiles them, and undo them."""
        changed = [self._rows.theta, self._rows.optimizer_state, self._buffers.model_buffers]
        if self._recipe.special.moves_anchor:
            changed.append(self._rows.anchor)
        before = [t.clone() for t in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step(0)
        torch.cuda.current_stream().wait_stream(side)
        for t, value in zip(changed, before, strict=True):
            t.copy_(value)
