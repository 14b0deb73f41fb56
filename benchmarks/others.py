"""The benchmarks by which other simulators compare themselves, run here: ours, and theirs where it installs.

    PYTHONPATH=src python -m benchmarks.others --out others.json        # those for a GPU and those for a CPU
    PYTHONPATH=src python -m benchmarks.others --case flute-mnist       # one of them
    PYTHONPATH=src python -m benchmarks.others --quick                  # on the CPU

Random samples of the sizes that a benchmark has: their content does not change the cost. The first round, which
compiles, is timed by itself; a round is the mean of those that follow, with the evaluations that the benchmark asks
for. pfl is run in the same process where it can be imported (`pip install pfl==0.6.0`), with the same model, samples
and recipe. Figures that others publish are marked as such, and were measured on their machines.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from benchmarks.gpu import time_synchronized
from benchmarks.gpu_recipes import resnet18
from benchmarks.options import make_result_parser, save_result

VOCABULARY, LENGTH = 10_000, 20


class PflCnn(nn.Sequential):
    """The network of pfl's CIFAR-10 benchmark."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
            nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip
        for layer in self:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)


class LeNet(nn.Sequential):
    """LeNet-5 with ReLU for images of 3 × 32 × 32."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


class NextToken(nn.Module):
    """A causal transformer; its output is the mean loss of the tokens of a sample, (N, 2), the same in both columns."""

    def __init__(self, width: int = 96, heads: int = 8, inner: int = 1536, layers: int = 3, p: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, inner, p, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([layer, *(type(layer)(width, heads, inner, p, batch_first=True, norm_first=True)
                                              for _ in range(layers - 1))])  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        """The loss of every sample of LENGTH + 1 tokens."""
        seen, expected = x[:, :-1], x[:, 1:]
        places = torch.arange(LENGTH, device=x.device)
        hidden = self.tokens(seen) + self.positions(places)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask)
        scores = self.head(self.norm(hidden))
        losses = F.cross_entropy(scores.flatten(0, 1), expected.flatten(), reduction="none")
        return losses.reshape(expected.shape).mean(1, keepdim=True).expand(-1, 2)


def output_as_loss(outputs: Tensor, _: Tensor) -> Tensor:
    """The loss of a model whose output is its loss."""
    return outputs[:, 0]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One benchmark of another simulator."""

    title: str
    model: Callable[[], nn.Module]
    clients: int
    selected: int
    samples: int  # of a client
    epochs: int
    batch_size: int
    lr: float
    rounds: int  # of the benchmark
    timed: int  # rounds
    shape: tuple[int, ...] = (3, 32, 32)
    tokens: bool = False
    classes: int = 10
    eval_every: int = 10**6
    test: int = 1000  # samples
    device: str = "cuda"
    settings: Mapping[str, Any] = field(default_factory=dict)
    method: Callable[[], ft.Method] = ft.fedavg
    pfl_rounds: int = 0  # that pfl is timed for; 0: it is not run
    published: str = ""


CASES = {
    "pfl-cifar10": Case(
        title="pfl-research, CIFAR-10 IID: 1,000 clients of 50 images, 50 a round, CNN with Dropout",
        model=PflCnn, clients=1000, selected=50, samples=50, epochs=1, batch_size=10, lr=0.1, rounds=1500, timed=1500,
        eval_every=10, test=10_000, pfl_rounds=4,
        published="pfl-research 0.4 on one A100: see its paper, arXiv 2404.06430, Table 1",
    ),
    "pfl-stackoverflow": Case(
        title="pfl-research, StackOverflow: 400 clients a round, transformer (3 layers, width 96), 20 tokens",
        model=NextToken, clients=400, selected=400, samples=64, epochs=1, batch_size=16, lr=0.3, rounds=2000, timed=6,
        shape=(LENGTH + 1,), tokens=True, test=400, pfl_rounds=1,
        settings={"server_optimizer": {"rule": "adam", "lr": 0.1}, "loss": output_as_loss},
    ),
    "flute-mnist": Case(
        title="FLUTE, LR-MNIST: 1,000 clients of 60 images, 10 a round, logistic regression, on the CPU",
        model=lambda: ft.models.logistic((1, 28, 28), 10), clients=1000, selected=10, samples=60, epochs=1,
        batch_size=10, lr=0.03, rounds=100, timed=100, shape=(1, 28, 28), eval_every=20, test=10_000, device="cpu",
        published="100 rounds: FLUTE 1:35 min, FedML 3:09; on a CPU FLUTE 3:20, Flower 30:14 (FLUTE's page)",
    ),
    "blazefl-lenet": Case(
        title="BlazeFL, CIFAR-10: 100 clients of 500 images, all, LeNet, 5 epochs, batches of 50",
        model=LeNet, clients=100, selected=100, samples=500, epochs=5, batch_size=50, lr=0.1, rounds=5, timed=5,
        published="5 rounds: BlazeFL about 30 s, Flower about 93 s (a chart of arXiv 2604.03606)",
    ),
    "pfllib-resnet18": Case(
        title="PFLlib, Tiny-ImageNet: 20 clients of 4,125 images of 64 × 64, all, ResNet-18, batches of 10",
        model=lambda: resnet18(200), clients=20, selected=20, samples=4125, epochs=1, batch_size=10, lr=0.005,
        rounds=2000, timed=2, shape=(3, 64, 64), classes=200,
        published="a round: FedAvg 1.59 min (PFLlib's page, GPU not stated)",
    ),
    "pfllib-resnet18-ditto": Case(
        title="PFLlib, Tiny-ImageNet: the same with Ditto, two models a client",
        model=lambda: resnet18(200), clients=20, selected=20, samples=4125, epochs=1, batch_size=10, lr=0.005,
        rounds=2000, timed=1, shape=(3, 64, 64), classes=200, method=lambda: ft.ditto(0.01),
        published="a round: Ditto 11.78 min (PFLlib's page, GPU not stated)",
    ),
}  # fmt: skip


def quick(case: Case) -> Case:
    """The same in seconds."""
    model = NextToken if case.tokens else case.model
    if case.tokens:
        model = lambda: NextToken(width=8, heads=2, inner=16, layers=1)  # noqa: E731
    elif case.classes == 200:
        model = lambda: resnet18(width=2)  # noqa: E731
    return replace(
        case, model=model, clients=4, selected=2, samples=10, epochs=1, batch_size=5, rounds=2, timed=1,
        test=40, classes=10,
        device="cpu", pfl_rounds=min(1, case.pfl_rounds),
    )  # fmt: skip


def random_data(case: Case) -> ft.data.Dataset:
    """Random images or tokens."""
    rng = torch.Generator().manual_seed(0)
    train = case.clients * case.samples
    shape = (train + case.test, *case.shape)
    x = torch.randint(0, VOCABULARY, shape, generator=rng)
    if not case.tokens:
        x = (x % 256).to(torch.uint8)
    classes = 2 if case.tokens else case.classes
    y = torch.arange(len(x)) % classes
    return ft.data.Dataset(
        name="random", x_train=x[:train], y_train=y[:train], x_test=x[train:], y_test=y[train:], classes=classes,
        image=not case.tokens,
    )  # fmt: skip


def measure_ours(case: Case, precision: str) -> dict[str, Any]:
    """Seconds of the first round, and of one of those that follow."""
    federation = ft.Federation.build(random_data(case), clients=case.clients, partition="iid")
    torch.manual_seed(0)
    rounds = ft.simulate(
        [case.method()], federation, case.model(), rounds=case.timed + 1, participation=case.selected / case.clients,
        epochs=case.epochs, batch_size=case.batch_size, lr=case.lr, eval_every=min(case.eval_every, case.timed + 1),
        device=case.device, precision=precision, **case.settings,
    )  # fmt: skip
    first: list[ft.Round] = []
    first_seconds = time_synchronized(lambda: first.append(next(rounds)))
    seconds = time_synchronized(lambda: list(rounds))
    backend = first[0].backend.describe()
    return {"first_round_seconds": first_seconds, "round_seconds": seconds / case.timed, "backend": backend}


def measure_pfl(case: Case) -> dict[str, Any]:
    """The same with pfl in this process: its FederatedAveraging, after a first round."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
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
            outputs = self.net(x)
            return outputs.mean() if case.tokens else F.cross_entropy(outputs, y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
            return {"loss": Weighted(self.loss(x, y, eval).item() * len(y), len(y))}

    class Clock(TrainingProcessCallback):
        """The time of every round."""

        times: list[float]

        def on_train_begin(self, *, model: Any) -> Metrics:
            self.times = [time.perf_counter()]
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
            return False, Metrics()

    np.random.seed(0)  # noqa: NPY002 - pfl draws its seeds from this
    torch.manual_seed(0)
    data = random_data(case)
    assert isinstance(data.x_train, Tensor)
    x = data.x_train if case.tokens else data.x_train.float() / 127.5 - 1
    parts = torch.randperm(len(x)).split(case.samples)
    users = [[x[rows].to(case.device), data.y_train[rows].to(case.device)] for rows in parts]
    federated = FederatedDataset(
        lambda user: Dataset(users[user], user_id=str(user)),
        lambda: np.random.randint(len(users)),  # noqa: NPY002
    )
    net, clock = Net().to(case.device), Clock()
    is_adam = "server_optimizer" in case.settings
    central = (torch.optim.Adam if is_adam else torch.optim.SGD)(net.parameters(), lr=0.1 if is_adam else 1.0)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=case.pfl_rounds + 1, evaluation_frequency=10**9, train_cohort_size=case.selected,
            val_cohort_size=None,
        ),
        SimulatedBackend(federated, federated),
        PyTorchModel(net, torch.optim.SGD, central_optimizer=central),
        NNTrainHyperParams(
            local_num_epochs=case.epochs, local_learning_rate=case.lr, local_batch_size=case.batch_size
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )  # fmt: skip
    _, first, *others = clock.times
    return {"first_round_seconds": first - clock.times[0], "round_seconds": (others[-1] - first) / len(others)}


def measure(name: str, case: Case, precisions: list[str], with_pfl: bool) -> list[dict[str, Any]]:
    """A row for every implementation; one that fails says why."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        f"fedtilt, {precision}": (lambda precision=precision: measure_ours(case, precision)) for precision in precisions
    }
    if with_pfl and case.pfl_rounds:
        runs["pfl"] = lambda: measure_pfl(case)
    rows = []
    for label, run in runs.items():
        row: dict[str, Any] = {"case": name, "title": case.title, "implementation": label, "rounds": case.rounds}
        row |= run()
        rows.append(row)
        seconds = row["round_seconds"]
        print(
            f"{name:18s} {label:18s} {1e3 * seconds:10.2f} ms a round, {case.rounds} rounds in "
            f"{seconds * case.rounds:8.1f} s, first round {row['first_round_seconds']:.1f} s",
            flush=True,
        )
    return rows


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--precision", action="append", choices=("float32", "tf32", "bfloat16"), help="on the GPU")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    options: argparse.Namespace = parser.parse_args()
    names = options.case or list(CASES)
    cases = {name: quick(CASES[name]) if options.quick else CASES[name] for name in names}
    if not torch.cuda.is_available():
        skipped = [name for name, case in cases.items() if case.device == "cuda"]
        cases = {name: case for name, case in cases.items() if name not in skipped}
        if skipped:
            print(f"skipped, because this machine has no CUDA device: {', '.join(skipped)}")
    with_pfl = not options.no_peers and importlib.util.find_spec("pfl") is not None
    rows: list[dict[str, Any]] = []
    for name, case in cases.items():
        on_gpu = case.device == "cuda"
        precisions = (options.precision or ["tf32", "bfloat16"]) if on_gpu else ["float32"]
        rows += measure(name, case, precisions, with_pfl)
        if case.published:
            print(f"{name:18s} published: {case.published}")
        save_result(options, "others", {"rows": rows}, case.device)


if __name__ == "__main__":
    main()
