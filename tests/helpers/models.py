"""Models of every kind that the training backends must support or reject, and jobs for them."""

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
    """An `nn.Sequential` with another `forward`, and a parameter that is one number."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)


class FunctionalDropout(nn.Module):
    """Dropout without a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x.flatten(1), 0.2, self.training))


class UnusedLayer(nn.Module):
    """A module with parameters that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.unused = nn.Linear(64, CLASSES), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


MODELS = {
    "logistic": lambda: models.logistic(SHAPE, CLASSES),
    "mlp": lambda: models.mlp(SHAPE, CLASSES, hidden=(20, 15)),
    "cnn": lambda: models.cnn(SHAPE, CLASSES, channels=(4, 6)),
    "norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.LayerNorm(12), nn.Tanh(), nn.Linear(12, CLASSES)),
    "bias-free": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, CLASSES)),
    "subclass": lambda: Scaled(nn.Flatten(), nn.Linear(64, CLASSES)),
    "unused layer": UnusedLayer,
    "lstm": Recurrent,
    "functional dropout": FunctionalDropout,
    "dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 30), nn.Dropout(0.3), nn.ReLU(), nn.Linear(30, CLASSES)
    ),
}
SIZES = (23, 40, 7)  # unequal clients: with batches of 10 some are partial, and one client has less than a batch


def make_jobs(model: nn.Module, epochs: int = 2, device: str = "cpu") -> tuple[list[LocalJob], list[Batches]]:
    """For every client a plain job, one with a proximal term, and tilted ones, as a run would plan them."""
    rng = torch.Generator().manual_seed(0)
    received = models.parameters_to_vector(model).to(device)
    jobs, batches = [], []
    for client, size in enumerate(SIZES):
        x = torch.randn(size, *SHAPE, generator=rng).to(device)
        y = torch.randint(0, CLASSES, (size,), generator=rng).to(device)
        number = torch.arange(size, device=device)
        groups = {"ward": number % 3 * 200, "sex": number % 2}
        data = make_batches(x, y, seed=1, round=2, client=client, epochs=epochs, batch_size=10, groups=groups)
        personal = received + 0.05 * torch.randn(len(received), generator=rng).to(device)
        for start, prox, tau, lam, lr in (
            (received, 0.0, 0.0, 0.0, 0.1),
            (personal, 0.5, 0.0, 0.0, 0.05),
            (received, 0.0, 5.0, -2.0, 0.1),
            (personal, 0.1, -1.0, float("inf"), 0.02),
        ):
            jobs.append(LocalJob(start=start, anchor=received, prox=prox, tau=tau, lam=lam, lr=lr))
            batches.append(data)
    return jobs, batches
