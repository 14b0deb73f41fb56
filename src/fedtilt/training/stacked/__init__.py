"""All lanes in one step: parameters stacked (L, P), a batch of every client at once. The GPU way.

Clients of unequal size keep their own number of steps: a batch that is short, or a lane that is done, is padded with
samples of weight zero and steps of length zero. On CUDA the step of a chain (see `chain`) is a few Triton kernels, that
of any other model is compiled; either is captured in a graph and replayed. The number of the step lives on the device,
so nothing synchronises inside a round.
"""

import copy
import functools
import importlib.util
import os
import types
import warnings
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedtilt.math.losses import client_loss, cross_entropy
from fedtilt.models import flat, unflat
from fedtilt.training.local_job import Batches, LocalJob
from fedtilt.training.precision import fp32_deterministic
from fedtilt.training.sequential import SequentialNet
from fedtilt.training.stacked.buffers import Buffers

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_ALONE = (nn.RNNBase, nn.RReLU, *_DROPOUT)
_ROOM = 256  # sizes are rounded up to a multiple of this, so that few shapes are ever compiled
_MOST_LANES = 65_535  # what CUDA launches side by side
_AHEAD = 16  # steps in one graph; divides _ROOM, so that the steps past a round's last are padding


def supports(model: nn.Module, sample: Tensor | None = None) -> bool:
    """Whether the model batches over lanes: no recurrent cells, and nothing random inside.

    With a sample, (1, …), that is also tried: a module does not tell what its `forward` does.
    """
    if any(isinstance(m, _ALONE) or getattr(m, "dropout", 0) for m in model.modules()):
        return False
    return sample is None or _batches_over_lanes(model, sample)


def _batches_over_lanes(model: nn.Module, sample: Tensor) -> bool:
    net = copy.deepcopy(model).train()

    def total(theta: Tensor, x: Tensor) -> Tensor:
        return functional_call(net, unflat(net, theta), (x,)).sum()

    theta = flat(net)
    try:
        vmap(grad(total))(theta.expand(2, -1), sample.to(theta.device).expand(2, *sample.shape))
    except RuntimeError:  # something random, or a branch on values
        return False
    return True


def train(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], precision: str = "float32"
) -> list[Tensor]:
    """Train every lane on its batches; the trained parameters, (P,) each."""
    if not jobs:
        return []
    trained: list[Tensor] = []
    while len(trained) < len(jobs):
        # as many at once as fit into memory, in parts as equal as can be: a shape more is a graph more
        parts = -(-len(jobs) // min(_fits.get(model, len(jobs)), _MOST_LANES))
        size = -(-len(jobs) // parts)
        part = slice(len(trained), len(trained) + size)
        try:
            trained += _together(model, jobs[part], batches[part], precision)
            continue
        except torch.cuda.OutOfMemoryError:
            if size == 1:
                raise
        # only here, past the traceback, is nobody left who holds the buffers
        _fits[model] = size // 2
        forget()
        torch.cuda.empty_cache()
    return trained


def _together(model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], precision: str) -> list[Tensor]:
    clients = list({id(b): b for b in batches}.values())
    stack = _stack(
        model,
        len(jobs),
        len(clients),
        _rounded(max(len(b.y) for b in clients)),
        _rounded(max(len(b) for b in clients)),
        max(b.size for b in clients),
        tuple(clients[0].x.shape[1:]),
        jobs[0].start.device,
        precision,
    )
    stack.load(jobs, batches, clients)
    stack.run(max(len(b) for b in clients))
    return list(stack.trained().unbind())


def _rounded(count: int) -> int:
    return -(-count // _ROOM) * _ROOM


def _chain(model: nn.Module, shape: tuple[int, ...], width: int, device: torch.device) -> SequentialNet | None:
    """The model as a chain that the kernels can train here, or None."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # on the CPU, slowly: for tests
    if device.type != ("cpu" if interpreted else "cuda") or importlib.util.find_spec("triton") is None:
        return None
    from fedtilt.training.stacked.launch import MOST_CHANNELS, MOST_CLASSES, MOST_SAMPLES

    chain = SequentialNet.of(model, shape)
    if chain is None or width > MOST_SAMPLES or chain.layers[-1].fan_out > MOST_CLASSES:
        return None
    if any(max(block.fan_in, block.fan_out) > MOST_CHANNELS for block in chain.blocks):
        return None
    return chain


class _Products(nn.Conv2d):
    """A convolution as shifted slices and one product: over lanes a batched product, not a grouped convolution."""

    padding: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        (down, right), (pad_y, pad_x) = self.kernel_size, self.padding
        padded = nn.functional.pad(x, (pad_x, pad_x, pad_y, pad_y)).permute(0, 2, 3, 1)  # (B, H, W, C)
        height, width = padded.shape[1] - down + 1, padded.shape[2] - right + 1
        slices = [padded[:, i : i + height, j : j + width] for i in range(down) for j in range(right)]
        patches = torch.cat(slices, dim=-1).flatten(0, 2)  # (B · H · W, kernel · C)
        weight = self.weight.permute(2, 3, 1, 0).flatten(0, 2)  # (kernel · C, out)
        out = patches @ weight if self.bias is None else torch.addmm(self.bias, patches, weight)
        return out.reshape(len(x), height, width, -1).permute(0, 3, 1, 2)


def _plain(layer: nn.Conv2d) -> bool:
    one_step = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    return one_step and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def products(model: nn.Module) -> nn.Module:
    """The same model, its plain convolutions computed as products."""
    net = copy.deepcopy(model)
    for layer in net.modules():
        if type(layer) is nn.Conv2d and _plain(layer):
            layer.__class__ = _Products
    return net


class _Stack:
    """The buffers of one shape of work, and the step over them."""

    def __init__(
        self, model: nn.Module, jobs: int, clients: int, samples: int, steps: int, width: int,
        shape: tuple[int, ...], device: torch.device, precision: str,
    ) -> None:  # fmt: skip
        def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self._chain = _chain(model, shape, width, device)
        self._place = None if self._chain is None else self._chain.place.to(device)
        parameters = sum(p.numel() for p in model.parameters()) if self._chain is None else self._chain.length
        values, held = shape, torch.float32
        if self._chain is not None:
            from fedtilt.training.stacked.launch import Step, held_in

            values, held = (self._chain.values,), held_in(precision)
        self._b = b = Buffers(
            theta=empty(jobs, parameters),
            anchor=empty(jobs, parameters),
            anchor_of=empty(jobs, dtype=torch.long),
            prox=empty(jobs),
            lr=empty(jobs),
            tau=empty(jobs),
            lam=empty(jobs),
            client=empty(jobs, dtype=torch.long),
            length=empty(jobs, dtype=torch.long),
            x=empty(clients, samples, *values, dtype=held),
            y=empty(clients, samples, dtype=torch.long),
            picks=empty(steps, clients, width, dtype=torch.long),
            at=empty(1, dtype=torch.long),
        )
        self._row = torch.arange(clients, device=device)[:, None]
        self._precision = precision
        self._replay: Callable[[], None] | None = None
        if self._chain is not None:
            self._step: Callable[[int], None] = Step(self._chain, b, precision)
            return
        net = products(model).train()

        def loss(theta: Tensor, x: Tensor, y: Tensor, w: Tensor, tau: Tensor, lam: Tensor) -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                logits = functional_call(net, unflat(net, theta), (x,))
            return client_loss(cross_entropy(logits.float(), y), y, tau, lam, w)

        self._slope = vmap(grad(loss))
        general: Callable[[Tensor], None] = self._general
        if device.type == "cuda":
            general = torch.compile(_own_code(general), fullgraph=True, dynamic=False)
        self._step = lambda ahead: general(b.at + ahead)

    def load(self, jobs: Sequence[LocalJob], batches: Sequence[Batches], clients: Sequence[Batches]) -> None:
        """Fill the buffers for one round."""
        b = self._b
        place = {id(data): i for i, data in enumerate(clients)}
        anchors = {id(job.anchor): job.anchor for job in jobs}
        row = {key: i for i, key in enumerate(anchors)}
        for column, values in (
            (b.prox, [job.prox for job in jobs]), (b.lr, [job.lr for job in jobs]),
            (b.tau, [job.tau for job in jobs]), (b.lam, [job.lam for job in jobs]),
            (b.client, [place[id(data)] for data in batches]), (b.length, [len(data) for data in batches]),
            (b.anchor_of, [row[id(job.anchor)] for job in jobs]),
        ):  # fmt: skip
            column.copy_(torch.tensor(values, dtype=column.dtype))
        self._put(b.theta, [job.start for job in jobs])
        self._put(b.anchor[: len(anchors)], list(anchors.values()))
        b.picks.fill_(-1)
        for i, data in enumerate(clients):
            x = data.x if self._chain is None else self._chain.rows(data.x)
            b.x[i, : len(data.y)], b.y[i, : len(data.y)] = x, data.y
            missing = data.per_epoch * data.size - len(data.y)
            order = nn.functional.pad(data.order, (0, missing), value=-1)  # (epochs, steps of an epoch · size)
            b.picks[: len(data), i, : data.size] = order.reshape(len(data), data.size)
        b.at.zero_()

    def trained(self) -> Tensor:
        """The models as they are now, (L, P)."""
        return self._b.theta.clone() if self._place is None else self._b.theta[:, self._place]

    def run(self, steps: int) -> None:
        """Make so many steps."""
        device = self._b.theta.device
        if device.type != "cuda":
            for ahead in range(steps):
                self._step(ahead)
            return
        with torch.cuda.device(device):
            replay = self._captured()
            for _ in range(0, steps, _AHEAD):
                replay()

    def _put(self, rows: Tensor, models: Sequence[Tensor]) -> None:
        if self._place is None:
            torch.stack(list(models), out=rows)
        else:
            rows[:, self._place] = torch.stack(list(models))

    def _general(self, at: Tensor) -> None:
        b = self._b
        index = b.picks.index_select(0, at)[0]  # (C, B)
        held = index.clamp(min=0)
        x, y, w = (t[b.client] for t in (b.x[self._row, held], b.y[self._row, held], (index >= 0).float()))
        slope = self._slope(b.theta, x, y, w, b.tau, b.lam) + b.prox[:, None] * (b.theta - b.anchor[b.anchor_of])
        b.theta.sub_((b.lr * (at < b.length))[:, None] * slope)

    def _captured(self) -> Callable[[], None]:
        """Several steps captured in a CUDA graph; the warm-up leaves the buffers as they were."""
        if self._replay is None:
            b = self._b
            kept = b.theta.clone()
            with fp32_deterministic(b.theta.device, tf32=self._precision == "tf32"), warnings.catch_warnings():
                # the compiler's advice on its own settings, TF32 among them: here `precision` decides
                warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self._step(0)
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for ahead in range(_AHEAD):
                        self._step(ahead)
                    b.at.add_(_AHEAD)
            b.theta.copy_(kept)
            b.at.zero_()
            self._replay = graph.replay
        return self._replay


def _own_code(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """A copy that torch compiles for itself: it counts compilations by code, and refuses the ninth of one."""
    assert isinstance(method, types.MethodType)
    code = method.__func__.__code__.replace()
    return types.MethodType(types.FunctionType(code, method.__func__.__globals__), method.__self__)


# How many lanes of a model were found to fit into memory at once.
_fits: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

# A few shapes live at a time: a run has one, or two where a last wave is smaller.
_stack = functools.lru_cache(maxsize=4)(_Stack)


def forget() -> None:
    """Free the buffers and graphs of all shapes."""
    _stack.cache_clear()
