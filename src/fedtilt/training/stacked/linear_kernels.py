"""The linear layers of a `SequentialNet` in Triton: one training step of all jobs on CUDA.

A program works on one job. Sample indices, settings and the number of the step are on the device, and activations stay
there. A weight is read, its gradient computed and its update written in one pass, so a step of a small perceptron is a
handful of launches instead of dozens. The convolutions are in `conv_kernels`.

    linear_forward      h ← relu(h W + b)
    head                the last layer, forward and backward, with the tilted loss
    linear_backward     delta ← (delta Wᵀ) where h > 0;  W ← the optimiser's step by deltaᵀ h
"""

import math

import triton
import triton.language as tl

from fedtilt.training.stacked.optimizers import BETA1, BETA2, EPS

_BETA1, _BETA2, _EPS = tl.constexpr(BETA1), tl.constexpr(BETA2), tl.constexpr(EPS)
_LOG_BETA1, _LOG_BETA2 = tl.constexpr(math.log(BETA1)), tl.constexpr(math.log(BETA2))


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a · b, with operands in this precision and sums in float32."""
    if PRECISION == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def sample_rows(
    b, job, step, client_index, batch_indices, CLIENTS, SAMPLES, BATCH: tl.constexpr, SAMPLE_SIZE: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """Offsets of the samples of a batch: in the data for the first layer, otherwise in the activations."""
    if FIRST:
        client = tl.load(client_index + job)
        sample = tl.load(batch_indices + (step * CLIENTS + client) * BATCH + b, mask=b < BATCH, other=0)
        row = (client * SAMPLES + tl.maximum(sample, 0)) * SAMPLE_SIZE
    else:
        row = (job * BATCH + b).to(tl.int64) * SAMPLE_SIZE
    return row


@triton.jit
def update_rates(job, step, lr, prox, steps):
    """The learning rate of a job (0 after its last step), and the strength of its proximal term."""
    return tl.where(step < tl.load(steps + job), tl.load(lr + job), 0.0), tl.load(prox + job)


@triton.jit
def updated(
    old, grad, anchor, state, valid, rate, strength, step, momentum, weight_decay, STATE_STRIDE, RULE: tl.constexpr,
):  # fmt: skip
    """The next values of parameters; the rows of their optimiser's state, `STATE_STRIDE` apart, are updated in place.

    `optimizers.optimizer_step` is the same for a batch of models.
    """
    if RULE == "plain":
        decay = 1 - rate * strength
        new = decay * old + (1 - decay) * anchor - rate * grad
    else:
        grad += strength * (old - anchor)
        if RULE == "adamw":
            old *= 1 - rate * weight_decay
        else:
            grad += weight_decay * old
        if RULE == "adam" or RULE == "adamw":
            mean = tl.load(state, mask=valid, other=0.0)
            mean += (1 - _BETA1) * (grad - mean)
            square = tl.load(state + STATE_STRIDE, mask=valid, other=0.0)
            square = _BETA2 * square + (1 - _BETA2) * grad * grad
            tl.store(state, mean, mask=valid)
            tl.store(state + STATE_STRIDE, square, mask=valid)
            number = (step + 1).to(tl.float64)
            mean_bias = (1 - tl.exp(number * _LOG_BETA1)).to(tl.float32)
            square_bias = (1 - tl.exp(number * _LOG_BETA2)).to(tl.float32)
            new = old - rate / mean_bias * (mean / (tl.sqrt(square) / tl.sqrt(square_bias) + _EPS))
        elif RULE == "sgd":
            new = old - rate * grad
        else:
            velocity = momentum * tl.load(state, mask=valid, other=0.0) + grad
            tl.store(state, velocity, mask=valid)
            if RULE == "nesterov":
                velocity = grad + momentum * velocity
            new = old - rate * velocity
    return new


@triton.jit
def _tilted_mean_and_grad(x, same, present, t):
    """The tilted mean of each member's group, and its gradient by the member; float64."""
    infinite = tl.abs(t) == float("inf")
    zero = tl.abs(t) < 1e-9
    finite = tl.where(infinite | zero, 1.0, t)
    highest = tl.max(tl.where(same, x[None, :], -float("inf")), axis=1)
    lowest = tl.min(tl.where(same, x[None, :], float("inf")), axis=1)
    m = tl.where(present, tl.where(t > 0, highest, lowest), 0.0)
    count = tl.maximum(tl.sum(same.to(tl.float64), axis=1), 1.0)
    exps = tl.where(same, tl.exp(finite * (x[None, :] - m[:, None])), 0.0)
    total = tl.where(present, tl.sum(exps, axis=1), 1.0)
    mean = tl.sum(tl.where(same, x[None, :], 0.0), axis=1) / count
    tied = tl.sum((same & (x[None, :] == m[:, None])).to(tl.float64), axis=1)
    value = tl.where(zero, mean, tl.where(infinite, m, m + tl.log(total / count) / finite))
    at_extreme = tl.where(x == m, 1.0, 0.0) / tl.maximum(tied, 1.0)
    grad = tl.where(zero, 1 / count, tl.where(infinite, at_extreme, tl.exp(finite * (x - m)) / total))
    return value, tl.where(present, grad, 0.0)


@triton.jit
def _tilt_grad(losses, group, present, tau, lam):
    """The gradient of R(tau, lam) by each sample's loss: its group's gradient times its own within the group."""
    same = (group[:, None] == group[None, :]) & present[:, None] & present[None, :]
    group_loss, group_grad = _tilted_mean_and_grad(losses, same, present, lam)
    both_present = present[:, None] & present[None, :]
    _, whole_grad = _tilted_mean_and_grad(group_loss, both_present, present, tau)  # per sample, each of weight 1 …
    return group_grad * tl.sum(tl.where(same, whole_grad[None, :], 0.0), axis=1)  # … summed over the group


@triton.jit(do_not_specialize=["STEP_OFFSET"])
def linear_forward(
    theta, source, out, client_index, batch_indices, first_step, STEP_OFFSET, CLIENTS, SAMPLES,
    ROW_LENGTH: tl.constexpr, OFFSET: tl.constexpr, BIAS_OFFSET: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    BATCH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """A linear layer and ReLU: the rows of the product are samples, its columns a part of the outputs."""
    job = tl.program_id(1)
    step = tl.load(first_step) + STEP_OFFSET
    b, n = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = sample_rows(b, job, step, client_index, batch_indices, CLIENTS, SAMPLES, BATCH, IN, FIRST)
    parameters = theta + job.to(tl.int64) * ROW_LENGTH
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, IN, DEPTH):
        k = start + tl.arange(0, DEPTH)
        h = tl.load(source + row[:, None] + k[None, :], mask=(b < BATCH)[:, None] & (k < IN)[None, :], other=0.0)
        weight = tl.load(
            parameters + OFFSET + n[None, :] * IN + k[:, None], mask=(n < OUT)[None, :] & (k < IN)[:, None], other=0.0
        )
        sums = dot(h, weight, sums, PRECISION)
    sums += tl.load(parameters + BIAS_OFFSET + n, mask=n < OUT, other=0.0)[None, :]
    index = (job * BATCH + b).to(tl.int64)[:, None] * OUT + n[None, :]
    tl.store(out + index, tl.maximum(sums, 0.0), mask=(b < BATCH)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=["STEP_OFFSET"])
def linear_backward(
    theta, state, anchor, anchor_index, lr, prox, steps, momentum, weight_decay, STATE_STRIDE, source, delta,
    input_delta, client_index, batch_indices, first_step, STEP_OFFSET, CLIENTS, SAMPLES, RULE: tl.constexpr,
    ROW_LENGTH: tl.constexpr, OFFSET: tl.constexpr, BIAS_OFFSET: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    BATCH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """The gradient by a layer's input, and the update of its weights: columns are a part of the inputs."""
    job = tl.program_id(1)
    step = tl.load(first_step) + STEP_OFFSET
    rate, strength = update_rates(job, step, lr, prox, steps)
    has_prox = tl.where(strength > 0, 1, 0)
    b, i = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (b < BATCH)[:, None] & (i < IN)[None, :]
    row = sample_rows(b, job, step, client_index, batch_indices, CLIENTS, SAMPLES, BATCH, IN, FIRST)
    h = tl.load(source + row[:, None] + i[None, :], mask=inside, other=0.0)
    parameters = theta + job.to(tl.int64) * ROW_LENGTH
    state_row = state + job.to(tl.int64) * ROW_LENGTH
    anchor_row = anchor + tl.load(anchor_index + job) * ROW_LENGTH
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, OUT, DEPTH):
        o = start + tl.arange(0, DEPTH)
        d = tl.load(
            delta + (job * BATCH + b).to(tl.int64)[:, None] * OUT + o[None, :],
            mask=(b < BATCH)[:, None] & (o < OUT)[None, :], other=0.0,
        )  # fmt: skip
        index = OFFSET + o[:, None] * IN + i[None, :]
        valid = (o < OUT)[:, None] & (i < IN)[None, :]
        weight = tl.load(parameters + index, mask=valid, other=0.0)
        if not FIRST:
            sums = dot(d, weight, sums, PRECISION)
        grad = dot(tl.trans(d), h, tl.zeros((DEPTH, COLUMNS), tl.float32), PRECISION)
        anchor_weight = tl.load(anchor_row + index, mask=valid & (i < IN * has_prox)[None, :], other=0.0)
        new = updated(
            weight, grad, anchor_weight, state_row + index, valid, rate, strength, step, momentum, weight_decay,
            STATE_STRIDE, RULE,
        )  # fmt: skip
        tl.store(parameters + index, new, mask=valid)
        if tl.program_id(0) == 0:
            bias = tl.load(parameters + BIAS_OFFSET + o, mask=o < OUT, other=0.0)
            anchor_bias = tl.load(anchor_row + BIAS_OFFSET + o, mask=o < OUT * has_prox, other=0.0)
            new_bias = updated(
                bias, tl.sum(d, axis=0), anchor_bias, state_row + BIAS_OFFSET + o, o < OUT, rate, strength, step,
                momentum, weight_decay, STATE_STRIDE, RULE,
            )  # fmt: skip
            tl.store(parameters + BIAS_OFFSET + o, new_bias, mask=o < OUT)
    if not FIRST:
        tl.store(input_delta + row[:, None] + i[None, :], tl.where(h > 0, sums, 0.0), mask=inside)


@triton.jit(do_not_specialize=["STEP_OFFSET"])
def head(
    theta, state, anchor, anchor_index, lr, prox, steps, momentum, weight_decay, STATE_STRIDE, tau, lam, labels, groups,
    source, input_delta, client_index, batch_indices, first_step, STEP_OFFSET, CLIENTS, SAMPLES, RULE: tl.constexpr,
    ROW_LENGTH: tl.constexpr, OFFSET: tl.constexpr, BIAS_OFFSET: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    BATCH: tl.constexpr, FIRST: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The last layer, forward and backward, with the loss: one program per job."""
    job = tl.program_id(0)
    step = tl.load(first_step) + STEP_OFFSET
    rate, strength = update_rates(job, step, lr, prox, steps)
    has_prox = tl.where(strength > 0, 1, 0)
    b, k = tl.arange(0, ROWS), tl.arange(0, CLASSES)
    row = sample_rows(b, job, step, client_index, batch_indices, CLIENTS, SAMPLES, BATCH, IN, FIRST)
    parameters = theta + job.to(tl.int64) * ROW_LENGTH
    state_row = state + job.to(tl.int64) * ROW_LENGTH
    anchor_row = anchor + tl.load(anchor_index + job) * ROW_LENGTH

    logits = tl.zeros((ROWS, CLASSES), tl.float32)
    for start in range(0, IN, COLUMNS):
        i = start + tl.arange(0, COLUMNS)
        h = tl.load(source + row[:, None] + i[None, :], mask=(b < BATCH)[:, None] & (i < IN)[None, :], other=0.0)
        weight = tl.load(
            parameters + OFFSET + k[None, :] * IN + i[:, None], mask=(k < OUT)[None, :] & (i < IN)[:, None], other=0.0
        )
        logits = dot(h, weight, logits, PRECISION)
    bias = tl.load(parameters + BIAS_OFFSET + k, mask=k < OUT, other=0.0)
    z = tl.where((k < OUT)[None, :], (logits + bias[None, :]).to(tl.float64), -float("inf"))

    client = tl.load(client_index + job)
    sample = tl.load(batch_indices + (step * CLIENTS + client) * BATCH + b, mask=b < BATCH, other=-1)
    present = sample >= 0
    label = tl.load(labels + client * SAMPLES + tl.maximum(sample, 0))
    group = tl.load(groups + client * SAMPLES + tl.maximum(sample, 0))
    z -= tl.max(z, axis=1)[:, None]
    exps = tl.exp(z)
    total = tl.sum(exps, axis=1)
    is_label = k[None, :] == label[:, None]
    losses = tl.log(total) - tl.sum(tl.where(is_label, z, 0.0), axis=1)
    loss_grad = _tilt_grad(losses, group, present, tl.load(tau + job).to(tl.float64), tl.load(lam + job).to(tl.float64))
    d = (loss_grad[:, None] * (exps / total[:, None] - tl.where(is_label, 1.0, 0.0))).to(tl.float32)  # (ROWS, CLASSES)

    for start in range(0, IN, COLUMNS):
        i = start + tl.arange(0, COLUMNS)
        inside = (b < BATCH)[:, None] & (i < IN)[None, :]
        h = tl.load(source + row[:, None] + i[None, :], mask=inside, other=0.0)
        index = OFFSET + k[:, None] * IN + i[None, :]
        valid = (k < OUT)[:, None] & (i < IN)[None, :]
        weight = tl.load(parameters + index, mask=valid, other=0.0)
        if not FIRST:
            sums = dot(d, weight, tl.zeros((ROWS, COLUMNS), tl.float32), PRECISION)
            tl.store(input_delta + row[:, None] + i[None, :], tl.where(h > 0, sums, 0.0), mask=inside)
        grad = dot(tl.trans(d), h, tl.zeros((CLASSES, COLUMNS), tl.float32), PRECISION)
        anchor_weight = tl.load(anchor_row + index, mask=valid & (i < IN * has_prox)[None, :], other=0.0)
        new = updated(
            weight, grad, anchor_weight, state_row + index, valid, rate, strength, step, momentum, weight_decay,
            STATE_STRIDE, RULE,
        )  # fmt: skip
        tl.store(parameters + index, new, mask=valid)
    anchor_bias = tl.load(anchor_row + BIAS_OFFSET + k, mask=k < OUT * has_prox, other=0.0)
    new_bias = updated(
        bias, tl.sum(d, axis=0), anchor_bias, state_row + BIAS_OFFSET + k, k < OUT, rate, strength, step, momentum,
        weight_decay, STATE_STRIDE, RULE,
    )  # fmt: skip
    tl.store(parameters + BIAS_OFFSET + k, new_bias, mask=k < OUT)
