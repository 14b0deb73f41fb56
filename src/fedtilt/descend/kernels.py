"""One step of every lane of a `Chain`, in Triton: the inside of the stacked way on CUDA.

A program works on one lane. The sample indices of a step, the lanes' settings and the number of the step live on the
device; activations never leave it; a weight is read, its gradient formed and the update written in one pass, so a step
of a small perceptron is a handful of launches instead of dozens.

    images              (height, width, channels) with a frame of zeros as wide as the next convolution reaches
    forward             h ← relu(h W + b);  with a block, the largest of each 2×2 window and which one it was
    head                last layer, losses, tilted shares, and everything backward of it
    backward            delta ← (delta Wᵀ) where h > 0;  W ← kept · W + (1 − kept) · anchor − lr · deltaᵀ h
"""

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH: tl.constexpr, VALUES: tl.constexpr, FIRST: tl.constexpr):
    """Where the values of the batch's samples begin: in the data for the first layer, else in its activations."""
    if FIRST:
        mine = tl.load(client + lane)
        sample = tl.load(picks + (at * CLIENTS + mine) * WIDTH + b, mask=b < WIDTH, other=0)
        row = (mine * SAMPLES + tl.maximum(sample, 0)) * VALUES
    else:
        row = (lane * WIDTH + b).to(tl.int64) * VALUES
    return row


@triton.jit
def _rates(lane, at, lr, pull, length):
    """The lane's learning rate, 0 once it is done; how much of a parameter a step keeps; 1 if it is pulled, else 0."""
    rate = tl.where(at < tl.load(length + lane), tl.load(lr + lane), 0.0)
    strength = tl.load(pull + lane)
    return rate, 1 - rate * strength, tl.where(strength > 0, 1, 0)


@triton.jit
def _tilted(x, same, present, t):
    """The tilted mean of each cell, seen from its members, and every member's share of it; float64."""
    infinite = tl.abs(t) == float("inf")
    zero = tl.abs(t) < 1e-9
    finite = tl.where(infinite | zero, 1.0, t)
    highest = tl.max(tl.where(same, x[None, :], -float("inf")), axis=1)
    lowest = tl.min(tl.where(same, x[None, :], float("inf")), axis=1)
    m = tl.where(present, tl.where(t > 0, highest, lowest), 0.0)
    count = tl.maximum(tl.sum(same.to(tl.float64), axis=1), 1.0)
    powers = tl.where(same, tl.exp(finite * (x[None, :] - m[:, None])), 0.0)
    total = tl.where(present, tl.sum(powers, axis=1), 1.0)
    mean = tl.sum(tl.where(same, x[None, :], 0.0), axis=1) / count
    tied = tl.sum((same & (x[None, :] == m[:, None])).to(tl.float64), axis=1)
    value = tl.where(zero, mean, tl.where(infinite, m, m + tl.log(total / count) / finite))
    at_edge = tl.where(x == m, 1.0, 0.0) / tl.maximum(tied, 1.0)
    share = tl.where(zero, 1 / count, tl.where(infinite, at_edge, tl.exp(finite * (x - m)) / total))
    return value, tl.where(present, share, 0.0)


@triton.jit
def _shares(losses, label, present, tau, lam):
    """What each sample counts for in R(tau, lam): its share of its class times the class's share of the whole."""
    same = (label[:, None] == label[None, :]) & present[:, None] & present[None, :]
    class_loss, of_class = _tilted(losses, same, present, lam)
    everyone = present[:, None] & present[None, :]
    _, of_whole = _tilted(class_loss, everyone, present, tau)  # a sample's, where every sample weighs the same …
    return of_class * tl.sum(tl.where(same, of_whole[None, :], 0.0), axis=1)  # … and its class's, summed


@triton.jit(do_not_specialize=["AHEAD"])
def forward(
    theta, source, out, client, picks, step, AHEAD, CLIENTS, SAMPLES, LENGTH: tl.constexpr, OFFSET: tl.constexpr,
    BIAS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A linear layer and ReLU: rows of the product are samples, its columns some of the layer's outputs."""
    lane = tl.program_id(1)
    at = tl.load(step) + AHEAD
    b, n = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = _rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH, IN, FIRST)
    own = theta + lane.to(tl.int64) * LENGTH
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, IN, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        h = tl.load(source + row[:, None] + k[None, :], mask=(b < WIDTH)[:, None] & (k < IN)[None, :], other=0.0)
        weight = tl.load(
            own + OFFSET + n[None, :] * IN + k[:, None], mask=(n < OUT)[None, :] & (k < IN)[:, None], other=0.0
        )
        sums = _dot(h, weight, sums, PRECISION)
    sums += tl.load(own + BIAS + n, mask=n < OUT, other=0.0)[None, :]
    place = (lane * WIDTH + b).to(tl.int64)[:, None] * OUT + n[None, :]
    tl.store(out + place, tl.maximum(sums, 0.0), mask=(b < WIDTH)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=["AHEAD"])
def backward(
    theta, anchor, anchor_of, lr, pull, length, source, delta, delta_in, client, picks, step, AHEAD, CLIENTS, SAMPLES,
    LENGTH: tl.constexpr, OFFSET: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """The slope by a layer's input, and its update: columns are some of the layer's inputs."""
    lane = tl.program_id(1)
    at = tl.load(step) + AHEAD
    rate, kept, pulled = _rates(lane, at, lr, pull, length)
    b, i = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (b < WIDTH)[:, None] & (i < IN)[None, :]
    row = _rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH, IN, FIRST)
    h = tl.load(source + row[:, None] + i[None, :], mask=inside, other=0.0)
    own = theta + lane.to(tl.int64) * LENGTH
    goal = anchor + tl.load(anchor_of + lane) * LENGTH
    below = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, OUT, DEPTH):
        o = begin + tl.arange(0, DEPTH)
        d = tl.load(
            delta + (lane * WIDTH + b).to(tl.int64)[:, None] * OUT + o[None, :],
            mask=(b < WIDTH)[:, None] & (o < OUT)[None, :], other=0.0,
        )  # fmt: skip
        place = OFFSET + o[:, None] * IN + i[None, :]
        held = (o < OUT)[:, None] & (i < IN)[None, :]
        weight = tl.load(own + place, mask=held, other=0.0)
        if not FIRST:
            below = _dot(d, weight, below, PRECISION)
        slope = _dot(tl.trans(d), h, tl.zeros((DEPTH, COLUMNS), tl.float32), PRECISION)
        towards = tl.load(goal + place, mask=held & (i < IN * pulled)[None, :], other=0.0)
        tl.store(own + place, kept * weight + (1 - kept) * towards - rate * slope, mask=held)
        if tl.program_id(0) == 0:
            bias = tl.load(own + BIAS + o, mask=o < OUT, other=0.0)
            towards_bias = tl.load(goal + BIAS + o, mask=o < OUT * pulled, other=0.0)
            tl.store(own + BIAS + o, kept * bias + (1 - kept) * towards_bias - rate * tl.sum(d, axis=0), mask=o < OUT)
    if not FIRST:
        tl.store(delta_in + row[:, None] + i[None, :], tl.where(h > 0, below, 0.0), mask=inside)


@triton.jit(do_not_specialize=["AHEAD"])
def head(
    theta, anchor, anchor_of, lr, pull, length, tau, lam, labels, source, delta_in, client, picks, step, AHEAD,
    CLIENTS, SAMPLES, LENGTH: tl.constexpr, OFFSET: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    CLASSES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The last layer, forward and backward, with the loss between: a lane's in one program."""
    lane = tl.program_id(0)
    at = tl.load(step) + AHEAD
    rate, kept, pulled = _rates(lane, at, lr, pull, length)
    b, k = tl.arange(0, ROWS), tl.arange(0, CLASSES)
    row = _rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH, IN, FIRST)
    own = theta + lane.to(tl.int64) * LENGTH
    goal = anchor + tl.load(anchor_of + lane) * LENGTH

    logits = tl.zeros((ROWS, CLASSES), tl.float32)
    for begin in range(0, IN, COLUMNS):
        i = begin + tl.arange(0, COLUMNS)
        h = tl.load(source + row[:, None] + i[None, :], mask=(b < WIDTH)[:, None] & (i < IN)[None, :], other=0.0)
        weight = tl.load(
            own + OFFSET + k[None, :] * IN + i[:, None], mask=(k < OUT)[None, :] & (i < IN)[:, None], other=0.0
        )
        logits = _dot(h, weight, logits, PRECISION)
    bias = tl.load(own + BIAS + k, mask=k < OUT, other=0.0)
    z = tl.where((k < OUT)[None, :], (logits + bias[None, :]).to(tl.float64), -float("inf"))

    mine = tl.load(client + lane)
    sample = tl.load(picks + (at * CLIENTS + mine) * WIDTH + b, mask=b < WIDTH, other=-1)
    present = sample >= 0
    label = tl.load(labels + mine * SAMPLES + tl.maximum(sample, 0))
    z -= tl.max(z, axis=1)[:, None]
    powers = tl.exp(z)
    total = tl.sum(powers, axis=1)
    hit = k[None, :] == label[:, None]
    losses = tl.log(total) - tl.sum(tl.where(hit, z, 0.0), axis=1)
    share = _shares(losses, label, present, tl.load(tau + lane).to(tl.float64), tl.load(lam + lane).to(tl.float64))
    d = (share[:, None] * (powers / total[:, None] - tl.where(hit, 1.0, 0.0))).to(tl.float32)  # (ROWS, CLASSES)

    for begin in range(0, IN, COLUMNS):
        i = begin + tl.arange(0, COLUMNS)
        inside = (b < WIDTH)[:, None] & (i < IN)[None, :]
        h = tl.load(source + row[:, None] + i[None, :], mask=inside, other=0.0)
        place = OFFSET + k[:, None] * IN + i[None, :]
        held = (k < OUT)[:, None] & (i < IN)[None, :]
        weight = tl.load(own + place, mask=held, other=0.0)
        if not FIRST:
            below = _dot(d, weight, tl.zeros((ROWS, COLUMNS), tl.float32), PRECISION)
            tl.store(delta_in + row[:, None] + i[None, :], tl.where(h > 0, below, 0.0), mask=inside)
        slope = _dot(tl.trans(d), h, tl.zeros((CLASSES, COLUMNS), tl.float32), PRECISION)
        towards = tl.load(goal + place, mask=held & (i < IN * pulled)[None, :], other=0.0)
        tl.store(own + place, kept * weight + (1 - kept) * towards - rate * slope, mask=held)
    towards_bias = tl.load(goal + BIAS + k, mask=k < OUT * pulled, other=0.0)
    tl.store(own + BIAS + k, kept * bias + (1 - kept) * towards_bias - rate * tl.sum(d, axis=0), mask=k < OUT)


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
    row = _rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH, FRAMED, FIRST) + begins
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
        sums = _dot(h, weight, sums, PRECISION)
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
            sums = _dot(d, tl.trans(weight), sums, PRECISION)
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
        row = _rows(b, lane, at, client, picks, CLIENTS, SAMPLES, WIDTH, FRAMED, FIRST) + begins
        h = tl.load(source + row[:, None] + reach[None, :], mask=(b < WIDTH)[:, None] & (k < TAPS)[None, :], other=0.0)
        w = first + tl.arange(0, WINDOWS)
        place = (lane.to(tl.int64) * (WIDTH * EACH) + w)[:, None] * OUT + n[None, :]
        held = (w < WIDTH * EACH)[:, None] & (n < OUT)[None, :]
        won = tl.load(winner + place, mask=held, other=-1).to(tl.int32)
        d = tl.load(delta + place, mask=held, other=0.0)
        if tl.program_id(0) == 0:
            bias += tl.sum(d, axis=0)
        four = tl.where(won[:, None, :] == tl.arange(0, 4)[None, :, None], d[:, None, :], 0.0)
        sums = _dot(tl.trans(h), tl.reshape(four, (4 * WINDOWS, COLUMNS)), sums, PRECISION)
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
    rate, kept, pulled = _rates(lane, at, lr, pull, length)
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
