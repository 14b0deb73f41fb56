"""A model with every part that a run may have: frozen, normalised, shared, and a head that may be local."""

import torch
from torch import Tensor, nn


class RecipeModel(nn.Module):
    """A frozen layer, a hidden layer, BatchNorm and a head."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.backbone = nn.Linear(torch.Size(input_shape).numel(), 12).requires_grad_(False)
        self.body, self.norm, self.head = nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(self.backbone(x.flatten(1)).tanh())).relu())


def other_backbone(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same model with another frozen layer."""
    model = RecipeModel(input_shape, classes)
    with torch.no_grad():
        model.backbone.bias += 0.5
    return model


def other_statistics(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same model with other initial statistics of BatchNorm."""
    model = RecipeModel(input_shape, classes)
    model.norm.running_var.fill_(2.0)
    return model


def other_head(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same model with another initial head."""
    model = RecipeModel(input_shape, classes)
    with torch.no_grad():
        model.head.bias += 0.5
    return model
