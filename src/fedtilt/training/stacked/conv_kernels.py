"""The conv blocks of a `SequentialNet` in Triton: convolution, ReLU and 2×2 max-pooling, forward and backward.

Images are (height, width, channels), padded with zeros, so that a patch is read without checks for the image's edge.

    conv_forward        the maximum of each 2×2 window of relu(h W + b), and its index
    unpool              the gradient by a window, at its maximum: the gradient by the convolution's output
    conv_input_grad     the gradient by a block's input, unpooled in the block below
    conv_weight_grad    the gradient by a block's parameters, independent of the one by its input
    conv_update         the optimiser's step of a block's parameters
"""

import triton
import triton.language as tl

from fedtilt.training.stacked.linear_kernels import dot, sample_rows, update_rates, updated


@triton.jit
def _window_positions(m, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr):
    """The sample of position m, and the pixel of its padded image at which its patch starts.

    Positions are ordered by window, the four of a window next to each other.
    """
    POOLED_WIDTH: tl.constexpr = WIDTH // 2
    POOLED_HEIGHT: tl.constexpr = HEIGHT // 2
    window = m // 4
    y = 2 * ((window // POOLED_WIDTH) % POOLED_HEIGHT) + (m % 4) // 2
    x = 2 * (window % POOLED_WIDTH) + m % 2
    return window // (POOLED_HEIGHT * POOLED_WIDTH), y * (WIDTH + KERNEL - 1) + x


@triton.jit
def _patch_offset(k, WIDTH: tl.constexpr, IN: tl.constexpr, KERNEL: tl.constexpr):
    """The offset of the k-th value of a patch from its start."""
    pixel = k // IN
    return ((pixel // KERNEL) * (WIDTH + KERNEL - 1) + pixel % KERNEL) * IN + k % IN


@triton.jit
def _row_positions(m, job, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr, BATCH: tl.constexpr):
    """The sample of position m, where its patch starts in the padded image, and its pixel among those of all images.

    Positions are ordered by row.
    """
    b = m // (HEIGHT * WIDTH)
    patch_start = ((m // WIDTH) % HEIGHT) * (WIDTH + KERNEL - 1) + m % WIDTH
    image = (job.to(tl.int64) * BATCH + b) * ((HEIGHT + KERNEL - 1) * (WIDTH + KERNEL - 1))
    return b, patch_start, image + patch_start + (WIDTH + KERNEL) * (KERNEL // 2)


@triton.jit
def _store_unpooled(
    out, d, window_argmax, image, y, x, n, valid, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    KERNEL: tl.constexpr,
):  # fmt: skip
    """Store the gradient by window (y, x) at the position of its maximum, and zeros at the other three."""
    for j in tl.static_range(4):
        row = image * (HEIGHT + KERNEL - 1) + 2 * y + j // 2 + KERNEL // 2
        index = row * (WIDTH + KERNEL - 1) + 2 * x + j % 2 + KERNEL // 2
        tl.store(out + index[:, None] * OUT + n[None, :], tl.where(window_argmax == j, d, 0.0), mask=valid)


@triton.jit(do_not_specialize=["STEP_OFFSET"])
def conv_forward(
    theta, weights, source, out, argmax, client_index, batch_indices, first_step, STEP_OFFSET, CLIENTS, SAMPLES,
    ROW_LENGTH: tl.constexpr, OFFSET: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, KERNEL: tl.constexpr, PADDING: tl.constexpr, BATCH: tl.constexpr, FIRST: tl.constexpr,
    PRECISION: tl.constexpr, WINDOWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A convolution, ReLU and max-pooling: the rows of the product are positions, its columns channels."""
    job = tl.program_id(1)
    step = tl.load(first_step) + STEP_OFFSET
    PATCH: tl.constexpr = KERNEL * KERNEL * IN
    PADDED_SIZE: tl.constexpr = (HEIGHT + KERNEL - 1) * (WIDTH + KERNEL - 1) * IN
    POOLED_HEIGHT: tl.constexpr = HEIGHT // 2
    POOLED_WIDTH: tl.constexpr = WIDTH // 2
    b, patch_start = _window_positions(
        tl.program_id(0) * 4 * WINDOWS + tl.arange(0, 4 * WINDOWS), HEIGHT, WIDTH, KERNEL
    )
    row = (
        sample_rows(b, job, step, client_index, batch_indices, CLIENTS, SAMPLES, BATCH, PADDED_SIZE, FIRST)
        + patch_start * IN
    )
    n = tl.arange(0, COLUMNS)
    parameters = job.to(tl.int64) * ROW_LENGTH + OFFSET
    sums = tl.zeros((4 * WINDOWS, COLUMNS), tl.float32)
    for start in range(0, PATCH, DEPTH):
        k = start + tl.arange(0, DEPTH)
        h = tl.load(
            source + row[:, None] + _patch_offset(k, WIDTH, IN, KERNEL)[None, :],
            mask=(b < BATCH)[:, None] & (k < PATCH)[None, :], other=0.0,
        )  # fmt: skip
        weight = tl.load(
            weights + parameters + k[:, None] * OUT + n[None, :],
            mask=(k < PATCH)[:, None] & (n < OUT)[None, :],
            other=0.0,
        )
        sums = dot(h, weight, sums, PRECISION)
    maximum, index_of_max = tl.max(tl.reshape(sums, (WINDOWS, 4, COLUMNS)), axis=1, return_indices=True)
    maximum += tl.load(theta + parameters + PATCH * OUT + n, mask=n < OUT, other=0.0)[None, :]
    w = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS)
    valid = (w < BATCH * POOLED_HEIGHT * POOLED_WIDTH)[:, None] & (n < OUT)[None, :]
    image = job.to(tl.int64) * BATCH + w // (POOLED_HEIGHT * POOLED_WIDTH)
    y, x = (w // POOLED_WIDTH) % POOLED_HEIGHT + PADDING, w % POOLED_WIDTH + PADDING
    padded_index = (image * (POOLED_HEIGHT + 2 * PADDING) + y) * (POOLED_WIDTH + 2 * PADDING) + x
    tl.store(out + padded_index[:, None] * OUT + n[None, :], tl.maximum(maximum, 0.0), mask=valid)
    pooled_index = job.to(tl.int64) * (BATCH * POOLED_HEIGHT * POOLED_WIDTH) + w
    tl.store(argmax + pooled_index[:, None] * OUT + n[None, :], index_of_max.to(tl.int8), mask=valid)


@triton.jit
def unpool(
    delta, argmax, out, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, KERNEL: tl.constexpr,
    BATCH: tl.constexpr, WINDOWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Unpool the gradient by the output of the last block, which a linear layer has computed."""
    job = tl.program_id(1)
    POOLED_HEIGHT: tl.constexpr = HEIGHT // 2
    POOLED_WIDTH: tl.constexpr = WIDTH // 2
    w, n = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS), tl.arange(0, COLUMNS)
    valid = (w < BATCH * POOLED_HEIGHT * POOLED_WIDTH)[:, None] & (n < OUT)[None, :]
    index = (job.to(tl.int64) * (BATCH * POOLED_HEIGHT * POOLED_WIDTH) + w)[:, None] * OUT + n[None, :]
    d = tl.load(delta + index, mask=valid, other=0.0)
    window_argmax = tl.load(argmax + index, mask=valid, other=0)
    image = job.to(tl.int64) * BATCH + w // (POOLED_HEIGHT * POOLED_WIDTH)
    y, x = (w // POOLED_WIDTH) % POOLED_HEIGHT, w % POOLED_WIDTH
    _store_unpooled(out, d, window_argmax, image, y, x, n, valid, HEIGHT, WIDTH, OUT, KERNEL)


@triton.jit
def conv_input_grad(
    weights, below, argmax, delta, out, ROW_LENGTH: tl.constexpr, OFFSET: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, KERNEL: tl.constexpr, BATCH: tl.constexpr,
    HEIGHT_BELOW: tl.constexpr, WIDTH_BELOW: tl.constexpr, KERNEL_BELOW: tl.constexpr, PRECISION: tl.constexpr,
    POSITIONS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The gradient by a block's input, unpooled in the block below: rows are positions, columns channels."""
    job = tl.program_id(1)
    PARTS: tl.constexpr = (OUT + DEPTH - 1) // DEPTH  # of the products of one kernel pixel
    m, n = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS), tl.arange(0, COLUMNS)
    b = m // (HEIGHT * WIDTH)
    y, x = (m // WIDTH) % HEIGHT, m % WIDTH
    image = job.to(tl.int64) * BATCH + b
    parameters = job.to(tl.int64) * ROW_LENGTH + OFFSET
    # the output that kernel pixel 0 contributes to
    last = (image * (HEIGHT + KERNEL - 1) + y + KERNEL - 1) * (WIDTH + KERNEL - 1) + x + KERNEL - 1
    sums = tl.zeros((POSITIONS, COLUMNS), tl.float32)
    for chunk in range(0, KERNEL * KERNEL * PARTS):
        pixel = chunk // PARTS
        o = (chunk % PARTS) * DEPTH + tl.arange(0, DEPTH)
        index = last - (pixel // KERNEL) * (WIDTH + KERNEL - 1) - pixel % KERNEL
        d = tl.load(
            delta + index[:, None] * OUT + o[None, :], mask=(b < BATCH)[:, None] & (o < OUT)[None, :], other=0.0
        )
        weight = tl.load(
            weights + parameters + (pixel * IN + n[:, None]) * OUT + o[None, :],
            mask=(n < IN)[:, None] & (o < OUT)[None, :], other=0.0,
        )  # fmt: skip
        sums = dot(d, tl.trans(weight), sums, PRECISION)
    valid = (b < BATCH)[:, None] & (n < IN)[None, :]
    padded_index = (image * (HEIGHT + KERNEL - 1) + y + KERNEL // 2) * (WIDTH + KERNEL - 1) + x + KERNEL // 2
    h = tl.load(below + padded_index[:, None] * IN + n[None, :], mask=valid, other=0.0)
    pooled_index = job.to(tl.int64) * (BATCH * HEIGHT * WIDTH) + m
    window_argmax = tl.load(argmax + pooled_index[:, None] * IN + n[None, :], mask=valid, other=0)
    d = tl.where(h > 0, sums, 0.0)
    _store_unpooled(out, d, window_argmax, image, y, x, n, valid, HEIGHT_BELOW, WIDTH_BELOW, IN, KERNEL_BELOW)


@triton.jit(do_not_specialize=["STEP_OFFSET"])
def conv_weight_grad(
    source, delta, grad, client_index, batch_indices, first_step, STEP_OFFSET, CLIENTS, SAMPLES, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, KERNEL: tl.constexpr, BATCH: tl.constexpr,
    FIRST: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, POSITIONS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """The gradient by some rows of a block's weight, or by its bias, over a part of the positions.

    The last program computes the bias. `conv_update` adds the parts.
    """
    job = tl.program_id(2)
    part = tl.program_id(1)
    step = tl.load(first_step) + STEP_OFFSET
    PATCH: tl.constexpr = KERNEL * KERNEL * IN
    PADDED_SIZE: tl.constexpr = (HEIGHT + KERNEL - 1) * (WIDTH + KERNEL - 1) * IN
    CHUNKS: tl.constexpr = (BATCH * HEIGHT * WIDTH + PARTS * POSITIONS - 1) // (PARTS * POSITIONS)
    k, n = tl.program_id(0) * DEPTH + tl.arange(0, DEPTH), tl.arange(0, COLUMNS)
    part_grad = grad + (part * tl.num_programs(2) + job).to(tl.int64) * ((PATCH + 1) * OUT)
    if tl.program_id(0) < tl.num_programs(0) - 1:
        patch_offset = _patch_offset(k, WIDTH, IN, KERNEL)
        sums = tl.zeros((DEPTH, COLUMNS), tl.float32)
        for chunk in range(0, CHUNKS):
            m = (part * CHUNKS + chunk) * POSITIONS + tl.arange(0, POSITIONS)
            b, patch_start, index = _row_positions(m, job, HEIGHT, WIDTH, KERNEL, BATCH)
            row = (
                sample_rows(b, job, step, client_index, batch_indices, CLIENTS, SAMPLES, BATCH, PADDED_SIZE, FIRST)
                + patch_start * IN
            )
            h = tl.load(
                source + row[:, None] + patch_offset[None, :],
                mask=(b < BATCH)[:, None] & (k < PATCH)[None, :],
                other=0.0,
            )
            d = tl.load(
                delta + index[:, None] * OUT + n[None, :], mask=(b < BATCH)[:, None] & (n < OUT)[None, :], other=0.0
            )
            sums = dot(tl.trans(h), d, sums, PRECISION)
        tl.store(part_grad + k[:, None] * OUT + n[None, :], sums, mask=(k < PATCH)[:, None] & (n < OUT)[None, :])
    else:
        bias = tl.zeros((COLUMNS,), tl.float32)
        for chunk in range(0, CHUNKS):
            m = (part * CHUNKS + chunk) * POSITIONS + tl.arange(0, POSITIONS)
            b, _, index = _row_positions(m, job, HEIGHT, WIDTH, KERNEL, BATCH)
            d = tl.load(
                delta + index[:, None] * OUT + n[None, :], mask=(b < BATCH)[:, None] & (n < OUT)[None, :], other=0.0
            )
            bias += tl.sum(d.to(tl.float32), axis=0)
        tl.store(part_grad + PATCH * OUT + n, bias, mask=n < OUT)


@triton.jit(do_not_specialize=["STEP_OFFSET"])
def conv_update(
    theta, state, weights, anchor, anchor_index, lr, prox, steps, momentum, weight_decay, STATE_STRIDE, grad,
    first_step, STEP_OFFSET, RULE: tl.constexpr, ROW_LENGTH: tl.constexpr, OFFSET: tl.constexpr, COUNT: tl.constexpr,
    PARTS: tl.constexpr, HAS_COPY: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the parts of a block's gradient; update its weight, its bias and their copy in the storage type."""
    job = tl.program_id(1)
    step = tl.load(first_step) + STEP_OFFSET
    rate, strength = update_rates(job, step, lr, prox, steps)
    i = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(grad + (part * tl.num_programs(1) + job).to(tl.int64) * COUNT + i, mask=i < COUNT, other=0.0)
    parameters = job.to(tl.int64) * ROW_LENGTH + OFFSET + i
    anchor_row = anchor + tl.load(anchor_index + job) * ROW_LENGTH + OFFSET + i
    old = tl.load(theta + parameters, mask=i < COUNT, other=0.0)
    anchor_weight = tl.load(anchor_row, mask=i < COUNT * tl.where(strength > 0, 1, 0), other=0.0)
    new = updated(
        old, total, anchor_weight, state + parameters, i < COUNT, rate, strength, step, momentum, weight_decay,
        STATE_STRIDE, RULE,
    )  # fmt: skip
    tl.store(theta + parameters, new, mask=i < COUNT)
    if HAS_COPY:
        tl.store(weights + parameters, new, mask=i < COUNT)
