"""Which kernels make a step of a chain, over which buffers, and how each cuts its work."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from fedtilt.training.sequential import Block, SequentialNet
from fedtilt.training.stacked import conv_kernels, linear_kernels
from fedtilt.training.stacked.buffers import Buffers

MOST_SAMPLES, MOST_CLASSES, MOST_CHANNELS = 64, 128, 128  # what one program holds at once
PRECISIONS = {"float32": "tf32x3", "tf32": "tf32", "bfloat16": "bf16"}  # of the products; sums are float32
# Slopes by a convolution's weights sum over positions, along which tensor cores take 16-bit operands only: three
# products of bfloat16 halves are faster there than one of TF32, and more exact.
_SLOPES = PRECISIONS | {"tf32": "bf16x3"}


def held_in(precision: str) -> torch.dtype:
    """What samples, images and the copy of the weights are stored in: no more bits than the products look at."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


class Tile(NamedTuple):
    """How a kernel cuts its work: rows (windows or positions), columns and depth of a product, warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# The fastest of those tried on an H200.
_FEW = 64  # up to this many lanes, programs are too few to fill the chip unless they are small
_LAYERS = {  # for few lanes, for many
    "forward": (Tile(0, 16, 64, 2, 4), Tile(0, 64, 32, 4, 4)),
    "backward": (Tile(0, 32, 64, 4, 2), Tile(0, 128, 32, 4, 3)),
    "head": (Tile(0, 256, 0, 4, 2), Tile(0, 64, 0, 1, 3)),
    "head of images": (Tile(0, 256, 0, 4, 2), Tile(0, 128, 0, 2, 3)),
}
_BLOCKS = {  # for up to 32, up to 64 and up to 128 channels
    ("forward", "float32"): (Tile(16, 32, 64, 4, 2), Tile(32, 64, 32, 8, 3), Tile(32, 128, 32, 8, 3)),
    ("forward", "tf32"): (Tile(32, 32, 64, 4, 2), Tile(64, 64, 32, 8, 3), Tile(64, 128, 32, 8, 3)),
    ("forward", "bfloat16"): (Tile(32, 32, 64, 4, 2), Tile(64, 64, 32, 4, 4), Tile(32, 128, 64, 4, 3)),
    ("delta", "float32"): (Tile(64, 32, 64, 4, 3), Tile(64, 64, 32, 4, 3), Tile(64, 128, 32, 8, 3)),
    ("delta", "tf32"): (Tile(64, 32, 64, 4, 3), Tile(64, 64, 32, 8, 3), Tile(64, 128, 32, 8, 3)),
    ("delta", "bfloat16"): (Tile(64, 32, 64, 4, 3), Tile(64, 64, 32, 4, 5), Tile(64, 128, 32, 4, 4)),
    ("slope", "float32"): (Tile(128, 32, 64, 4, 3), Tile(64, 64, 32, 4, 3), Tile(64, 128, 32, 4, 3)),
    ("slope", "tf32"): (Tile(128, 32, 64, 4, 2), Tile(64, 64, 64, 4, 2), Tile(64, 128, 64, 4, 2)),
    ("slope", "bfloat16"): (Tile(256, 32, 64, 4, 2), Tile(128, 64, 64, 4, 2), Tile(64, 128, 128, 4, 2)),
}


class Step:
    """Launches the kernels of one step over these buffers."""

    def __init__(self, chain: SequentialNet, buffers: Buffers, precision: str) -> None:
        self._chain, self._buffers, self._precision = chain, buffers, precision
        jobs, device = len(buffers.theta), buffers.theta.device
        held, self._room = held_in(precision), _room(device)
        self._second = torch.cuda.Stream(device) if chain.blocks and device.type == "cuda" else None
        self._width = buffers.picks.shape[2]
        self._rows = max(16, triton.next_power_of_2(self._width))
        self._classes = max(16, triton.next_power_of_2(chain.layers[-1].fan_out))

        def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(jobs, self._width, *size, dtype=dtype, device=device)

        def framed(height: int, width: int, channels: int) -> Tensor:
            return torch.zeros(jobs, self._width, height, width, channels, dtype=held, device=device)  # frames stay 0

        # what comes out of every block and layer but the last, and the slope by it
        images = [framed(*chain.framed(i + 1)) for i in range(len(chain.blocks))]
        vectors = [empty(layer.fan_out) for layer in chain.layers[:-1]]
        self._active = [buffers.x, *images, *vectors]
        last = [empty(*block.pooled, block.fan_out) for block in chain.blocks[-1:]]
        self._delta = [None, *(None for _ in chain.blocks[:-1]), *last, *(torch.empty_like(h) for h in vectors)]
        # of every block: the slope by its convolution, which of each window won, and the slope by its parameters
        self._spread = [
            framed(block.height + block.size - 1, block.width + block.size - 1, block.fan_out) for block in chain.blocks
        ]
        self._winner = [empty(*block.pooled, block.fan_out, dtype=torch.int8) for block in chain.blocks]
        self._parts = [self._split(block) for block in chain.blocks]
        self._slope = [
            torch.empty(parts, jobs, block.parameters, device=device)
            for parts, block in zip(self._parts, chain.blocks, strict=True)
        ]
        self._copied = bool(chain.blocks) and held != buffers.theta.dtype
        self._weights = torch.empty_like(buffers.theta, dtype=held) if self._copied else buffers.theta  # of the blocks

    def __call__(self, ahead: int = 0) -> None:
        """Make the step that comes `ahead` of the number on the device."""
        blocks, layers = len(self._chain.blocks), len(self._chain.layers)
        if ahead == 0 and self._copied:
            self._weights.copy_(self._buffers.theta)
        for i in range(blocks):
            self._block_forward(i, ahead)
        for i in range(layers - 1):
            self._layer_forward(i, ahead)
        self._head(ahead)
        for i in reversed(range(layers - 1)):
            self._layer_backward(i, ahead)
        if blocks:
            self._block_spread(blocks - 1)
        for i in reversed(range(blocks)):
            with self._beside():  # the slope by the weights and that by the input do not wait for each other
                self._block_slope(i, ahead)
            if i > 0:
                self._block_delta(i)
        self._join()
        for i in range(blocks):
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
            "SAMPLES": b.x.shape[1], "WIDTH": self._width, "PRECISION": PRECISIONS[self._precision],
        }  # fmt: skip

    def _update(self) -> dict[str, Any]:
        b = self._buffers
        return {
            "theta": b.theta, "anchor": b.anchor, "anchor_of": b.anchor_of, "lr": b.lr, "prox": b.prox,
            "length": b.length, "LENGTH": self._chain.length,
        }  # fmt: skip

    def _layer_tile(self, kernel: str) -> Tile:
        tile = _LAYERS[kernel][len(self._buffers.theta) > _FEW]
        if self._rows > 16:  # the tiles were found for less
            tile = tile._replace(warps=max(4, tile.warps))
        return _fitted(tile, lambda tile: _layer_bytes(kernel, tile, self._rows, self._classes), self._room)

    def _block_tile(self, kernel: str, channels: int) -> Tile:
        columns = max(16, int(triton.next_power_of_2(channels)))
        tile = _BLOCKS[kernel, self._precision][(columns > 32) + (columns > 64)]._replace(columns=columns)
        itemsize = held_in(self._precision).itemsize
        return _fitted(tile, lambda tile: itemsize * _block_values(kernel, tile), self._room, narrower=False)

    def _split(self, block: Block) -> int:
        """Into how many parts the positions of a block are split, so that few lanes still fill the chip."""
        depth = _depth(block, self._block_tile("slope", block.fan_out))
        programs = len(self._buffers.theta) * -(-block.taps // depth)
        most = -(-self._width * block.height * block.width // 256)
        return max(1, min(most, 8, -(-264 // programs)))

    def _layer_forward(self, i: int, ahead: int) -> None:
        layer, place, jobs = self._chain.layers[i], len(self._chain.blocks) + i, len(self._buffers.theta)
        tile = self._layer_tile("forward")
        linear_kernels.forward[(triton.cdiv(layer.fan_out, tile.columns), jobs)](
            theta=self._buffers.theta, source=self._active[place], out=self._active[place + 1], **self._feed(ahead),
            LENGTH=self._chain.length, OFFSET=layer.offset, BIAS=layer.bias, IN=layer.fan_in,
            OUT=layer.fan_out, FIRST=place == 0, ROWS=self._rows, COLUMNS=tile.columns, DEPTH=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _layer_backward(self, i: int, ahead: int) -> None:
        layer, place, jobs = self._chain.layers[i], len(self._chain.blocks) + i, len(self._buffers.theta)
        tile = self._layer_tile("backward")
        linear_kernels.backward[(triton.cdiv(layer.fan_in, tile.columns), jobs)](
            **self._update(), source=self._active[place], delta=self._delta[place + 1], delta_in=self._delta[place],
            **self._feed(ahead), OFFSET=layer.offset, BIAS=layer.bias, IN=layer.fan_in, OUT=layer.fan_out,
            FIRST=place == 0, ROWS=self._rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip

    def _head(self, ahead: int) -> None:
        layer, place = self._chain.layers[-1], len(self._chain.blocks) + len(self._chain.layers) - 1
        b, tile = self._buffers, self._layer_tile("head of images" if place == len(self._chain.blocks) > 0 else "head")
        linear_kernels.head[(len(b.theta),)](
            **self._update(), tau=b.tau, lam=b.lam, labels=b.y, source=self._active[place],
            delta_in=self._delta[place], **self._feed(ahead), OFFSET=layer.offset, BIAS=layer.bias, IN=layer.fan_in,
            OUT=layer.fan_out, FIRST=place == 0, ROWS=self._rows, CLASSES=self._classes, COLUMNS=tile.columns,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _shape(self, block: Block) -> dict[str, Any]:
        return {
            "HEIGHT": block.height, "BREADTH": block.width, "IN": block.fan_in, "OUT": block.fan_out,
            "SIZE": block.size, "WIDTH": self._width, "PRECISION": PRECISIONS[self._precision],
        }  # fmt: skip

    def _block_forward(self, i: int, ahead: int) -> None:
        block, jobs = self._chain.blocks[i], len(self._buffers.theta)
        tile = self._block_tile("forward", block.fan_out)
        windows = self._width * block.pooled[0] * block.pooled[1]
        conv_kernels.block_forward[(triton.cdiv(windows, tile.rows), jobs)](
            theta=self._buffers.theta, weights=self._weights, source=self._active[i], out=self._active[i + 1],
            winner=self._winner[i], **self._feed(ahead) | self._shape(block), LENGTH=self._chain.length,
            OFFSET=block.offset, FRAME=self._chain.frame(i + 1), FIRST=i == 0, WINDOWS=tile.rows,
            COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _block_spread(self, i: int) -> None:
        block, jobs, rows = self._chain.blocks[i], len(self._buffers.theta), 16
        windows = self._width * block.pooled[0] * block.pooled[1]
        conv_kernels.block_spread[(triton.cdiv(windows, rows), jobs)](
            delta=self._delta[i + 1], winner=self._winner[i], out=self._spread[i], HEIGHT=block.height,
            BREADTH=block.width, OUT=block.fan_out, SIZE=block.size, WIDTH=self._width, WINDOWS=rows,
            COLUMNS=triton.next_power_of_2(block.fan_out), num_warps=4,
        )  # fmt: skip

    def _block_delta(self, i: int) -> None:
        block, below, jobs = self._chain.blocks[i], self._chain.blocks[i - 1], len(self._buffers.theta)
        tile = self._block_tile("delta", block.fan_in)
        conv_kernels.block_delta[(triton.cdiv(self._width * block.height * block.width, tile.rows), jobs)](
            weights=self._weights, below=self._active[i], winner=self._winner[i - 1], delta=self._spread[i],
            out=self._spread[i - 1], **self._shape(block), LENGTH=self._chain.length, OFFSET=block.offset,
            HEIGHT_BELOW=below.height, BREADTH_BELOW=below.width, SIZE_BELOW=below.size, POSITIONS=tile.rows,
            COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _block_slope(self, i: int, ahead: int) -> None:
        block, parts = self._chain.blocks[i], self._parts[i]
        tile = self._block_tile("slope", block.fan_out)
        depth = _depth(block, tile)
        conv_kernels.block_slope[(triton.cdiv(block.taps, depth) + 1, parts, len(self._buffers.theta))](
            source=self._active[i], delta=self._spread[i], slope=self._slope[i],
            **self._feed(ahead) | self._shape(block) | {"PRECISION": _SLOPES[self._precision]}, FIRST=i == 0,
            PARTS=parts, POSITIONS=tile.rows, COLUMNS=tile.columns, DEPTH=depth, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip

    def _block_update(self, i: int, ahead: int) -> None:
        block, columns = self._chain.blocks[i], 1024
        conv_kernels.block_update[(triton.cdiv(block.parameters, columns), len(self._buffers.theta))](
            **self._update(), weights=self._weights, slope=self._slope[i], step=self._buffers.at, AHEAD=ahead,
            OFFSET=block.offset, COUNT=block.parameters, PARTS=self._parts[i], COPIED=self._copied, COLUMNS=columns,
            num_warps=4,
        )  # fmt: skip


def _room(device: torch.device) -> int:
    """Bytes of shared memory that a program may use for the operands of its products."""
    if device.type != "cuda":
        return 2**20
    index = torch.cuda.current_device() if device.index is None else device.index
    found = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return int(0.8 * found)  # the rest is the compiler's


def _layer_bytes(kernel: str, tile: Tile, rows: int, classes: int) -> int:
    """What a layer's operands take of shared memory, in float32."""
    if kernel.startswith("head"):
        return 4 * tile.stages * (rows + classes) * tile.columns
    kept = rows * tile.columns if kernel == "backward" else 0
    return 4 * (tile.stages * (rows + tile.columns) * tile.depth + kept)


def _block_values(kernel: str, tile: Tile) -> int:
    """How many values a block's operands are."""
    rows = 4 * tile.rows if kernel == "forward" else tile.rows  # of windows, four positions each
    return tile.stages * (rows * tile.depth + (rows if kernel == "slope" else tile.depth) * tile.columns)


def _fitted(tile: Tile, needs: Callable[[Tile], int], room: int, *, narrower: bool = True) -> Tile:
    """The tile made narrower, then with fewer stages, until there is room: chips differ in shared memory."""
    while needs(tile) > room and narrower and tile.columns > 16:
        tile = tile._replace(columns=tile.columns // 2)
    while needs(tile) > room and tile.stages > 1:
        tile = tile._replace(stages=tile.stages - 1)
    return tile


def _depth(block: Block, tile: Tile) -> int:
    return min(tile.depth, max(16, int(triton.next_power_of_2(block.taps))))
