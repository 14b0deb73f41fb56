"""The model, the data of a client, and one round of training and testing in plain PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedtilt as ft


class Net(nn.Module):
    """A small convolutional network with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def load_data(partition_id, num_partitions, batch_size=32):
    """The training and test batches of a client: every n-th digit of scikit-learn's, the last fifth for tests."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[partition_id::num_partitions], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels[partition_id::num_partitions])
    split = len(y) * 4 // 5
    order = torch.Generator().manual_seed(partition_id)
    train = DataLoader(TensorDataset(x[:split], y[:split]), batch_size, shuffle=True, generator=order)
    return train, DataLoader(TensorDataset(x[split:], y[split:]), batch_size)


def train(net, batches, epochs, lr, lam=0.0):
    """Train a model; returns the mean loss of the steps."""
    criterion = ft.TiltedLoss(lam=lam)  # the client's half of FedTilt; lam = 0 is nn.CrossEntropyLoss
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    losses = []
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net, batches):
    """The share of correct predictions."""
    net.eval()
    correct = sum((net(x).argmax(1) == y).sum().item() for x, y in batches)
    return correct / len(batches.dataset)
