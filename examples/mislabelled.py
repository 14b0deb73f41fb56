"""Train a classifier without federation: 45 % of the odd digits are mislabelled, and one line makes it robust."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedtilt as ft


def train_and_evaluate(criterion: nn.Module) -> float:
    """Train with mislabelled samples; return the accuracy on clean test data in percent."""
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images).float() / 16, torch.tensor(digits)
    train, test = slice(0, 1200), slice(1200, None)
    rng = torch.Generator().manual_seed(0)
    mislabelled = (torch.rand(len(y), generator=rng) < 0.45) & (y % 2 == 1)
    noisy = torch.where(mislabelled, (y + 2) % 10, y)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(40):
        for rows in torch.randperm(1200).split(50):
            optimizer.zero_grad()
            criterion(model(x[train][rows]), noisy[train][rows]).backward()
            optimizer.step()
    return 100 * (model(x[test]).argmax(1) == y[test]).float().mean().item()


if __name__ == "__main__":
    plain, tilted = train_and_evaluate(nn.CrossEntropyLoss()), train_and_evaluate(ft.TiltedLoss(lam=-2.0))
    print(f"cross-entropy {plain:.1f} %   TiltedLoss(lam=-2) {tilted:.1f} %")
