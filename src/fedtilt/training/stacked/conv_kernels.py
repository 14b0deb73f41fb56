"""The blocks of a `Chain` in Triton: convolution, ReLU and 2×2 max-pooling, forward and backward.

Images are (height, width, channels) with a frame of zeros as wide as the convolution reaches, so that a patch is read
without asking where the image ends.

    forward             the largest of each 2×2 window of relu(h W + b), and which of the four it was
    spread              the slope by a window, put where its winner was: the slope by the convolution
    delta, slope        the slopes by a block's input and by its parameters, which do not wait for each other
    update              W ← kept · W + (1 − kept) · anchor − lr · slope
"""

import triton
import triton.language as tl

from fedtilt.training.stacked.linear_kernels import dot, rates, rows


@triton.jit
def _corners(m, HEIGHT: tl.constexpr, BREADTH: tl.constexpr, SIZE: tl.constexpr):
    """Sample of position m, and at which pixel of that sample's framed image its patch begins.

    Positions are counted window by window, the four of a window next to each other.
    """
    ACROSS: tl.constexpr = BREADTH // 2
    DOWN: tl.constexpr = HEIGHT // 2
    window = m // 4
    y = 2 * ((window // ACROSS) % DOWN) + (m % 4) // 2
    x = 2 * (window % ACROSS) + m % 2
    return window // (DOWN * ACROSS), y * (BREADTH + SIZE - 1) + x


@triton.jit
def _reach(k, BREADTH: tl.constexpr, IN: tl.constexpr, SIZE: tl.constexpr):
    """Where the k-th value of a patch stands, counted from its beginning."""
    tap = k // IN
    return ((tap // SIZE) * (BREADTH + SIZE - 1) + tap % SIZE) * IN + k % IN


@triton.jit
def _positions(m, job, HEIGHT: tl.constexpr, BREADTH: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Sample of position m, at which pixel of its framed image its patch begins, and the position's own in all images.

    Positions are counted row by row.
    """
    b = m // (HEIGHT * BREADTH)
    begins = ((m // BREADTH) % HEIGHT) * (BREADTH + SIZE - 1) + m % BREADTH
    image = (job.to(tl.int64) * WIDTH + b) * ((HEIGHT + SIZE - 1) * (BREADTH + SIZE - 1))
    return b, begins, image + begins + (BREADTH + SIZE) * (SIZE // 2)


@triton.jit
def _spread(
    out, d, won, image, y, x, n, held, HEIGHT: tl.constexpr, BREADTH: tl.constexpr, OUT: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Store the slope by window (y, x) at the one of its four positions that won, and zeros at the others."""
    for j in tl.static_range(4):
        row = image * (HEIGHT + SIZE - 1) + 2 * y + j // 2 + SIZE // 2
        place = row * (BREADTH + SIZE - 1) + 2 * x + j % 2 + SIZE // 2
        tl.store(out + place[:, None] * OUT + n[None, :], tl.where(won == j, d, 0.0), mask=held)


@triton.jit(do_not_specialize=["AHEAD"])
def block_forward(
    theta, weights, source, out, winner, client, picks, step, AHEAD, CLIENTS, SAMPLES, LENGTH: tl.constexpr,
    OFFSET: tl.constexpr, HEIGHT: tl.constexpr, BREADTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    SIZE: tl.constexpr, FRAME: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
    WINDOWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Rows of the product are positions, its columns channels."""
    job = tl.program_id(1)
    at = tl.load(step) + AHEAD
    TAPS: tl.constexpr = SIZE * SIZE * IN
    FRAMED: tl.constexpr = (HEIGHT + SIZE - 1) * (BREADTH + SIZE - 1) * IN
    DOWN: tl.constexpr = HEIGHT // 2
    ACROSS: tl.constexpr = BREADTH // 2
    b, begins = _corners(tl.program_id(0) * 4 * WINDOWS + tl.arange(0, 4 * WINDOWS), HEIGHT, BREADTH, SIZE)
    row = rows(b, job, at, client, picks, CLIENTS, SAMPLES, WIDTH, FRAMED, FIRST) + begins * IN
    n = tl.arange(0, COLUMNS)
    own = job.to(tl.int64) * LENGTH + OFFSET
    sums = tl.zeros((4 * WINDOWS, COLUMNS), tl.float32)
    for begin in range(0, TAPS, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        h = tl.load(
            source + row[:, None] + _reach(k, BREADTH, IN, SIZE)[None, :],
            mask=(b < WIDTH)[:, None] & (k < TAPS)[None, :], other=0.0,
        )  # fmt: skip
        weight = tl.load(
            weights + own + k[:, None] * OUT + n[None, :], mask=(k < TAPS)[:, None] & (n < OUT)[None, :], other=0.0
        )
        sums = dot(h, weight, sums, PRECISION)
    best, which = tl.max(tl.reshape(sums, (WINDOWS, 4, COLUMNS)), axis=1, return_indices=True)
    best += tl.load(theta + own + TAPS * OUT + n, mask=n < OUT, other=0.0)[None, :]
    w = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS)
    held = (w < WIDTH * DOWN * ACROSS)[:, None] & (n < OUT)[None, :]
    image = job.to(tl.int64) * WIDTH + w // (DOWN * ACROSS)
    y, x = (w // ACROSS) % DOWN + FRAME, w % ACROSS + FRAME
    framed = (image * (DOWN + 2 * FRAME) + y) * (ACROSS + 2 * FRAME) + x
    tl.store(out + framed[:, None] * OUT + n[None, :], tl.maximum(best, 0.0), mask=held)
    plain = job.to(tl.int64) * (WIDTH * DOWN * ACROSS) + w
    tl.store(winner + plain[:, None] * OUT + n[None, :], which.to(tl.int8), mask=held)


@triton.jit
def block_spread(
    delta, winner, out, HEIGHT: tl.constexpr, BREADTH: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr,
    WIDTH: tl.constexpr, WINDOWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Spread the slope that a layer has left by the output of the last block."""
    job = tl.program_id(1)
    DOWN: tl.constexpr = HEIGHT // 2
    ACROSS: tl.constexpr = BREADTH // 2
    w, n = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS), tl.arange(0, COLUMNS)
    held = (w < WIDTH * DOWN * ACROSS)[:, None] & (n < OUT)[None, :]
    place = (job.to(tl.int64) * (WIDTH * DOWN * ACROSS) + w)[:, None] * OUT + n[None, :]
    d = tl.load(delta + place, mask=held, other=0.0)
    won = tl.load(winner + place, mask=held, other=0)
    image = job.to(tl.int64) * WIDTH + w // (DOWN * ACROSS)
    _spread(out, d, won, image, (w // ACROSS) % DOWN, w % ACROSS, n, held, HEIGHT, BREADTH, OUT, SIZE)


@triton.jit
def block_delta(
    weights, below, winner, delta, out, LENGTH: tl.constexpr, OFFSET: tl.constexpr, HEIGHT: tl.constexpr,
    BREADTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    HEIGHT_BELOW: tl.constexpr, BREADTH_BELOW: tl.constexpr, SIZE_BELOW: tl.constexpr, PRECISION: tl.constexpr,
    POSITIONS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The slope by a block's input, spread over the convolution below: rows are positions, columns channels."""
    job = tl.program_id(1)
    PARTS: tl.constexpr = (OUT + DEPTH - 1) // DEPTH  # of a tap's products
    m, n = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS), tl.arange(0, COLUMNS)
    b = m // (HEIGHT * BREADTH)
    y, x = (m // BREADTH) % HEIGHT, m % BREADTH
    image = job.to(tl.int64) * WIDTH + b
    own = job.to(tl.int64) * LENGTH + OFFSET
    last = (image * (HEIGHT + SIZE - 1) + y + SIZE - 1) * (BREADTH + SIZE - 1) + x + SIZE - 1  # its 0-th tap's output
    sums = tl.zeros((POSITIONS, COLUMNS), tl.float32)
    for turn in range(0, SIZE * SIZE * PARTS):
        tap = turn // PARTS
        o = (turn % PARTS) * DEPTH + tl.arange(0, DEPTH)
        place = last - (tap // SIZE) * (BREADTH + SIZE - 1) - tap % SIZE
        d = tl.load(
            delta + place[:, None] * OUT + o[None, :], mask=(b < WIDTH)[:, None] & (o < OUT)[None, :], other=0.0
        )
        weight = tl.load(
            weights + own + (tap * IN + n[:, None]) * OUT + o[None, :], mask=(n < IN)[:, None] & (o < OUT)[None, :],
            other=0.0,
        )  # fmt: skip
        sums = dot(d, tl.trans(weight), sums, PRECISION)
    held = (b < WIDTH)[:, None] & (n < IN)[None, :]
    framed = (image * (HEIGHT + SIZE - 1) + y + SIZE // 2) * (BREADTH + SIZE - 1) + x + SIZE // 2
    h = tl.load(below + framed[:, None] * IN + n[None, :], mask=held, other=0.0)
    plain = job.to(tl.int64) * (WIDTH * HEIGHT * BREADTH) + m
    won = tl.load(winner + plain[:, None] * IN + n[None, :], mask=held, other=0)
    d = tl.where(h > 0, sums, 0.0)
    _spread(out, d, won, image, y, x, n, held, HEIGHT_BELOW, BREADTH_BELOW, IN, SIZE_BELOW)


@triton.jit(do_not_specialize=["AHEAD"])
def block_slope(
    source, delta, slope, client, picks, step, AHEAD, CLIENTS, SAMPLES, HEIGHT: tl.constexpr, BREADTH: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, POSITIONS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The slope by some rows of a block's weight, or by its bias, over a part of the positions.

    The last program makes the bias. `block_update` adds the parts.
    """
    job = tl.program_id(2)
    part = tl.program_id(1)
    at = tl.load(step) + AHEAD
    TAPS: tl.constexpr = SIZE * SIZE * IN
    FRAMED: tl.constexpr = (HEIGHT + SIZE - 1) * (BREADTH + SIZE - 1) * IN
    TURNS: tl.constexpr = (WIDTH * HEIGHT * BREADTH + PARTS * POSITIONS - 1) // (PARTS * POSITIONS)
    k, n = tl.program_id(0) * DEPTH + tl.arange(0, DEPTH), tl.arange(0, COLUMNS)
    own = slope + (part * tl.num_programs(2) + job).to(tl.int64) * ((TAPS + 1) * OUT)
    if tl.program_id(0) < tl.num_programs(0) - 1:
        reach = _reach(k, BREADTH, IN, SIZE)
        sums = tl.zeros((DEPTH, COLUMNS), tl.float32)
        for turn in range(0, TURNS):
            m = (part * TURNS + turn) * POSITIONS + tl.arange(0, POSITIONS)
            b, begins, place = _positions(m, job, HEIGHT, BREADTH, SIZE, WIDTH)
            row = rows(b, job, at, client, picks, CLIENTS, SAMPLES, WIDTH, FRAMED, FIRST) + begins * IN
            h = tl.load(
                source + row[:, None] + reach[None, :], mask=(b < WIDTH)[:, None] & (k < TAPS)[None, :], other=0.0
            )
            d = tl.load(
                delta + place[:, None] * OUT + n[None, :], mask=(b < WIDTH)[:, None] & (n < OUT)[None, :], other=0.0
            )
            sums = dot(tl.trans(h), d, sums, PRECISION)
        tl.store(own + k[:, None] * OUT + n[None, :], sums, mask=(k < TAPS)[:, None] & (n < OUT)[None, :])
    else:
        bias = tl.zeros((COLUMNS,), tl.float32)
        for turn in range(0, TURNS):
            m = (part * TURNS + turn) * POSITIONS + tl.arange(0, POSITIONS)
            b, _, place = _positions(m, job, HEIGHT, BREADTH, SIZE, WIDTH)
            d = tl.load(
                delta + place[:, None] * OUT + n[None, :], mask=(b < WIDTH)[:, None] & (n < OUT)[None, :], other=0.0
            )
            bias += tl.sum(d.to(tl.float32), axis=0)
        tl.store(own + TAPS * OUT + n, bias, mask=n < OUT)


@triton.jit(do_not_specialize=["AHEAD"])
def block_update(
    theta, weights, anchor, anchor_of, lr, prox, length, slope, step, AHEAD, LENGTH: tl.constexpr,
    OFFSET: tl.constexpr, COUNT: tl.constexpr, PARTS: tl.constexpr, COPIED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the parts of a block's slope, and update its weight and bias, and the copy that products are made of."""
    job = tl.program_id(1)
    at = tl.load(step) + AHEAD
    rate, kept, pulled = rates(job, at, lr, prox, length)
    i = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(slope + (part * tl.num_programs(1) + job).to(tl.int64) * COUNT + i, mask=i < COUNT, other=0.0)
    own = job.to(tl.int64) * LENGTH + OFFSET + i
    goal = anchor + tl.load(anchor_of + job) * LENGTH + OFFSET + i
    now = tl.load(theta + own, mask=i < COUNT, other=0.0)
    towards = tl.load(goal, mask=i < COUNT * pulled, other=0.0)
    new = kept * now + (1 - kept) * towards - rate * total
    tl.store(theta + own, new, mask=i < COUNT)
    if COPIED:
        tl.store(weights + own, new, mask=i < COUNT)
