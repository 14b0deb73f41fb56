"""One step of every lane of a `Chain`, in Triton: the inside of the stacked way on CUDA.

A program works on one lane. The sample indices of a step, the lanes' settings and the number of the step live on the
device; activations never leave it; a weight is read, its gradient formed and the update written in one pass, so a step
of a small perceptron is a handful of launches instead of dozens. Here are the layers; `image_kernels` has the blocks.

    forward             h ← relu(h W + b)
    head                last layer, losses, tilted shares, and everything backward of it
    backward            delta ← (delta Wᵀ) where h > 0;  W ← kept · W + (1 − kept) · anchor − lr · deltaᵀ h
"""

import triton
import triton.language as tl


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """A product in the precision asked for, added to float32 sums."""
    if PRECISION == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def rows(b, job, at, client, picks, CLIENTS, SAMPLES, WIDTH: tl.constexpr, VALUES: tl.constexpr, FIRST: tl.constexpr):
    """Where the values of the batch's samples begin: in the data for the first layer, else in its activations."""
    if FIRST:
        mine = tl.load(client + job)
        sample = tl.load(picks + (at * CLIENTS + mine) * WIDTH + b, mask=b < WIDTH, other=0)
        row = (mine * SAMPLES + tl.maximum(sample, 0)) * VALUES
    else:
        row = (job * WIDTH + b).to(tl.int64) * VALUES
    return row


@triton.jit
def rates(job, at, lr, prox, length):
    """The lane's learning rate, 0 once it is done; how much of a parameter a step keeps; 1 if it is pulled, else 0."""
    rate = tl.where(at < tl.load(length + job), tl.load(lr + job), 0.0)
    strength = tl.load(prox + job)
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
    job = tl.program_id(1)
    at = tl.load(step) + AHEAD
    b, n = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = rows(b, job, at, client, picks, CLIENTS, SAMPLES, WIDTH, IN, FIRST)
    own = theta + job.to(tl.int64) * LENGTH
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, IN, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        h = tl.load(source + row[:, None] + k[None, :], mask=(b < WIDTH)[:, None] & (k < IN)[None, :], other=0.0)
        weight = tl.load(
            own + OFFSET + n[None, :] * IN + k[:, None], mask=(n < OUT)[None, :] & (k < IN)[:, None], other=0.0
        )
        sums = dot(h, weight, sums, PRECISION)
    sums += tl.load(own + BIAS + n, mask=n < OUT, other=0.0)[None, :]
    place = (job * WIDTH + b).to(tl.int64)[:, None] * OUT + n[None, :]
    tl.store(out + place, tl.maximum(sums, 0.0), mask=(b < WIDTH)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=["AHEAD"])
def backward(
    theta, anchor, anchor_of, lr, prox, length, source, delta, delta_in, client, picks, step, AHEAD, CLIENTS, SAMPLES,
    LENGTH: tl.constexpr, OFFSET: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    WIDTH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """The slope by a layer's input, and its update: columns are some of the layer's inputs."""
    job = tl.program_id(1)
    at = tl.load(step) + AHEAD
    rate, kept, pulled = rates(job, at, lr, prox, length)
    b, i = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (b < WIDTH)[:, None] & (i < IN)[None, :]
    row = rows(b, job, at, client, picks, CLIENTS, SAMPLES, WIDTH, IN, FIRST)
    h = tl.load(source + row[:, None] + i[None, :], mask=inside, other=0.0)
    own = theta + job.to(tl.int64) * LENGTH
    goal = anchor + tl.load(anchor_of + job) * LENGTH
    below = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, OUT, DEPTH):
        o = begin + tl.arange(0, DEPTH)
        d = tl.load(
            delta + (job * WIDTH + b).to(tl.int64)[:, None] * OUT + o[None, :],
            mask=(b < WIDTH)[:, None] & (o < OUT)[None, :], other=0.0,
        )  # fmt: skip
        place = OFFSET + o[:, None] * IN + i[None, :]
        held = (o < OUT)[:, None] & (i < IN)[None, :]
        weight = tl.load(own + place, mask=held, other=0.0)
        if not FIRST:
            below = dot(d, weight, below, PRECISION)
        slope = dot(tl.trans(d), h, tl.zeros((DEPTH, COLUMNS), tl.float32), PRECISION)
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
    theta, anchor, anchor_of, lr, prox, length, tau, lam, labels, source, delta_in, client, picks, step, AHEAD,
    CLIENTS, SAMPLES, LENGTH: tl.constexpr, OFFSET: tl.constexpr, BIAS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    CLASSES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The last layer, forward and backward, with the loss between: a lane's in one program."""
    job = tl.program_id(0)
    at = tl.load(step) + AHEAD
    rate, kept, pulled = rates(job, at, lr, prox, length)
    b, k = tl.arange(0, ROWS), tl.arange(0, CLASSES)
    row = rows(b, job, at, client, picks, CLIENTS, SAMPLES, WIDTH, IN, FIRST)
    own = theta + job.to(tl.int64) * LENGTH
    goal = anchor + tl.load(anchor_of + job) * LENGTH

    logits = tl.zeros((ROWS, CLASSES), tl.float32)
    for begin in range(0, IN, COLUMNS):
        i = begin + tl.arange(0, COLUMNS)
        h = tl.load(source + row[:, None] + i[None, :], mask=(b < WIDTH)[:, None] & (i < IN)[None, :], other=0.0)
        weight = tl.load(
            own + OFFSET + k[None, :] * IN + i[:, None], mask=(k < OUT)[None, :] & (i < IN)[:, None], other=0.0
        )
        logits = dot(h, weight, logits, PRECISION)
    bias = tl.load(own + BIAS + k, mask=k < OUT, other=0.0)
    z = tl.where((k < OUT)[None, :], (logits + bias[None, :]).to(tl.float64), -float("inf"))

    mine = tl.load(client + job)
    sample = tl.load(picks + (at * CLIENTS + mine) * WIDTH + b, mask=b < WIDTH, other=-1)
    present = sample >= 0
    label = tl.load(labels + mine * SAMPLES + tl.maximum(sample, 0))
    z -= tl.max(z, axis=1)[:, None]
    powers = tl.exp(z)
    total = tl.sum(powers, axis=1)
    hit = k[None, :] == label[:, None]
    losses = tl.log(total) - tl.sum(tl.where(hit, z, 0.0), axis=1)
    share = _shares(losses, label, present, tl.load(tau + job).to(tl.float64), tl.load(lam + job).to(tl.float64))
    d = (share[:, None] * (powers / total[:, None] - tl.where(hit, 1.0, 0.0))).to(tl.float32)  # (ROWS, CLASSES)

    for begin in range(0, IN, COLUMNS):
        i = begin + tl.arange(0, COLUMNS)
        inside = (b < WIDTH)[:, None] & (i < IN)[None, :]
        h = tl.load(source + row[:, None] + i[None, :], mask=inside, other=0.0)
        place = OFFSET + k[:, None] * IN + i[None, :]
        held = (k < OUT)[:, None] & (i < IN)[None, :]
        weight = tl.load(own + place, mask=held, other=0.0)
        if not FIRST:
            below = dot(d, weight, tl.zeros((ROWS, COLUMNS), tl.float32), PRECISION)
            tl.store(delta_in + row[:, None] + i[None, :], tl.where(h > 0, below, 0.0), mask=inside)
        slope = dot(tl.trans(d), h, tl.zeros((CLASSES, COLUMNS), tl.float32), PRECISION)
        towards = tl.load(goal + place, mask=held & (i < IN * pulled)[None, :], other=0.0)
        tl.store(own + place, kept * weight + (1 - kept) * towards - rate * slope, mask=held)
    towards_bias = tl.load(goal + BIAS + k, mask=k < OUT * pulled, other=0.0)
    tl.store(own + BIAS + k, kept * bias + (1 - kept) * towards_bias - rate * tl.sum(d, axis=0), mask=k < OUT)
