"""Models and a transform of the user's own."""

from torch import Tensor, nn


def own(input_shape: tuple[int, ...], classes: int, width: int = 4) -> nn.Module:
    """One hidden layer of this width, for digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))


def normalised(classes: int) -> nn.Module:
    """A model with buffers, for digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


def mirrored(x: Tensor) -> Tensor:
    """Batches of images, mirrored."""
    return x.flip(-1)
