"""All lanes in one step: parameters stacked (L, P), a batch of every client at once. The GPU way.

Clients of unequal size keep their own number of steps: a batch that is short, or a lane that is done, is padded with
samples of weight zero and steps of length zero. On CUDA the step is compiled once for a shape, captured in a graph and
replayed; the number of the step lives on the device, so nothing synchronises inside a round.
"""

import copy
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedtilt.descend.lanes import Batches, Lane
from fedtilt.losses import client_loss, cross_entropy
from fedtilt.models import unflat

_ALONE = (nn.RNNBase, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_ROOM = 256  # sizes are rounded up to a multiple of this, so that few shapes are ever compiled


def supports(model: nn.Module) -> bool:
    """Whether the model batches over lanes: no recurrent cells, and nothing random inside."""
    return not any(isinstance(m, _ALONE) or getattr(m, "dropout", 0) for m in model.modules())


def descend(model: nn.Module, lanes: Sequence[Lane], batches: Sequence[Batches]) -> list[Tensor]:
    """Train every lane on its batches; the trained parameters, (P,) each."""
    if not lanes:
        return []
    clients = list({id(b): b for b in batches}.values())
    stack = _stack(
        model,
        len(lanes),
        len(clients),
        _rounded(max(len(b.y) for b in clients)),
        _rounded(max(len(b) for b in clients)),
        max(b.size for b in clients),
        tuple(clients[0].x.shape[1:]),
        lanes[0].start.device,
    )
    stack.load(lanes, batches, clients)
    stack.run(max(len(b) for b in clients))
    return list(stack.theta.clone().unbind())


def _rounded(count: int) -> int:
    return -(-count // _ROOM) * _ROOM


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


def _products(model: nn.Module) -> nn.Module:
    """The same model, its plain convolutions computed as products."""
    net = copy.deepcopy(model)
    for layer in net.modules():
        if type(layer) is nn.Conv2d and _plain(layer):
            layer.__class__ = _Products
    return net


class _Stack:
    """The buffers of one shape of work, and the step over them."""

    def __init__(
        self, model: nn.Module, lanes: int, clients: int, samples: int, steps: int, width: int,
        shape: tuple[int, ...], device: torch.device,
    ) -> None:  # fmt: skip
        def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        net = _products(model).train()
        parameters = sum(p.numel() for p in net.parameters())
        self.theta, self.anchor = empty(lanes, parameters), empty(lanes, parameters)
        self.pull, self.lr = empty(lanes, 1), empty(lanes, 1)
        self.tau, self.lam = empty(lanes), empty(lanes)
        self.client = empty(lanes, dtype=torch.long)  # whose batches a lane trains on
        self.length = empty(lanes, 1, dtype=torch.long)  # how many steps it makes
        self.x, self.y = empty(clients, samples, *shape), empty(clients, samples, dtype=torch.long)
        self.index = empty(steps, clients, width, dtype=torch.long)  # samples of every step, -1 for none
        self.row = torch.arange(clients, device=device)[:, None]
        self.at = empty(1, dtype=torch.long)

        def loss(theta: Tensor, x: Tensor, y: Tensor, w: Tensor, tau: Tensor, lam: Tensor) -> Tensor:
            return client_loss(cross_entropy(functional_call(net, unflat(net, theta), (x,)), y), y, tau, lam, w)

        self._slope = vmap(grad(loss))
        self._replay: Callable[[], None] | None = None

    def load(self, lanes: Sequence[Lane], batches: Sequence[Batches], clients: Sequence[Batches]) -> None:
        """Fill the buffers for one round."""
        place = {id(b): i for i, b in enumerate(clients)}
        for column, values in (
            (self.pull, [lane.pull for lane in lanes]), (self.lr, [lane.lr for lane in lanes]),
            (self.tau, [lane.tau for lane in lanes]), (self.lam, [lane.lam for lane in lanes]),
            (self.client, [place[id(b)] for b in batches]), (self.length, [len(b) for b in batches]),
        ):  # fmt: skip
            column.copy_(torch.tensor(values, dtype=column.dtype).view_as(column))
        torch.stack([lane.start for lane in lanes], out=self.theta)
        torch.stack([lane.anchor for lane in lanes], out=self.anchor)
        self.index.fill_(-1)
        for i, b in enumerate(clients):
            self.x[i, : len(b.y)], self.y[i, : len(b.y)] = b.x, b.y
            missing = b.per_epoch * b.size - len(b.y)
            order = nn.functional.pad(b.order, (0, missing), value=-1)  # (epochs, steps of an epoch · size)
            self.index[: len(b), i, : b.size] = order.reshape(len(b), b.size)
        self.at.zero_()

    def run(self, steps: int) -> None:
        """Make so many steps."""
        if self.theta.device.type != "cuda":
            for _ in range(steps):
                self._step()
            return
        with torch.cuda.device(self.theta.device):
            replay = self._captured()
            for _ in range(steps):
                replay()

    def _step(self) -> None:
        index = self.index.index_select(0, self.at)[0]  # (C, B)
        held = index.clamp(min=0)
        x, y, w = (t[self.client] for t in (self.x[self.row, held], self.y[self.row, held], (index >= 0).float()))
        slope = self._slope(self.theta, x, y, w, self.tau, self.lam) + self.pull * (self.theta - self.anchor)
        self.theta.sub_(self.lr * (self.at < self.length) * slope)
        self.at.add_(1)

    def _captured(self) -> Callable[[], None]:
        """The step compiled and captured in a CUDA graph; its warm-up leaves the buffers as they were."""
        if self._replay is None:
            kept = self.theta.clone()
            compiled = torch.compile(self._step, fullgraph=True, dynamic=False)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    compiled()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                compiled()
            self.theta.copy_(kept)
            self.at.zero_()
            self._replay = graph.replay
        return self._replay


# A few shapes live at a time: a run has one, or two where a last wave is smaller.
_stack = functools.lru_cache(maxsize=4)(_Stack)


def forget() -> None:
    """Free the buffers and graphs of all shapes."""
    _stack.cache_clear()
