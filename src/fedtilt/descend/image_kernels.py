"""The blocks of a `Chain` in Triton: convolution, ReLU and 2×2 max-pooling, forward and backward.

images              (height, width, channels) with a frame of zeros as wide as the next convolution reaches
forward             the largest of each 2×2 window of relu(h W + b), and which of the four it was
delta, slope        the slopes by a block's input and by its parameters, which do not wait for each other
update              W ← kept · W + (1 − kept) · anchor − lr · slope
"""

import triton
import triton.language as tl

from fedtilt.descend.kernels import dot, rates, rows


@triton.jit
def _corners(m, HEIGHT: tl.constexpr, BREADTH: tl.constexpr, IN: tl.constexpr, SIZE: tl.constexpr):
    """Sample of position m, and where its patch begins in that sample's framed image.

    Positions are counted window by window, the four of a window next to each other.
    """
    ACROSS: tl.constexpr = BREADTH // 2
    DOWN: tl.constexpr = HEIGHT // 2
    window = m // 4
    y = 2 * ((window // ACROSS) % DOWN) + (m % 4) // 2
    x = 2 * (window % ACROSS) + m % 2
    return window // (DOWN * ACROSS), (y * (BREADTH + SIZE - 1) + x) * IN


@triton.jit
def _reach(k, BREADTH: tl.constexpr, IN: tl.constexpr, SIZE: tl.constexpr):
    """Where the k-th value of a patch stands, counted from its beginning."""
    tap = k // IN
    return ((tap // SIZE) * (BREADTH + SIZE - 1) + tap % SIZE) * IN + k % IN


@triton.jit(do_not_specialize=["AHEAD"])
def block_forward(
    theta, source, out, winner, client, picks, step, AHEAD, CLIENTS, SAMPLES, LENGTH: tl.constexpr,
    OFFSET: tl.constexpr, HEIGHT: tl.constexpr, BREADTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    SIZE: tl.constexpr, FRAME: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr,
    WINDOWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Rows of the product are positions, its columns channels."""
    lane = tl.program_id(1)
    at = tl.load(step) + AHEAD
    TAPS: tl.constexpr = SIZE * SIZE * IN
    FRAMED: tl.constexpr = (HEIGHT + SIZE - 1) * (BREADTH + SIZE - 1) * IN
    DOWN: tl.constexpr = HEIGHT // 2
    ACROSS: tl.constexpr = BREADTH // 2
    b, begins = _corners(tl.program_id(0) * 4 * WINDOWS + tl.arange(0, 4 * WINDOWS), HEIGHT, BREADTH, IN, SIZE)
    row = rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH, FRAMED, FIRST) + begins
    n = tl.arange(0, COLUMNS)
    own = theta + lane.to(tl.int64) * LENGTH + OFFSET
    sums = tl.zeros((4 * WINDOWS, COLUMNS), tl.float32)
    for begin in range(0, TAPS, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        h = tl.load(
            source + row[:, None] + _reach(k, BREADTH, IN, SIZE)[None, :],
            mask=(b < WIDTH)[:, None] & (k < TAPS)[None, :], other=0.0,
        )  # fmt: skip
        weight = tl.load(own + k[:, None] * OUT + n[None, :], mask=(k < TAPS)[:, None] & (n < OUT)[None, :], other=0.0)
        sums = dot(h, weight, sums, PRECISION)
    best, which = tl.max(tl.reshape(sums, (WINDOWS, 4, COLUMNS)), axis=1, return_indices=True)
    best += tl.load(own + TAPS * OUT + n, mask=n < OUT, other=0.0)[None, :]
    w = tl.program_id(0) * WINDOWS + tl.arange(0, WINDOWS)
    held = (w < WIDTH * DOWN * ACROSS)[:, None] & (n < OUT)[None, :]
    image = lane.to(tl.int64) * WIDTH + w // (DOWN * ACROSS)
    y, x = (w // ACROSS) % DOWN + FRAME, w % ACROSS + FRAME
    framed = (image * (DOWN + 2 * FRAME) + y) * (ACROSS + 2 * FRAME) + x
    tl.store(out + framed[:, None] * OUT + n[None, :], tl.maximum(best, 0.0), mask=held)
    plain = lane.to(tl.int64) * (WIDTH * DOWN * ACROSS) + w
    tl.store(winner + plain[:, None] * OUT + n[None, :], which.to(tl.int8), mask=held)


@triton.jit
def block_delta(
    theta, below, delta, winner, delta_in, LENGTH: tl.constexpr, OFFSET: tl.constexpr, HEIGHT: tl.constexpr,
    BREADTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr, POSITIONS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The slope by a block's input: rows are positions of the input, columns its channels."""
    lane = tl.program_id(1)
    DOWN: tl.constexpr = HEIGHT // 2
    ACROSS: tl.constexpr = BREADTH // 2
    m = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    b = m // (HEIGHT * BREADTH)
    y, x = (m // BREADTH) % HEIGHT, m % BREADTH
    n = tl.arange(0, COLUMNS)
    own = theta + lane.to(tl.int64) * LENGTH + OFFSET
    windows = (lane * WIDTH + b).to(tl.int64) * (DOWN * ACROSS)
    sums = tl.zeros((POSITIONS, COLUMNS), tl.float32)
    for tap in range(0, SIZE * SIZE):
        # the output position that this input was the tap-th of
        py, px = y + SIZE // 2 - tap // SIZE, x + SIZE // 2 - tap % SIZE
        inside = (py >= 0) & (py < 2 * DOWN) & (px >= 0) & (px < 2 * ACROSS) & (b < WIDTH)
        window = windows + (py // 2) * ACROSS + px // 2
        corner = (py % 2) * 2 + px % 2
        for begin in range(0, OUT, DEPTH):
            o = begin + tl.arange(0, DEPTH)
            held = inside[:, None] & (o < OUT)[None, :]
            place = window[:, None] * OUT + o[None, :]
            won = tl.load(winner + place, mask=held, other=-1)
            d = tl.load(delta + place, mask=held, other=0.0)
            d = tl.where(won.to(tl.int32) == corner[:, None], d, 0.0)
            weight = tl.load(
                own + (tap * IN + n[:, None]) * OUT + o[None, :], mask=(n < IN)[:, None] & (o < OUT)[None, :],
                other=0.0,
            )  # fmt: skip
            sums = dot(d, tl.trans(weight), sums, PRECISION)
    held = (b < WIDTH)[:, None] & (n < IN)[None, :]
    image = lane.to(tl.int64) * WIDTH + b
    framed = (image * (HEIGHT + SIZE - 1) + y + SIZE // 2) * (BREADTH + SIZE - 1) + x + SIZE // 2
    h = tl.load(below + framed[:, None] * IN + n[None, :], mask=held, other=0.0)
    plain = lane.to(tl.int64) * (WIDTH * HEIGHT * BREADTH) + m
    tl.store(delta_in + plain[:, None] * IN + n[None, :], tl.where(h > 0, sums, 0.0), mask=held)


@triton.jit(do_not_specialize=["AHEAD"])
def block_slope(
    source, delta, winner, slope, client, picks, step, AHEAD, CLIENTS, SAMPLES, HEIGHT: tl.constexpr,
    BREADTH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    FIRST: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr, WINDOWS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The slope by a block's weight and bias, a part of the positions at a time: `block_update` adds the parts."""
    lane = tl.program_id(2)
    part = tl.program_id(1)
    at = tl.load(step) + AHEAD
    TAPS: tl.constexpr = SIZE * SIZE * IN
    FRAMED: tl.constexpr = (HEIGHT + SIZE - 1) * (BREADTH + SIZE - 1) * IN
    EACH: tl.constexpr = (HEIGHT // 2) * (BREADTH // 2)
    TURNS: tl.constexpr = (WIDTH * EACH + PARTS * WINDOWS - 1) // (PARTS * WINDOWS)
    k, n = tl.program_id(0) * DEPTH + tl.arange(0, DEPTH), tl.arange(0, COLUMNS)
    reach = _reach(k, BREADTH, IN, SIZE)
    sums = tl.zeros((DEPTH, COLUMNS), tl.float32)
    bias = tl.zeros((COLUMNS,), tl.float32)
    for turn in range(0, TURNS):
        first = (part * TURNS + turn) * WINDOWS
        b, begins = _corners(first * 4 + tl.arange(0, 4 * WINDOWS), HEIGHT, BREADTH, IN, SIZE)
        row = rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH, FRAMED, FIRST) + begins
        h = tl.load(source + row[:, None] + reach[None, :], mask=(b < WIDTH)[:, None] & (k < TAPS)[None, :], other=0.0)
        w = first + tl.arange(0, WINDOWS)
        place = (lane.to(tl.int64) * (WIDTH * EACH) + w)[:, None] * OUT + n[None, :]
        held = (w < WIDTH * EACH)[:, None] & (n < OUT)[None, :]
        won = tl.load(winner + place, mask=held, other=-1).to(tl.int32)
        d = tl.load(delta + place, mask=held, other=0.0)
        if tl.program_id(0) == 0:
            bias += tl.sum(d, axis=0)
        four = tl.where(won[:, None, :] == tl.arange(0, 4)[None, :, None], d[:, None, :], 0.0)
        sums = dot(tl.trans(h), tl.reshape(four, (4 * WINDOWS, COLUMNS)), sums, PRECISION)
    own = slope + (part * tl.num_programs(2) + lane).to(tl.int64) * ((TAPS + 1) * OUT)
    tl.store(own + k[:, None] * OUT + n[None, :], sums, mask=(k < TAPS)[:, None] & (n < OUT)[None, :])
    if tl.program_id(0) == 0:
        tl.store(own + TAPS * OUT + n, bias, mask=n < OUT)


@triton.jit(do_not_specialize=["AHEAD"])
def block_update(
    theta, anchor, anchor_of, lr, pull, length, slope, step, AHEAD, LENGTH: tl.constexpr, OFFSET: tl.constexpr,
    COUNT: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the parts of a block's slope, and update its weight and bias."""
    lane = tl.program_id(1)
    at = tl.load(step) + AHEAD
    rate, kept, pulled = rates(lane, at, lr, pull, length)
    i = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(slope + (part * tl.num_programs(1) + lane).to(tl.int64) * COUNT + i, mask=i < COUNT, other=0.0)
    place = OFFSET + i
    own = theta + lane.to(tl.int64) * LENGTH + place
    goal = anchor + tl.load(anchor_of + lane) * LENGTH + place
    now = tl.load(own, mask=i < COUNT, other=0.0)
    towards = tl.load(goal, mask=i < COUNT * pulled, other=0.0)
    tl.store(own, kept * now + (1 - kept) * towards - rate * total, mask=i < COUNT)
