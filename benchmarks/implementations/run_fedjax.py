"""FedJAX: a client update through `fedjax.for_each_client`, compiled by jax.jit."""

import argparse
import os
from importlib.metadata import version

from protocol import RoundRequests, Workload

parser = argparse.ArgumentParser()
parser.add_argument("workload")
parser.add_argument("--backend", default="jit", choices=("jit", "pmap"))
arguments = parser.parse_args()
workload = Workload.read(arguments.workload)
# Both variables must be set before jax is imported. The older runtime is faster than the newer for these small steps.
os.environ["XLA_FLAGS"] = "--xla_cpu_use_thunk_runtime=false"
if arguments.backend == "pmap":  # one client per core at a time
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={workload.workers}"
    os.environ["JAX_PMAP_NO_RANK_REDUCTION"] = "0"  # FedJAX expects the older behaviour

import fedjax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

# in model order: jax sorts the keys of a dictionary, and "10" comes before "3"
LAYERS = [name.removesuffix(".weight") for name in workload.initial_weights() if name.endswith(".weight")]


def logits(params, x):
    """The network."""
    *layers, last = [(params[f"{layer}.weight"], params[f"{layer}.bias"]) for layer in LAYERS]
    for weight, bias in layers:
        if workload.model == "mlp":
            x = jax.nn.relu(x.reshape(len(x), -1) @ weight.T + bias)
        else:  # (B, H, W, C): the only layout in which convolutions are fast on a CPU
            x = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + bias)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    weight, bias = last
    return x.reshape(len(x), -1) @ weight.T + bias


def convert_layout(weights, *, to_torch=False):
    """Convert PyTorch's layout to the channels-last layout of `logits`, or back; the last layer reads an image."""
    if workload.model == "mlp":
        return dict(weights)
    converted = {}
    for name, value in weights.items():
        value = np.asarray(value)
        if value.ndim == 4:
            value = value.transpose((3, 2, 0, 1) if to_torch else (2, 3, 1, 0))
        elif value.ndim == 2:  # (classes, 128 · 4 · 4)
            shape, order = ((4, 4, 128), (0, 3, 1, 2)) if to_torch else ((128, 4, 4), (0, 2, 3, 1))
            value = value.reshape(-1, *shape).transpose(order).reshape(len(value), -1)
        converted[name] = value
    return converted


def loss(params, batch):
    """Mean cross-entropy."""
    log_p = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.take_along_axis(log_p, batch["y"][:, None], axis=1).mean()


loss_grad = jax.grad(loss)


def client_init(received, personal):
    """A client's state: the shared model and, with a personal model, also that and its anchor."""
    return {"w": received} if workload.mu is None else {"w": received, "v": personal, "anchor": received}


def client_step(state, batch):
    """One step of every model of a client, in one compiled function."""
    lr, mu = workload.lr, workload.mu
    updated = dict(state)
    updated["w"] = jax.tree_util.tree_map(lambda p, g: p - lr * g, state["w"], loss_grad(state["w"], batch))
    if mu is not None:
        updated["v"] = jax.tree_util.tree_map(
            lambda p, g, a: p - lr * (g + mu * (p - a)), state["v"], loss_grad(state["v"], batch), state["anchor"]
        )
    return updated


def client_final(received, state):
    """The trained models of a client."""
    return {name: state[name] for name in ("w", "v") if name in state}


def main() -> None:
    requests = RoundRequests(workload)
    data = {
        client: fedjax.ClientDataset({"x": np.ascontiguousarray(np.moveaxis(x, 1, -1)), "y": y.astype(np.int32)})
        for client, (x, y) in workload.all_samples().items()
    }
    fedjax.set_for_each_client_backend(arguments.backend)
    train = fedjax.for_each_client(client_init, client_step, client_final)
    shared = {name: jnp.asarray(value) for name, value in convert_layout(workload.initial_weights()).items()}
    personal = {}
    hparams = {"batch_size": workload.batch_size, "num_epochs": workload.epochs, "drop_remainder": False}

    def batches(client, seed):
        for batch in data[client].shuffle_repeat_batch(seed=seed, **hparams):
            requests.steps += 1 if workload.mu is None else 2
            yield batch

    for number, clients in enumerate(requests):
        inputs = [
            (c, batches(c, seed=number), personal.get(c, shared) if workload.mu is not None else 0) for c in clients
        ]
        trained = []
        for client, models in train(shared, inputs):
            trained.append(models["w"])
            if workload.mu is not None:
                personal[client] = models["v"]
        shared = jax.tree_util.tree_map(lambda *each: sum(each) / len(each), *trained)
        jax.block_until_ready((shared, personal))

    requests.finish(
        convert_layout(shared, to_torch=True),
        {client: convert_layout(weights, to_torch=True) for client, weights in personal.items()},
        fedjax=version("fedjax"),
        jax=jax.__version__,
        backend=arguments.backend,
    )


if __name__ == "__main__":
    main()
