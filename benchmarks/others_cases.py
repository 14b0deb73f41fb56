"""The benchmarks by which other simulators compare themselves: their models, sizes and recipes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from benchmarks.gpu_recipes import resnet18

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
    peers: tuple[str, ...] = ()  # that run in the same process
    peer_rounds: int = 1  # that they are timed for
    published: str = ""


CASES = {
    "pfl-cifar10": Case(
        title="pfl-research, CIFAR-10 IID: 1,000 clients of 50 images, 50 a round, CNN with Dropout",
        model=PflCnn, clients=1000, selected=50, samples=50, epochs=1, batch_size=10, lr=0.1, rounds=1500, timed=1500,
        eval_every=10, test=10_000, peers=("pfl",), peer_rounds=10,
        published="pfl-research 0.4 on one A100: see its paper, arXiv 2404.06430, Table 1",
    ),
    "pfl-stackoverflow": Case(
        title="pfl-research, StackOverflow: 400 clients a round, transformer (3 layers, width 96), 20 tokens",
        model=NextToken, clients=400, selected=400, samples=64, epochs=1, batch_size=16, lr=0.3, rounds=2000, timed=6,
        shape=(LENGTH + 1,), tokens=True, test=400, peers=("pfl",),
        settings={"server_optimizer": {"rule": "adam", "lr": 0.1}, "loss": output_as_loss},
    ),
    "flute-mnist": Case(
        title="FLUTE, LR-MNIST: 1,000 clients of 60 images, 10 a round, logistic regression, on the CPU",
        model=lambda: ft.models.logistic((1, 28, 28), 10), clients=1000, selected=10, samples=60, epochs=1,
        batch_size=10, lr=0.03, rounds=100, timed=100, shape=(1, 28, 28), eval_every=20, test=10_000, device="cpu",
        peers=("pfl", "Flower"), peer_rounds=20,
        published="100 rounds: FLUTE 1:35 min, FedML 3:09; on a CPU FLUTE 3:20, Flower 30:14 (FLUTE's page)",
    ),
    "cpu-cnn": Case(
        title="pfl's CNN with Dropout on the CPU: 100 clients of 50 images, 10 a round",
        model=PflCnn, clients=100, selected=10, samples=50, epochs=1, batch_size=10, lr=0.1, rounds=100, timed=5,
        test=100, device="cpu", peers=("pfl", "Flower"), peer_rounds=5,
    ),
    "cpu-transformer": Case(
        title="A transformer (2 layers, width 32) on the CPU: 100 clients of 64 samples of 20 tokens, 10 a round",
        model=lambda: NextToken(width=32, heads=4, inner=128, layers=2), clients=100, selected=10, samples=64, epochs=1,
        batch_size=16, lr=0.3, rounds=100, timed=5, shape=(LENGTH + 1,), tokens=True, test=100, device="cpu",
        settings={"loss": output_as_loss}, peers=("pfl", "Flower"), peer_rounds=5,
    ),
    "blazefl-lenet": Case(
        title="BlazeFL, CIFAR-10: 100 clients of 500 images, all, LeNet, 5 epochs, batches of 50",
        model=LeNet, clients=100, selected=100, samples=500, epochs=5, batch_size=50, lr=0.1, rounds=5, timed=5,
        published="5 rounds: BlazeFL about 30 s, Flower about 93 s (a chart of arXiv 2604.03606)",
    ),
    "pfllib-resnet18": Case(
        title="PFLlib, Tiny-ImageNet: 20 clients of 4,125 images of 64 × 64, all, ResNet-18, batches of 10",
        model=lambda: resnet18(200), clients=20, selected=20, samples=4125, epochs=1, batch_size=10, lr=0.005,
        rounds=2000, timed=1, shape=(3, 64, 64), classes=200,
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
        device="cpu", peer_rounds=1,
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
