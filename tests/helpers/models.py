"""Models of every kind that ways to descend must cope with, and work for them."""

import torch
from torch import Tensor, nn

from fedtilt import models
from fedtilt.training import Batches, LocalJob, make_batches

SHAPE, CLASSES = (1, 8, 8), 4


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])


class Scaled(nn.Sequential):
    """A chain with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.1 * super().forward(x)


class Random(nn.Module):
    """Dropout that no layer tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x.flatten(1), 0.2, self.training))


class Partly(nn.Module):
    """A module with a parameter that its answer does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.idle = nn.Linear(64, CLASSES), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


MODELS = {
    "logistic": lambda: models.logistic(SHAPE, CLASSES),
    "mlp": lambda: models.mlp(SHAPE, CLASSES, hidden=(20, 15)),
    "cnn": lambda: models.cnn(SHAPE, CLASSES, channels=(4, 6)),
    "norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, CLASSES)),
    "bias-free": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, CLASSES)),
    "subclass": lambda: Scaled(nn.Flatten(), nn.Linear(64, CLASSES)),
    "idle part": Partly,
    "lstm": Recurrent,
    "functional dropout": Random,
    "dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 30), nn.Dropout(0.3), nn.ReLU(), nn.Linear(30, CLASSES)
    ),
}
SIZES = (23, 40, 7)  # unequal clients; batches of 10 leave partial last ones, and one client has less than a batch


def work(model: nn.Module, count: int = 2, device: str = "cpu") -> tuple[list[LocalJob], list[Batches]]:
    """For every client a plain lane, a pulled one, and tilted ones, as a run would plan them."""
    rng = torch.Generator().manual_seed(0)
    received = models.flat(model).to(device)
    jobs, feeds = [], []
    for client, size in enumerate(SIZES):
        x = torch.randn(size, *SHAPE, generator=rng).to(device)
        y = torch.randint(0, CLASSES, (size,), generator=rng).to(device)
        data = make_batches(x, y, seed=1, round=2, client=client, epochs=count, batch_size=10)
        own = received + 0.05 * torch.randn(len(received), generator=rng).to(device)
        for start, prox, tau, lam, lr in (
            (received, 0.0, 0.0, 0.0, 0.1),
            (own, 0.5, 0.0, 0.0, 0.05),
            (received, 0.0, 5.0, -2.0, 0.1),
            (own, 0.1, -1.0, float("inf"), 0.02),
        ):
            jobs.append(LocalJob(start=start, anchor=received, prox=prox, tau=tau, lam=lam, lr=lr))
            feeds.append(data)
    return jobs, feeds
