"""pfl (PyTorch): one process per core, its FederatedAveraging, and Ditto built on it.

pfl has no Ditto. Here it is federated averaging whose clients also train a personal model, stored between rounds in
pfl's user states: on disk, since any process may train any client.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from protocol import RoundRequests, Workload
from torch_models import add_prox_gradient, build_model, copy_weights, load_weights


def start_workers(path: str, processes: int) -> list[subprocess.Popen[bytes]]:
    """Start the other processes, each with its rank; pfl reads the rank on import."""
    if processes == 1 or "PFL_WORKER_RANK" in os.environ:
        return []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"127.0.0.1:{port + i}" for i in range(processes))
    os.environ["PFL_WORKER_RANK"] = "0"
    return [
        subprocess.Popen(
            [sys.executable, __file__, path],
            env=os.environ | {"PFL_WORKER_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        for rank in range(1, processes)
    ]


parser = argparse.ArgumentParser()
parser.add_argument("workload")
arguments = parser.parse_args()
workload = Workload.read(arguments.workload)
os.environ.setdefault("PFL_STATES", tempfile.mkdtemp(prefix="pfl-states-"))
workers = start_workers(arguments.workload, workload.workers)
is_first = os.environ.get("PFL_WORKER_RANK", "0") == "0"

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.user_state import DiskUserStateStorage  # noqa: E402
from pfl.exception import UserNotFoundError  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


class Net(torch.nn.Module):
    """The network with the methods that pfl requires."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build_model(workload.model)
        self.steps = 0

    def loss(self, x, y):
        self.steps += 1
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x, y):  # required, never called: this run does not evaluate
        return {}


def prox_step(net, optimizer, batch, train_kwargs, train_step_args, *, anchor, mu):
    """A step of the personal model, with the proximal term."""
    optimizer.zero_grad()
    net.loss(*batch).backward()
    add_prox_gradient(net, anchor, mu)
    optimizer.step()


class Ditto(FederatedAveraging):
    """Federated averaging, and a personal model per client."""

    def __init__(self, storage: DiskUserStateStorage) -> None:
        super().__init__()
        self.storage = storage

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        user = str(user_dataset.user_id)
        try:
            personal = self.storage.load_state(user)
        except UserNotFoundError:
            personal = dict(initial_model_state.items())
        anchor = [initial_model_state[name] for name in model.variable_map]
        model.set_parameters(personal)
        model.do_multiple_epochs_of(
            user_dataset, central_context.model_train_params, prox_step, anchor=anchor, mu=workload.mu
        )
        self.storage.save_state(dict(model.get_parameters().items()), user)
        model.set_parameters(initial_model_state)
        return super().train_one_user(initial_model_state, model, user_dataset, central_context)


class RoundGate(TrainingProcessCallback):
    """Blocks all processes between rounds until the benchmark requests the next one."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.requests = RoundRequests(workload) if is_first else None
        self.rounds = iter(self.requests) if is_first else None

    def on_train_begin(self, *, model):
        self._wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        steps = torch.tensor([self.net.steps])
        if workload.workers > 1:
            torch.distributed.all_reduce(steps)
        if is_first:
            self.requests.steps = int(steps)
        self.net.steps = 0
        self._wait()
        return False, Metrics()

    def _wait(self) -> None:
        if is_first:
            next(self.rounds, None)
        if workload.workers > 1:
            torch.distributed.barrier()


def main() -> None:
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 - pfl derives the seeds that all processes share from this
    data = {c: [torch.from_numpy(x), torch.from_numpy(y)] for c, (x, y) in workload.all_samples().items()}
    clients = chain.from_iterable(workload.schedule)
    users = FederatedDataset(lambda user: Dataset(data[user], user_id=user), lambda: next(clients))
    net = Net()
    load_weights(net.net, workload.initial_weights())
    model = PyTorchModel(net, torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0))
    storage = DiskUserStateStorage(os.environ["PFL_STATES"])
    algorithm = FederatedAveraging() if workload.mu is None else Ditto(storage)
    gate = RoundGate(net)
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=len(workload.schedule), evaluation_frequency=10**9,
            train_cohort_size=len(workload.schedule[0]), val_cohort_size=None,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(
            local_num_epochs=workload.epochs, local_learning_rate=workload.lr, local_batch_size=workload.batch_size
        ),
        callbacks=[gate],
        send_metrics_to_platform=False,
    )  # fmt: skip
    if is_first:
        personal = {}
        for client in data if workload.mu is not None else ():
            weights = storage.load_state(str(client))
            personal[client] = {name.removeprefix("net."): value.numpy() for name, value in weights.items()}
        gate.requests.finish(copy_weights(net.net), personal, pfl=version("pfl"), torch=torch.__version__)
        for worker in workers:
            worker.wait()
        storage.clear_states()


if __name__ == "__main__":
    main()
