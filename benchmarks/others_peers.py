"""Other simulators on a case of `benchmarks.others_cases`, in this process: pfl, and Flower's client app and FedAvg."""

import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.others_cases import Case, random_data

PACKAGES = {"pfl": "pfl", "Flower": "flwr"}
Users = Sequence[Sequence[Tensor]]  # samples and labels of every client


def installed_peers(case: Case) -> list[str]:
    """The names of the simulators of a case that can be imported."""
    return [name for name in case.peers if importlib.util.find_spec(PACKAGES[name]) is not None]


def measure_peer(name: str, case: Case) -> dict[str, Any]:
    """Seconds of the first round, and of one of those that follow."""
    data = random_data(case)
    assert isinstance(data.x_train, Tensor)
    assert isinstance(data.x_test, Tensor)
    x = data.x_train if case.tokens else as_input(data.x_train)
    rng = torch.Generator().manual_seed(0)
    parts = torch.randperm(len(x), generator=rng).split(case.samples)
    users = [(x[rows].to(case.device), data.y_train[rows].to(case.device)) for rows in parts]
    x_test = data.x_test if case.tokens else as_input(data.x_test)
    test = [x_test.to(case.device), data.y_test.to(case.device)]
    times = [time.perf_counter()]

    def note_time(_: int, net: nn.Module) -> None:
        if case.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    run = {"pfl": partial(run_pfl, test=test), "Flower": run_flower}[name]
    run(case, users, case.peer_rounds + 1, note_time)
    start, first, *_ = times
    return {"first_round_seconds": first - start, "round_seconds": (times[-1] - first) / case.peer_rounds}


def as_input(images: Tensor) -> Tensor:
    """Images of bytes as fedtilt scales them, to [−1, 1]."""
    return images.float() / 127.5 - 1


def _loss(case: Case, outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.mean() if case.tokens else F.cross_entropy(outputs, y)


def run_pfl(
    case: Case, users: Users, rounds: int, after_round: Callable[[int, nn.Module], None], seed: int = 0,
    test: Sequence[Tensor] | None = None,
) -> None:  # fmt: skip
    """Run pfl's FederatedAveraging; `after_round` is called with the round, from 0, and the shared model.

    The test samples and labels are evaluated as often as the case asks for, all at once.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Net(nn.Module):
        """The network with the methods that pfl requires."""

        def __init__(self) -> None:
            super().__init__()
            self.net = case.model()

        def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
            self.eval() if eval else self.train()
            return _loss(case, self.net(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
            return {"loss": Weighted(self.loss(x, y, eval).item() * len(y), len(y))}

    class AfterRound(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            after_round(central_iteration, net.net)
            return False, Metrics()

    np.random.seed(seed)  # noqa: NPY002 - pfl draws its seeds from this
    torch.manual_seed(seed)
    federated = FederatedDataset(
        lambda user: Dataset(users[user], user_id=str(user)),
        lambda: np.random.randint(len(users)),  # noqa: NPY002
    )
    net = Net().to(case.device)
    callbacks: list[Any] = [AfterRound()]
    if test is not None:
        callbacks.insert(0, CentralEvaluationCallback(Dataset(test), frequency=case.eval_every))
    is_adam = "server_optimizer" in case.settings
    central = (torch.optim.Adam if is_adam else torch.optim.SGD)(net.parameters(), lr=0.1 if is_adam else 1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=case.selected,
            val_cohort_size=None,
        ),
        SimulatedBackend(federated, federated),
        PyTorchModel(net, torch.optim.SGD, central_optimizer=central),
        NNTrainHyperParams(
            local_num_epochs=case.epochs, local_learning_rate=case.lr, local_batch_size=case.batch_size
        ),
        callbacks=callbacks,
        send_metrics_to_platform=False,
    )  # fmt: skip


def run_flower(case: Case, users: Users, rounds: int, after_round: Callable[[int, nn.Module], None]) -> None:
    """Flower's client app as its PyTorch quickstart has it, and its FedAvg, without the cost of transport or Ray."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from fedtilt.flower.flwr_internals import task_identity

    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        x, y = users[int(message.content["config"]["client"])]
        net = case.model().to(case.device)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=case.lr)
        loader = DataLoader(TensorDataset(x, y), batch_size=case.batch_size, shuffle=True)
        net.train()
        for _ in range(case.epochs):
            for samples, labels in loader:
                optimizer.zero_grad()
                _loss(case, net(samples), labels).backward()
                optimizer.step()
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict(content), reply_to=message)

    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    shared, strategy = case.model().to(case.device), FedAvg(fraction_evaluate=0.0)
    context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={})
    with task_identity():
        for number in range(rounds):
            arrays = ArrayRecord(shared.state_dict())
            replies = []
            for client in torch.randperm(len(users), generator=rng)[: case.selected].tolist():
                content = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
                replies.append(app(Message(content, dst_node_id=client + 1, message_type="train"), context))
            aggregated, _ = strategy.aggregate_train(number + 1, replies)
            assert aggregated is not None
            shared.load_state_dict(aggregated.to_torch_state_dict())
            after_round(number, shared)
