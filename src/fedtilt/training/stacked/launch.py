"""Launch the kernels of a training step of a `SequentialNet`: their buffers and their tile sizes."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from fedtilt.compiler import use_private_caches
from fedtilt.optimizers import Optimizer
from fedtilt.training.sequential import ConvBlock, SequentialNet
from fedtilt.training.stacked import conv_kernels, linear_kernels
from fedtilt.training.stacked.buffers import Buffers, Rows

MAX_BATCH_SIZE, MAX_CLASSES, MAX_CHANNELS = 64, 128, 128  # one program processes all of them at once
DOT_PRECISIONS = {"float32": "tf32x3", "tf32": "tf32", "bfloat16": "bf16"}  # of the operands; sums are float32
# Gradients by a convolution's weights sum over positions, along which tensor cores take 16-bit operands only: three
# products of bfloat16 halves are faster there than one of TF32, and more accurate.
_WEIGHT_GRAD_PRECISIONS = DOT_PRECISIONS | {"tf32": "bf16x3"}


def storage_dtype(precision: str) -> torch.dtype:
    """The type of stored samples, images and the copy of the weights: no more bits than the products use."""
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


class Tile(NamedTuple):
    """The tile of a kernel: rows (windows or positions), columns and depth of a product, warps and stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


# The fastest tiles of those tried on an H200.
_FEW_JOBS = 64  # up to this many jobs, only small tiles give enough programs to fill the GPU
_LINEAR_TILES = {  # for few jobs, for many jobs
    "forward": (Tile(0, 16, 64, 2, 4), Tile(0, 64, 32, 4, 4)),
    "backward": (Tile(0, 32, 64, 4, 2), Tile(0, 128, 32, 4, 3)),
    "head": (Tile(0, 256, 0, 4, 2),) * 2,
}
_CONV_TILES = {  # for up to 32, up to 64 and up to 128 channels
    ("forward", "float32"): (Tile(16, 32, 64, 4, 2), Tile(32, 64, 32, 8, 3), Tile(32, 128, 32, 8, 3)),
    ("forward", "tf32"): (Tile(32, 32, 64, 4, 2), Tile(64, 64, 32, 8, 3), Tile(64, 128, 32, 8, 3)),
    ("forward", "bfloat16"): (Tile(32, 32, 64, 4, 2), Tile(64, 64, 32, 4, 4), Tile(32, 128, 64, 4, 3)),
    ("input_grad", "float32"): (Tile(64, 32, 64, 4, 3), Tile(64, 64, 32, 4, 3), Tile(64, 128, 32, 8, 3)),
    ("input_grad", "tf32"): (Tile(64, 32, 64, 4, 3), Tile(64, 64, 32, 8, 3), Tile(64, 128, 32, 8, 3)),
    ("input_grad", "bfloat16"): (Tile(64, 32, 64, 4, 3), Tile(64, 64, 32, 4, 5), Tile(64, 128, 32, 4, 4)),
    ("weight_grad", "float32"): (Tile(128, 32, 64, 4, 3), Tile(64, 64, 32, 4, 3), Tile(64, 128, 32, 4, 3)),
    ("weight_grad", "tf32"): (Tile(128, 32, 64, 4, 2), Tile(64, 64, 64, 4, 2), Tile(64, 128, 64, 4, 2)),
    ("weight_grad", "bfloat16"): (Tile(256, 32, 64, 4, 2), Tile(128, 64, 64, 4, 2), Tile(64, 128, 128, 4, 2)),
}


class KernelStep:
    """One training step of all jobs over these buffers, as kernel launches."""

    def __init__(self, net: SequentialNet, optimizer: Optimizer, rows: Rows, buffers: Buffers, precision: str) -> None:
        use_private_caches()
        self._net, self._optimizer, self._precision = net, optimizer, precision
        self._rows, self._buffers, self._jobs = rows, buffers, len(rows.theta)
        jobs, device = self._jobs, rows.theta.device
        dtype, self._shared_memory = storage_dtype(precision), _shared_memory(device)
        self._second_stream = torch.cuda.Stream(device) if net.blocks and device.type == "cuda" else None
        self._batch_size = buffers.batch_indices.shape[2]
        self._batch_rows = max(16, triton.next_power_of_2(self._batch_size))
        self._classes = max(16, triton.next_power_of_2(net.layers[-1].out_features))

        def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(jobs, self._batch_size, *size, dtype=dtype, device=device)

        def padded(height: int, width: int, channels: int) -> Tensor:
            # the padding stays 0
            return torch.zeros(jobs, self._batch_size, height, width, channels, dtype=dtype, device=device)

        # the outputs of every block and layer but the last, and the gradients by them
        images = [padded(*net.padded_shape(i + 1)) for i in range(len(net.blocks))]
        vectors = [empty(layer.out_features) for layer in net.layers[:-1]]
        self._activations = [buffers.x, *images, *vectors]
        last = [empty(*block.pooled_size, block.out_channels) for block in net.blocks[-1:]]
        self._delta = [None, *(None for _ in net.blocks[:-1]), *last, *(torch.empty_like(h) for h in vectors)]
        # of every block: the gradient by its convolution's output, the argmax of each window, and the gradient by its
        # parameters
        self._conv_delta = [
            padded(block.height + block.kernel_size - 1, block.width + block.kernel_size - 1, block.out_channels)
            for block in net.blocks
        ]
        self._argmax = [empty(*block.pooled_size, block.out_channels, dtype=torch.int8) for block in net.blocks]
        self._parts = [self._split_positions(block) for block in net.blocks]
        self._weight_grad = [
            torch.empty(parts, jobs, block.parameter_count, device=device)
            for parts, block in zip(self._parts, net.blocks, strict=True)
        ]
        self._has_copy = bool(net.blocks) and dtype != rows.theta.dtype
        # the parameters of the blocks in the storage type
        self._weights = torch.empty_like(rows.theta, dtype=dtype) if self._has_copy else rows.theta

    def __call__(self, offset: int = 0) -> None:
        """Run step number `first_step + offset`; first_step is on the device."""
        blocks, layers = len(self._net.blocks), len(self._net.layers)
        if offset == 0 and self._has_copy:
            self._weights.copy_(self._rows.theta)
        for i in range(blocks):
            self._conv_forward(i, offset)
        for i in range(layers - 1):
            self._linear_forward(i, offset)
        self._head(offset)
        for i in reversed(range(layers - 1)):
            self._linear_backward(i, offset)
        if blocks:
            self._unpool(blocks - 1)
        for i in reversed(range(blocks)):
            with self._on_second_stream():  # the gradients by weights and by input are independent
                self._conv_weight_grad(i, offset)
            if i > 0:
                self._conv_input_grad(i)
        self._wait_for_second_stream()
        for i in range(blocks):
            self._conv_update(i, offset)

    @contextlib.contextmanager
    def _on_second_stream(self) -> Iterator[None]:
        """Launch the kernels inside on a second stream; `_wait_for_second_stream` waits for them."""
        if self._second_stream is None:
            yield
            return
        self._second_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._second_stream):
            yield

    def _wait_for_second_stream(self) -> None:
        if self._second_stream is not None:
            torch.cuda.current_stream().wait_stream(self._second_stream)

    def _batch_arguments(self, offset: int) -> dict[str, Any]:
        b = self._buffers
        return {
            "client_index": b.client_index, "batch_indices": b.batch_indices, "first_step": b.first_step,
            "STEP_OFFSET": offset, "CLIENTS": b.y.shape[0], "SAMPLES": b.y.shape[1], "BATCH": self._batch_size,
            "PRECISION": DOT_PRECISIONS[self._precision],
        }  # fmt: skip

    def _update_arguments(self) -> dict[str, Any]:
        rows, b = self._rows, self._buffers
        return {
            "theta": rows.theta, "state": rows.optimizer_state, "anchor": rows.anchor, "anchor_index": b.anchor_index,
            "lr": b.lr, "prox": b.prox, "steps": b.steps, "momentum": self._optimizer.momentum,
            "weight_decay": self._optimizer.weight_decay, "STATE_STRIDE": rows.theta.numel(),
            "RULE": _update_rule(self._optimizer), "ROW_LENGTH": self._net.row_length,
        }  # fmt: skip

    def _linear_tile(self, kernel: str) -> Tile:
        tile = _LINEAR_TILES[kernel][self._jobs > _FEW_JOBS]
        if self._batch_rows > 16:  # the tiles were tuned for smaller batches
            tile = tile._replace(warps=max(4, tile.warps))
        return _fit_tile(
            tile, lambda tile: _linear_operand_bytes(kernel, tile, self._batch_rows, self._classes), self._shared_memory
        )

    def _conv_tile(self, kernel: str, channels: int) -> Tile:
        columns = max(16, int(triton.next_power_of_2(channels)))
        tile = _CONV_TILES[kernel, self._precision][(columns > 32) + (columns > 64)]._replace(columns=columns)
        itemsize = storage_dtype(self._precision).itemsize
        return _fit_tile(
            tile, lambda tile: itemsize * _conv_operand_count(kernel, tile), self._shared_memory, narrower=False
        )

    def _split_positions(self, block: ConvBlock) -> int:
        """The number of parts that a block's positions are split into, so that few jobs still fill the GPU."""
        depth = _weight_grad_depth(block, self._conv_tile("weight_grad", block.out_channels))
        programs = self._jobs * -(-block.patch_size // depth)
        max_parts = -(-self._batch_size * block.height * block.width // 256)
        return max(1, min(max_parts, 8, -(-264 // programs)))

    def _linear_forward(self, i: int, offset: int) -> None:
        layer, number = self._net.layers[i], len(self._net.blocks) + i
        tile = self._linear_tile("forward")
        linear_kernels.linear_forward[(triton.cdiv(layer.out_features, tile.columns), self._jobs)](
            theta=self._rows.theta, source=self._activations[number], out=self._activations[number + 1],
            **self._batch_arguments(offset), ROW_LENGTH=self._net.row_length, OFFSET=layer.offset,
            BIAS_OFFSET=layer.bias_offset, IN=layer.in_features, OUT=layer.out_features, FIRST=number == 0,
            ROWS=self._batch_rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _linear_backward(self, i: int, offset: int) -> None:
        layer, number = self._net.layers[i], len(self._net.blocks) + i
        tile = self._linear_tile("backward")
        linear_kernels.linear_backward[(triton.cdiv(layer.in_features, tile.columns), self._jobs)](
            **self._update_arguments(), source=self._activations[number], delta=self._delta[number + 1],
            input_delta=self._delta[number], **self._batch_arguments(offset), OFFSET=layer.offset,
            BIAS_OFFSET=layer.bias_offset, IN=layer.in_features, OUT=layer.out_features, FIRST=number == 0,
            ROWS=self._batch_rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _head(self, offset: int) -> None:
        layer, number = self._net.layers[-1], len(self._net.blocks) + len(self._net.layers) - 1
        b = self._buffers
        tile = self._linear_tile("head")
        linear_kernels.head[(self._jobs,)](
            **self._update_arguments(), tau=b.tilts[1], lam=b.tilts[0], labels=b.y, groups=b.groups[0],
            source=self._activations[number], input_delta=self._delta[number], **self._batch_arguments(offset),
            OFFSET=layer.offset, BIAS_OFFSET=layer.bias_offset, IN=layer.in_features, OUT=layer.out_features,
            FIRST=number == 0, ROWS=self._batch_rows, CLASSES=self._classes, COLUMNS=tile.columns, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip

    def _conv_arguments(self, block: ConvBlock) -> dict[str, Any]:
        return {
            "HEIGHT": block.height, "WIDTH": block.width, "IN": block.in_channels, "OUT": block.out_channels,
            "KERNEL": block.kernel_size, "BATCH": self._batch_size, "PRECISION": DOT_PRECISIONS[self._precision],
        }  # fmt: skip

    def _conv_forward(self, i: int, offset: int) -> None:
        block = self._net.blocks[i]
        tile = self._conv_tile("forward", block.out_channels)
        windows = self._batch_size * block.pooled_size[0] * block.pooled_size[1]
        conv_kernels.conv_forward[(triton.cdiv(windows, tile.rows), self._jobs)](
            theta=self._rows.theta, weights=self._weights, source=self._activations[i], out=self._activations[i + 1],
            argmax=self._argmax[i], **self._batch_arguments(offset) | self._conv_arguments(block),
            ROW_LENGTH=self._net.row_length, OFFSET=block.offset, PADDING=self._net.padding(i + 1), FIRST=i == 0,
            WINDOWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _unpool(self, i: int) -> None:
        block, rows = self._net.blocks[i], 16
        windows = self._batch_size * block.pooled_size[0] * block.pooled_size[1]
        conv_kernels.unpool[(triton.cdiv(windows, rows), self._jobs)](
            delta=self._delta[i + 1], argmax=self._argmax[i], out=self._conv_delta[i], HEIGHT=block.height,
            WIDTH=block.width, OUT=block.out_channels, KERNEL=block.kernel_size, BATCH=self._batch_size, WINDOWS=rows,
            COLUMNS=triton.next_power_of_2(block.out_channels), num_warps=4,
        )  # fmt: skip

    def _conv_input_grad(self, i: int) -> None:
        block, below = self._net.blocks[i], self._net.blocks[i - 1]
        tile = self._conv_tile("input_grad", block.in_channels)
        positions = self._batch_size * block.height * block.width
        conv_kernels.conv_input_grad[(triton.cdiv(positions, tile.rows), self._jobs)](
            weights=self._weights, below=self._activations[i], argmax=self._argmax[i - 1], delta=self._conv_delta[i],
            out=self._conv_delta[i - 1], **self._conv_arguments(block), ROW_LENGTH=self._net.row_length,
            OFFSET=block.offset, HEIGHT_BELOW=below.height, WIDTH_BELOW=below.width, KERNEL_BELOW=below.kernel_size,
            POSITIONS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _conv_weight_grad(self, i: int, offset: int) -> None:
        block, parts = self._net.blocks[i], self._parts[i]
        tile = self._conv_tile("weight_grad", block.out_channels)
        depth = _weight_grad_depth(block, tile)
        precision = {"PRECISION": _WEIGHT_GRAD_PRECISIONS[self._precision]}
        conv_kernels.conv_weight_grad[(triton.cdiv(block.patch_size, depth) + 1, parts, self._jobs)](
            source=self._activations[i], delta=self._conv_delta[i], grad=self._weight_grad[i],
            **self._batch_arguments(offset) | self._conv_arguments(block) | precision, FIRST=i == 0, PARTS=parts,
            POSITIONS=tile.rows, COLUMNS=tile.columns, DEPTH=depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _conv_update(self, i: int, offset: int) -> None:
        block, columns = self._net.blocks[i], 1024
        conv_kernels.conv_update[(triton.cdiv(block.parameter_count, columns), self._jobs)](
            **self._update_arguments(), weights=self._weights, grad=self._weight_grad[i],
            first_step=self._buffers.first_step, STEP_OFFSET=offset, OFFSET=block.offset, COUNT=block.parameter_count,
            PARTS=self._parts[i], HAS_COPY=self._has_copy, COLUMNS=columns, num_warps=4,
        )  # fmt: skip


def supports_optimizer(optimizer: Optimizer) -> bool:
    """Whether the kernels update with it: a norm for clipping would need all gradients before the first update."""
    return optimizer.clip_norm is None


def _update_rule(optimizer: Optimizer) -> str:
    """The branch of `linear_kernels.updated`."""
    if optimizer.is_plain:
        return "plain"
    if optimizer.name == "sgd" and optimizer.momentum:
        return "nesterov" if optimizer.nesterov else "momentum"
    return optimizer.name


def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use for the operands of its products."""
    if device.type != "cuda":
        return 2**20
    index = torch.cuda.current_device() if device.index is None else device.index
    available = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return int(0.8 * available)  # the compiler needs the rest


def _linear_operand_bytes(kernel: str, tile: Tile, rows: int, classes: int) -> int:
    """Bytes of shared memory for the operands of a linear layer, in float32."""
    if kernel == "head":
        return 4 * tile.stages * (rows + classes) * tile.columns
    input_values = rows * tile.columns if kernel == "backward" else 0
    return 4 * (tile.stages * (rows + tile.columns) * tile.depth + input_values)


def _conv_operand_count(kernel: str, tile: Tile) -> int:
    """The number of values of a conv block's operands."""
    rows = 4 * tile.rows if kernel == "forward" else tile.rows  # a window has four positions
    return tile.stages * (rows * tile.depth + (rows if kernel == "weight_grad" else tile.depth) * tile.columns)


def _fit_tile(tile: Tile, size: Callable[[Tile], int], limit: int, *, narrower: bool = True) -> Tile:
    """The tile with fewer columns, then with fewer stages, until it fits: GPUs differ in shared memory."""
    while size(tile) > limit and narrower and tile.columns > 16:
        tile = tile._replace(columns=tile.columns // 2)
    while size(tile) > limit and tile.stages > 1:
        tile = tile._replace(stages=tile.stages - 1)
    return tile


def _weight_grad_depth(block: ConvBlock, tile: Tile) -> int:
    return min(tile.depth, max(16, int(triton.next_power_of_2(block.patch_size))))
