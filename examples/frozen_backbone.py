"""Fine-tune a pretrained model: its backbone is frozen, and the clients train a new head for a task of their own.

The backbone has learned to tell ten digits apart from public images. The clients want to know whether a digit is less
than 5, and have twenty images each. Only the head trains and travels, a twentieth of the model, and it is more accurate
than a whole model that they train from the start.
"""

import torch
import torch.nn.functional as F
from torch import nn

import fedtilt as ft


def backbone() -> nn.Module:
    """Features of an image of 8 × 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip


def pretrained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """A backbone that was trained on public data, as one from a model zoo."""
    torch.manual_seed(0)
    model = nn.Sequential(backbone(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    for _ in range(8):
        for rows in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model[0]


def main() -> None:
    """Train the head of a pretrained model, and for comparison a whole model from the start."""
    digits = ft.data.load("digits")
    public, private = slice(0, 900), slice(900, None)
    features = pretrained(2 * digits.x_train[public] - 1, digits.y_train[public])  # pixels in [-1, 1], as in the run
    data = ft.data.Dataset(
        name="less than 5", x_train=digits.x_train[private], y_train=(digits.y_train[private] < 5).long(),
        x_test=digits.x_test, y_test=(digits.y_test < 5).long(), class_names=("no", "yes"), classes=2, image=True,
    )  # fmt: skip
    federation = ft.Federation.build(data, clients=10, partition="iid", max_train=20)

    def new_head() -> nn.Module:
        return nn.Sequential(features.requires_grad_(False), nn.Linear(128, 2))

    def from_the_start() -> nn.Module:
        return nn.Sequential(backbone(), nn.Linear(128, 2))

    for model, buffers in ((new_head, "frozen"), (from_the_start, "average")):
        result = ft.run(
            [ft.fedavg()], federation, model, rounds=15, participation=0.5, epochs=2, batch_size=5, eval_every=15,
            optimizer="adamw", lr=0.02, schedule="cosine", buffers=buffers,
        )["fedavg"]  # fmt: skip
        trained = sum(p.numel() for p in result.shared.parameters() if p.requires_grad)
        print(f"{model.__name__}: {result.accuracy:.1f} % accuracy, {trained} numbers travel")


if __name__ == "__main__":
    main()
