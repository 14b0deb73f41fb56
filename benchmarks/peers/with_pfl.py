"""pfl (PyTorch): one process per core, its own FederatedAveraging; Ditto written in its terms.

pfl brings no Ditto. It is federated averaging whose client also trains a personal model, kept between rounds in pfl's
own storage of user states: on disk, since any process may draw any client.
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
from nets import load, network, prox, weights_of
from turns import Turns, work_of


def launch(path: str, processes: int) -> list[subprocess.Popen[bytes]]:
    """Start the other processes and tell each who it is; pfl reads that when it is imported."""
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
parser.add_argument("work")
arguments = parser.parse_args()
work = work_of(arguments.work)
os.environ.setdefault("PFL_STATES", tempfile.mkdtemp(prefix="pfl-states-"))
others = launch(arguments.work, work.workers)
first = os.environ.get("PFL_WORKER_RANK", "0") == "0"

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
    """The network with the methods pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(work.model)
        self.steps = 0

    def loss(self, x, y):
        self.steps += 1
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x, y):  # asked for, never called: nothing is judged here
        return {}


def pulled_step(net, optimizer, batch, train_kwargs, train_step_args, *, anchor, mu):
    """A step of the personal model."""
    optimizer.zero_grad()
    net.loss(*batch).backward()
    prox(net, anchor, mu)
    optimizer.step()


class Ditto(FederatedAveraging):
    """Federated averaging, and a personal model beside it."""

    def __init__(self, storage: DiskUserStateStorage) -> None:
        super().__init__()
        self.storage = storage

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        user = str(user_dataset.user_id)
        try:
            own = self.storage.load_state(user)
        except UserNotFoundError:
            own = dict(initial_model_state.items())
        anchor = [initial_model_state[name] for name in model.variable_map]
        model.set_parameters(own)
        model.do_multiple_epochs_of(
            user_dataset, central_context.model_train_params, pulled_step, anchor=anchor, mu=work.mu
        )
        self.storage.save_state(dict(model.get_parameters().items()), user)
        model.set_parameters(initial_model_state)
        return super().train_one_user(initial_model_state, model, user_dataset, central_context)


class Gate(TrainingProcessCallback):
    """Holds all processes between rounds until the benchmark asks for the next one."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.turns = Turns(work) if first else None
        self.asked = iter(self.turns) if first else None

    def on_train_begin(self, *, model):
        self._wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        steps = torch.tensor([self.net.steps])
        if work.workers > 1:
            torch.distributed.all_reduce(steps)
        if first:
            self.turns.steps = int(steps)
        self.net.steps = 0
        self._wait()
        return False, Metrics()

    def _wait(self) -> None:
        if first:
            next(self.asked, None)
        if work.workers > 1:
            torch.distributed.barrier()


def main() -> None:
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 - pfl draws the seeds that all processes must agree on from here
    data = {c: [torch.from_numpy(x), torch.from_numpy(y)] for c, (x, y) in work.every().items()}
    draws = chain.from_iterable(work.schedule)
    users = FederatedDataset(lambda user: Dataset(data[user], user_id=user), lambda: next(draws))
    net = Net()
    load(net.net, work.start())
    model = PyTorchModel(net, torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0))
    storage = DiskUserStateStorage(os.environ["PFL_STATES"])
    algorithm = FederatedAveraging() if work.mu is None else Ditto(storage)
    gate = Gate(net)
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=len(work.schedule), evaluation_frequency=10**9,
            train_cohort_size=len(work.schedule[0]), val_cohort_size=None,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        callbacks=[gate],
        send_metrics_to_platform=False,
    )  # fmt: skip
    if first:
        personal = {}
        for client in data if work.mu is not None else ():
            own = storage.load_state(str(client))
            personal[client] = {name.removeprefix("net."): value.numpy() for name, value in own.items()}
        gate.turns.finish(weights_of(net.net), personal, pfl=version("pfl"), torch=torch.__version__)
        for other in others:
            other.wait()
        storage.clear_states()


if __name__ == "__main__":
    main()
