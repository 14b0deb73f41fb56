"""All jobs in one step: parameters stacked (L, P), a batch of every client at once. For GPUs.

Clients of unequal size keep their number of steps: short batches are padded with samples of weight zero, and jobs that
are done take steps of length zero. On CUDA the step of a `SequentialNet` is a few Triton kernels, that of any other
model is compiled by torch; either is captured in a CUDA graph and replayed. The number of the step is on the device, so
nothing synchronises inside a round.
"""

import copy
import functools
import importlib.util
import os
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedtilt.data.inputs import Inputs
from fedtilt.math.losses import client_loss, cross_entropy
from fedtilt.models import parameters_to_vector, vector_to_parameters
from fedtilt.training.local_job import Batches, LocalJob, Trained, unusual_setting
from fedtilt.training.precision import fp32_deterministic
from fedtilt.training.sequential import SequentialNet
from fedtilt.training.stacked.buffers import Buffers

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_UNSUPPORTED = (nn.RNNBase, nn.RReLU, *_DROPOUT)
_SIZE_MULTIPLE = 256  # sizes are rounded up to a multiple of this, so that few shapes are compiled
_MAX_JOBS = 65_535  # the limit of a CUDA grid dimension
_STEPS_PER_GRAPH = 16  # divides _SIZE_MULTIPLE, so that the steps after a round's last are padding


def unsupported_reason(model: nn.Module, job: LocalJob, device_type: str, sample: Inputs | None = None) -> str | None:
    """Why this backend does not train the job, as a clause; None if it does."""
    if reason := unusual_setting(job, model):
        return reason
    return None if can_stack(model, sample) else "the model cannot be batched over jobs (recurrent cells, or dropout)"


def can_stack(model: nn.Module, sample: Inputs | None = None) -> bool:
    """Whether the model can be batched over jobs: no recurrent cells, and nothing random inside.

    With a sample, (1, …), this is tested too: the modules alone do not show what `forward` does.
    """
    if any(isinstance(m, _UNSUPPORTED) or getattr(m, "dropout", 0) for m in model.modules()):
        return False
    return sample is None or (isinstance(sample, Tensor) and sample.is_floating_point() and _can_vmap(model, sample))


def _can_vmap(model: nn.Module, sample: Tensor) -> bool:
    net = copy.deepcopy(model).train()

    def total(theta: Tensor, x: Tensor) -> Tensor:
        return functional_call(net, vector_to_parameters(net, theta), (x,)).sum()

    theta = parameters_to_vector(net)
    try:
        vmap(grad(total))(theta.expand(2, -1), sample.to(theta.device).expand(2, *sample.shape))
    except RuntimeError:  # random numbers, or a branch on values
        return False
    return True


def train(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
) -> list[Trained]:
    """Train every job on its batches."""
    if not jobs:
        return []
    trained: list[Trained] = []
    while len(trained) < len(jobs):
        # as many at once as fit into memory, in parts of nearly equal size: every other shape is another graph
        parts = -(-len(jobs) // min(_jobs_in_memory.get(model, len(jobs)), _MAX_JOBS))
        size = -(-len(jobs) // parts)
        part = slice(len(trained), len(trained) + size)
        try:
            trained += _train_stack(model, jobs[part], batches[part], precision)
            continue
        except torch.cuda.OutOfMemoryError:
            if size == 1:
                raise
        # outside the except clause: the traceback would keep the buffers alive
        _jobs_in_memory[model] = size // 2
        clear_cache()
        torch.cuda.empty_cache()
    return trained


def _train_stack(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], precision: str
) -> list[Trained]:
    clients = list({id(b): b for b in batches}.values())
    stack = _cached_stack(
        model,
        len(jobs),
        len(clients),
        _round_up(max(len(b.y) for b in clients)),
        _round_up(max(len(b) for b in clients)),
        max(b.size for b in clients),
        tuple(cast(Tensor, clients[0].x).shape[1:]),
        jobs[0].start.device,
        precision,
    )
    stack.load(jobs, batches, clients)
    stack.run(max(len(b) for b in clients))
    return [Trained(theta) for theta in stack.trained().unbind()]


def _round_up(count: int) -> int:
    return -(-count // _SIZE_MULTIPLE) * _SIZE_MULTIPLE


def _kernel_net(model: nn.Module, shape: tuple[int, ...], batch: int, device: torch.device) -> SequentialNet | None:
    """The model as a network that the Triton kernels support on this device, or None."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # on the CPU, slowly: for tests
    if device.type != ("cpu" if interpreted else "cuda") or importlib.util.find_spec("triton") is None:
        return None
    from fedtilt.training.stacked.launch import MAX_BATCH_SIZE, MAX_CHANNELS, MAX_CLASSES

    net = SequentialNet.from_module(model, shape)
    if net is None or batch > MAX_BATCH_SIZE or net.layers[-1].out_features > MAX_CLASSES:
        return None
    if any(max(block.in_channels, block.out_channels) > MAX_CHANNELS for block in net.blocks):
        return None
    return net


class _MatmulConv2d(nn.Conv2d):
    """A convolution as shifted slices and one product: over jobs a batched product, not a grouped convolution."""

    padding: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        (kernel_y, kernel_x), (pad_y, pad_x) = self.kernel_size, self.padding
        padded = nn.functional.pad(x, (pad_x, pad_x, pad_y, pad_y)).permute(0, 2, 3, 1)  # (B, H, W, C)
        height, width = padded.shape[1] - kernel_y + 1, padded.shape[2] - kernel_x + 1
        slices = [padded[:, i : i + height, j : j + width] for i in range(kernel_y) for j in range(kernel_x)]
        patches = torch.cat(slices, dim=-1).flatten(0, 2)  # (B · H · W, kernel · C)
        weight = self.weight.permute(2, 3, 1, 0).flatten(0, 2)  # (kernel · C, out)
        out = patches @ weight if self.bias is None else torch.addmm(self.bias, patches, weight)
        return out.reshape(len(x), height, width, -1).permute(0, 3, 1, 2)


def _is_plain_conv(layer: nn.Conv2d) -> bool:
    dense = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    return dense and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def convs_as_matmul(model: nn.Module) -> nn.Module:
    """A copy of the model that computes its plain convolutions as matrix products."""
    net = copy.deepcopy(model)
    for layer in net.modules():
        if type(layer) is nn.Conv2d and _is_plain_conv(layer):
            layer.__class__ = _MatmulConv2d
    return net


class _Stack:
    """The buffers for one set of sizes, and the training step over them."""

    def __init__(
        self, model: nn.Module, jobs: int, clients: int, samples: int, steps: int, batch_size: int,
        shape: tuple[int, ...], device: torch.device, precision: str,
    ) -> None:  # fmt: skip
        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self._net = _kernel_net(model, shape, batch_size, device)
        self._parameter_index = None if self._net is None else self._net.parameter_index.to(device)
        parameters = sum(p.numel() for p in model.parameters()) if self._net is None else self._net.row_length
        sample_shape, sample_dtype = shape, torch.float32
        if self._net is not None:
            from fedtilt.training.stacked.launch import KernelStep, storage_dtype

            sample_shape, sample_dtype = (self._net.sample_size,), storage_dtype(precision)
        self._buffers = b = Buffers(
            theta=zeros(jobs, parameters),
            anchor=zeros(jobs, parameters),
            anchor_index=zeros(jobs, dtype=torch.long),
            prox=zeros(jobs),
            lr=zeros(jobs),
            tau=zeros(jobs),
            lam=zeros(jobs),
            client_index=zeros(jobs, dtype=torch.long),
            steps=zeros(jobs, dtype=torch.long),
            x=zeros(clients, samples, *sample_shape, dtype=sample_dtype),
            y=zeros(clients, samples, dtype=torch.long),
            batch_indices=zeros(steps, clients, batch_size, dtype=torch.long),
            first_step=zeros(1, dtype=torch.long),
        )
        self._client_rows = torch.arange(clients, device=device)[:, None]
        self._precision = precision
        self._replay: Callable[[], None] | None = None
        if self._net is not None:
            self._step: Callable[[int], None] = KernelStep(self._net, b, precision)
            return
        net = convs_as_matmul(model).train()

        def loss(theta: Tensor, x: Tensor, y: Tensor, w: Tensor, tau: Tensor, lam: Tensor) -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = functional_call(net, vector_to_parameters(net, theta), (x,))
            return client_loss(cross_entropy(logits.float(), y), y, tau, lam, w)

        self._loss_grad = vmap(grad(loss))
        autograd_step: Callable[[Tensor], None] = self._autograd_step
        if device.type == "cuda":
            autograd_step = torch.compile(_with_own_code(autograd_step), fullgraph=True, dynamic=False)
        self._step = lambda offset: autograd_step(b.first_step + offset)

    def load(self, jobs: Sequence[LocalJob], batches: Sequence[Batches], clients: Sequence[Batches]) -> None:
        """Fill the buffers for one round."""
        b = self._buffers
        client_row = {id(data): i for i, data in enumerate(clients)}
        anchors = {id(job.anchor): job.anchor for job in jobs}
        anchor_row = {key: i for i, key in enumerate(anchors)}
        for column, values in (
            (b.prox, [job.prox for job in jobs]), (b.lr, [job.lr for job in jobs]),
            (b.tau, [job.tau for job in jobs]), (b.lam, [job.lam for job in jobs]),
            (b.client_index, [client_row[id(data)] for data in batches]),
            (b.steps, [data.steps(job) for job, data in zip(jobs, batches, strict=True)]),
            (b.anchor_index, [anchor_row[id(job.anchor)] for job in jobs]),
        ):  # fmt: skip
            column.copy_(torch.tensor(values, dtype=column.dtype))
        self._load_models(b.theta, [job.start for job in jobs])
        self._load_models(b.anchor[: len(anchors)], list(anchors.values()))
        b.batch_indices.fill_(-1)
        for i, data in enumerate(clients):
            x = cast(Tensor, data.x)
            x = x if self._net is None else self._net.sample_rows(x)
            b.x[i, : len(data.y)], b.y[i, : len(data.y)] = x, data.y
            position = data.bounds[:-1, None] + torch.arange(data.size)  # (batches per epoch, size)
            inside = (position < data.bounds[1:, None]).to(b.y.device)
            sample = data.order[:, position.clamp(max=len(data.y) - 1).to(b.y.device)]
            b.batch_indices[: len(data), i, : data.size] = torch.where(inside, sample, -1).flatten(0, 1)
        b.first_step.zero_()

    def trained(self) -> Tensor:
        """The current models, (L, P)."""
        theta = self._buffers.theta
        return theta.clone() if self._parameter_index is None else theta[:, self._parameter_index]

    def run(self, steps: int) -> None:
        """Run this many steps."""
        device = self._buffers.theta.device
        if device.type != "cuda":
            for offset in range(steps):
                self._step(offset)
            return
        with torch.cuda.device(device):
            replay = self._capture_graph()
            for _ in range(0, steps, _STEPS_PER_GRAPH):
                replay()

    def _load_models(self, rows: Tensor, models: Sequence[Tensor]) -> None:
        if self._parameter_index is None:
            torch.stack(list(models), out=rows)
        else:
            rows[:, self._parameter_index] = torch.stack(list(models))

    def _autograd_step(self, step: Tensor) -> None:
        b = self._buffers
        index = b.batch_indices.index_select(0, step)[0]  # (C, B)
        sample = index.clamp(min=0)
        rows = self._client_rows, sample
        x, y, w = (t[b.client_index] for t in (b.x[rows], b.y[rows], (index >= 0).float()))
        gradient = self._loss_grad(b.theta, x, y, w, b.tau, b.lam)
        gradient = gradient + b.prox[:, None] * (b.theta - b.anchor[b.anchor_index])
        b.theta.sub_((b.lr * (step < b.steps))[:, None] * gradient)

    def _capture_graph(self) -> Callable[[], None]:
        """Capture several steps in a CUDA graph, once; the buffers are unchanged afterwards."""
        if self._replay is None:
            b = self._buffers
            theta = b.theta.clone()
            with fp32_deterministic(b.theta.device, tf32=self._precision == "tf32"), warnings.catch_warnings():
                # inductor advises to allow TF32; here `precision` decides
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self._step(0)
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for offset in range(_STEPS_PER_GRAPH):
                        self._step(offset)
                    b.first_step.add_(_STEPS_PER_GRAPH)
            b.theta.copy_(theta)
            b.first_step.zero_()
            self._replay = graph.replay
        return self._replay


def _with_own_code(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """The method with a copy of its code object: torch refuses to compile one code object more than eight times."""
    assert isinstance(method, types.MethodType)
    code = method.__func__.__code__.replace()
    return types.MethodType(types.FunctionType(code, method.__func__.__globals__), method.__self__)


# How many jobs of a model fit into memory at once, once that is known.
_jobs_in_memory: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

# A run needs one set of sizes, or two where the last group of clients is smaller.
_cached_stack = functools.lru_cache(maxsize=4)(_Stack)


def clear_cache() -> None:
    """Free all buffers and CUDA graphs."""
    _cached_stack.cache_clear()
