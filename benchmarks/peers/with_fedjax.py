"""FedJAX: a client update through `fedjax.for_each_client`, compiled by jax.jit."""

import argparse
import os
from importlib.metadata import version

from turns import Turns, work_of

parser = argparse.ArgumentParser()
parser.add_argument("work")
parser.add_argument("--backend", default="jit", choices=("jit", "pmap"))
arguments = parser.parse_args()
work = work_of(arguments.work)
# Both must be said before jax is imported. The older runtime needs less time for these small steps than the newer.
os.environ["XLA_FLAGS"] = "--xla_cpu_use_thunk_runtime=false"
if arguments.backend == "pmap":  # one client per core at a time
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={work.workers}"
    os.environ["JAX_PMAP_NO_RANK_REDUCTION"] = "0"  # as FedJAX was written for

import fedjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

# in their order: jax sorts the keys of a dictionary, and "10" comes before "3"
LAYERS = [name.removesuffix(".weight") for name in work.start() if name.endswith(".weight")]


def logits(params, x):
    """The network."""
    *layers, last = [(params[f"{layer}.weight"], params[f"{layer}.bias"]) for layer in LAYERS]
    for weight, bias in layers:
        if work.model == "mlp":
            x = jax.nn.relu(x.reshape(len(x), -1) @ weight.T + bias)
        else:  # (B, H, W, C): convolutions are fast on a CPU in this layout only
            x = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + bias)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    weight, bias = last
    return x.reshape(len(x), -1) @ weight.T + bias


def turned(weights, *, back=False):
    """PyTorch's layout as `logits` wants it: channels last, also where the last layer reads an image; or back."""
    if work.model == "mlp":
        return dict(weights)
    moved = {}
    for name, value in weights.items():
        value = np.asarray(value)
        if value.ndim == 4:
            value = value.transpose((3, 2, 0, 1) if back else (2, 3, 1, 0))
        elif value.ndim == 2:  # (classes, 128 · 4 · 4)
            shape, order = ((4, 4, 128), (0, 3, 1, 2)) if back else ((128, 4, 4), (0, 2, 3, 1))
            value = value.reshape(-1, *shape).transpose(order).reshape(len(value), -1)
        moved[name] = value
    return moved


def loss(params, batch):
    """Mean cross-entropy."""
    log_p = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.take_along_axis(log_p, batch["y"][:, None], axis=1).mean()


slope = jax.grad(loss)


def client_init(received, own):
    """A client's state: the shared model, and with a personal one also its anchor."""
    return {"w": received} if work.mu is None else {"w": received, "v": own, "anchor": received}


def client_step(state, batch):
    """One step of every model of a client, in one compiled function."""
    moved = dict(state)
    moved["w"] = jax.tree_util.tree_map(lambda p, g: p - work.lr * g, state["w"], slope(state["w"], batch))
    if work.mu is not None:
        moved["v"] = jax.tree_util.tree_map(
            lambda p, g, a: p - work.lr * (g + work.mu * (p - a)), state["v"], slope(state["v"], batch), state["anchor"]
        )
    return moved


def client_final(received, state):
    """What a client hands back."""
    return {name: state[name] for name in ("w", "v") if name in state}


def main() -> None:
    turns = Turns(work)
    data = {
        client: fedjax.ClientDataset({"x": np.ascontiguousarray(np.moveaxis(x, 1, -1)), "y": y.astype(np.int32)})
        for client, (x, y) in work.every().items()
    }
    fedjax.set_for_each_client_backend(arguments.backend)
    train = fedjax.for_each_client(client_init, client_step, client_final)
    shared = {name: jnp.asarray(value) for name, value in turned(work.start()).items()}
    personal = {}
    hparams = {"batch_size": work.batch_size, "num_epochs": work.epochs, "drop_remainder": False}

    def batches(client, seed):
        for batch in data[client].shuffle_repeat_batch(seed=seed, **hparams):
            turns.steps += 1 if work.mu is None else 2
            yield batch

    for number, clients in enumerate(turns):
        jobs = [(c, batches(c, seed=number), personal.get(c, shared) if work.mu is not None else 0) for c in clients]
        trained = []
        for client, models in train(shared, jobs):
            trained.append(models["w"])
            if work.mu is not None:
                personal[client] = models["v"]
        shared = jax.tree_util.tree_map(lambda *each: sum(each) / len(each), *trained)
        jax.block_until_ready((shared, personal))

    personal = {client: turned(own, back=True) for client, own in personal.items()}
    turns.finish(
        turned(shared, back=True), personal, fedjax=version("fedjax"), jax=jax.__version__, backend=arguments.backend
    )


if __name__ == "__main__":
    main()
