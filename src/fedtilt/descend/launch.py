"""Which kernels make a step of a chain, over which buffers, and how each cuts its work."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from fedtilt.descend import image_kernels, kernels
from fedtilt.descend.buffers import Buffers
from fedtilt.descend.chain import Block, Chain

MOST_SAMPLES, MOST_CLASSES, MOST_CHANNELS = 64, 128, 128  # what one program holds at once
PRECISIONS = {"float32": "tf32x3", "tf32": "tf32", "bfloat16": "bf16"}  # of the products; sums are float32


class Tile(NamedTuple):
    """How a kernel cuts its work: rows (windows or positions), columns and depth of a product, warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


_FEW = 64  # up to this many lanes, programs are too few to fill the chip unless they are small


def _tile(kernel: str, lanes: int, columns: int, precision: str) -> Tile:
    """The fastest of those tried on an H200; `columns` are the channels of a block's product."""
    few, exact = lanes <= _FEW, precision == PRECISIONS["float32"]
    if kernel == "forward":
        return Tile(0, 16, 64, 2, 4) if few else Tile(0, 64, 32, 4, 4)
    if kernel == "backward":
        return Tile(0, 32, 64, 4, 2) if few else Tile(0, 128, 32, 4, 3)
    if kernel == "head":
        return Tile(0, 256, 0, 4, 2) if few else Tile(0, 64, 0, 2, 3)
    if kernel == "block forward":
        if columns <= 32 or (exact and columns <= 64):
            return Tile(32, columns, 32, 4, 3)
        if columns <= 64:
            return Tile(64, columns, 32, 4, 2)
        return Tile(32, columns, 64, 8, 2) if few or exact else Tile(64, columns, 32, 8, 3)
    if kernel == "block delta":
        if columns <= 32:
            return Tile(64, columns, 64, 4, 2)
        return Tile(128, columns, 64, 8, 2) if exact else Tile(128, columns, 32, 4, 3)
    return Tile(16, columns, 32 if exact else 64, 4, 3)  # block slope


class Step:
    """Launches the kernels of one step over these buffers."""

    def __init__(self, chain: Chain, buffers: Buffers, precision: str) -> None:
        self._chain, self._buffers, self._precision = chain, buffers, PRECISIONS[precision]
        lanes, device = len(buffers.theta), buffers.theta.device
        self._second = torch.cuda.Stream(device) if chain.blocks and device.type == "cuda" else None
        self._width = buffers.picks.shape[2]
        self._rows = max(16, triton.next_power_of_2(self._width))

        def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(lanes, self._width, *size, dtype=dtype, device=device)

        # what comes out of every block and layer but the last, and the slope by it
        images = [
            torch.zeros(lanes, self._width, *chain.framed(i + 1), device=device) for i in range(len(chain.blocks))
        ]  # the frames stay 0
        vectors = [empty(layer.fan_out) for layer in chain.layers[:-1]]
        self._active = [buffers.x, *images, *vectors]
        self._delta = [
            None,
            *(empty(*block.pooled, block.fan_out) for block in chain.blocks),
            *(torch.empty_like(h) for h in vectors),
        ]
        self._winner = [empty(*block.pooled, block.fan_out, dtype=torch.int8) for block in chain.blocks]
        self._parts = [self._split(block) for block in chain.blocks]
        self._slope = [
            torch.empty(parts, lanes, block.parameters, device=device)
            for parts, block in zip(self._parts, chain.blocks, strict=True)
        ]

    def __call__(self, ahead: int = 0) -> None:
        """Make the step that comes `ahead` of the number on the device."""
        forward, backward = len(self._chain.blocks), len(self._chain.layers)
        for i in range(forward):
            self._block_forward(i, ahead)
        for i in range(backward - 1):
            self._layer_forward(i, ahead)
        self._head(ahead)
        for i in reversed(range(backward - 1)):
            self._layer_backward(i, ahead)
        for i in reversed(range(forward)):
            with self._beside():  # the slope by the weights and that by the input do not wait for each other
                self._block_slope(i, ahead)
            if i > 0:
                self._block_delta(i)
        self._join()
        for i in range(forward):
            self._block_update(i, ahead)

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Launch on a second stream what may begin now; `_join` waits for it."""
        if self._second is None:
            yield
            return
        self._second.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._second):
            yield

    def _join(self) -> None:
        if self._second is not None:
            torch.cuda.current_stream().wait_stream(self._second)

    def _feed(self, ahead: int) -> dict[str, Any]:
        b = self._buffers
        return {
            "client": b.client, "picks": b.picks, "step": b.at, "AHEAD": ahead, "CLIENTS": b.x.shape[0],
            "SAMPLES": b.x.shape[1], "WIDTH": self._width, "PRECISION": self._precision,
        }  # fmt: skip

    def _update(self) -> dict[str, Any]:
        b = self._buffers
        return {
            "theta": b.theta, "anchor": b.anchor, "anchor_of": b.anchor_of, "lr": b.lr, "pull": b.pull,
            "length": b.length, "LENGTH": b.theta.shape[1],
        }  # fmt: skip

    def _tile(self, kernel: str, channels: int = 0) -> Tile:
        columns = max(16, int(triton.next_power_of_2(channels)))
        return _tile(kernel, len(self._buffers.theta), columns, self._precision)

    def _split(self, block: Block) -> int:
        """Into how many parts the positions of a block are split, so that few lanes still fill the chip."""
        depth = _depth(block, self._tile("block slope", block.fan_out))
        programs = len(self._buffers.theta) * -(-block.taps // depth)
        most = -(-self._width * block.height * block.width // 256)
        return max(1, min(most, 8, -(-264 // programs)))

    def _layer_forward(self, i: int, ahead: int) -> None:
        layer, place, lanes = self._chain.layers[i], len(self._chain.blocks) + i, len(self._buffers.theta)
        tile = self._tile("forward")
        kernels.forward[(triton.cdiv(layer.fan_out, tile.columns), lanes)](
            theta=self._buffers.theta, source=self._active[place], out=self._active[place + 1], **self._feed(ahead),
            LENGTH=self._buffers.theta.shape[1], OFFSET=layer.offset, BIAS=layer.bias, IN=layer.fan_in,
            OUT=layer.fan_out, FIRST=place == 0, ROWS=self._rows, COLUMNS=tile.columns, DEPTH=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _layer_backward(self, i: int, ahead: int) -> None:
        layer, place, lanes = self._chain.layers[i], len(self._chain.blocks) + i, len(self._buffers.theta)
        tile = self._tile("backward")
        kernels.backward[(triton.cdiv(layer.fan_in, tile.columns), lanes)](
            **self._update(), source=self._active[place], delta=self._delta[place + 1], delta_in=self._delta[place],
            **self._feed(ahead), OFFSET=layer.offset, BIAS=layer.bias, IN=layer.fan_in, OUT=layer.fan_out,
            FIRST=place == 0, ROWS=self._rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip

    def _head(self, ahead: int) -> None:
        layer, place = self._chain.layers[-1], len(self._chain.blocks) + len(self._chain.layers) - 1
        b, tile = self._buffers, self._tile("head")
        kernels.head[(len(b.theta),)](
            **self._update(), tau=b.tau, lam=b.lam, labels=b.y, source=self._active[place],
            delta_in=self._delta[place], **self._feed(ahead), OFFSET=layer.offset, BIAS=layer.bias, IN=layer.fan_in,
            OUT=layer.fan_out, FIRST=place == 0, ROWS=self._rows,
            CLASSES=max(16, triton.next_power_of_2(layer.fan_out)), COLUMNS=tile.columns,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _shape(self, block: Block) -> dict[str, Any]:
        return {
            "HEIGHT": block.height, "BREADTH": block.width, "IN": block.fan_in, "OUT": block.fan_out,
            "SIZE": block.size, "PRECISION": self._precision, "WIDTH": self._width,
        }  # fmt: skip

    def _block_forward(self, i: int, ahead: int) -> None:
        block, lanes = self._chain.blocks[i], len(self._buffers.theta)
        tile = self._tile("block forward", block.fan_out)
        positions = self._width * block.pooled[0] * block.pooled[1]
        image_kernels.block_forward[(triton.cdiv(positions, tile.rows), lanes)](
            theta=self._buffers.theta, source=self._active[i], out=self._active[i + 1], winner=self._winner[i],
            **self._feed(ahead) | self._shape(block), LENGTH=self._buffers.theta.shape[1], OFFSET=block.offset,
            FRAME=self._chain.frame(i + 1), FIRST=i == 0, WINDOWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _block_delta(self, i: int) -> None:
        block, lanes, b = self._chain.blocks[i], len(self._buffers.theta), self._buffers
        tile = self._tile("block delta", block.fan_in)
        image_kernels.block_delta[(triton.cdiv(self._width * block.height * block.width, tile.rows), lanes)](
            theta=b.theta, below=self._active[i], delta=self._delta[i + 1], winner=self._winner[i],
            delta_in=self._delta[i], **self._shape(block), LENGTH=b.theta.shape[1], OFFSET=block.offset,
            POSITIONS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _block_slope(self, i: int, ahead: int) -> None:
        block, parts = self._chain.blocks[i], self._parts[i]
        tile = self._tile("block slope", block.fan_out)
        depth = _depth(block, tile)
        image_kernels.block_slope[(triton.cdiv(block.taps, depth), parts, len(self._buffers.theta))](
            source=self._active[i], delta=self._delta[i + 1], winner=self._winner[i], slope=self._slope[i],
            **self._feed(ahead) | self._shape(block), FIRST=i == 0, PARTS=parts, WINDOWS=tile.rows,
            COLUMNS=tile.columns, DEPTH=depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _block_update(self, i: int, ahead: int) -> None:
        block, columns = self._chain.blocks[i], 1024
        image_kernels.block_update[(triton.cdiv(block.parameters, columns), len(self._buffers.theta))](
            **self._update(), slope=self._slope[i], step=self._buffers.at, AHEAD=ahead, OFFSET=block.offset,
            COUNT=block.parameters, PARTS=self._parts[i], COLUMNS=columns, num_warps=4,
        )  # fmt: skip


def _depth(block: Block, tile: Tile) -> int:
    return min(tile.depth, max(16, int(triton.next_power_of_2(block.taps))))
