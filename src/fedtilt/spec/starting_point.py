"""Methods and settings to start from on a table of a given size, and the specs of the real-world federations."""

import math
from typing import Any

from fedtilt.data.published.catalog import CATALOG

FEDERATIONS = [name for name, entry in CATALOG.items() if entry.sites is not None]

_SELECTED = 50  # clients in a round, at most
_LOCAL_STEPS = 20  # of a client in a round, about
_MOST_EPOCHS = 5  # in a round: the models of small clients drift apart with more
_BATCH_SIZES = {256: 16, 2048: 32}  # up to this many rows of the median client; 64 with more


def starting_point(clients: int, rows: int, task: str = "classification") -> dict[str, Any]:
    """FedAvg, Ditto and FedTilt with a perceptron, about as good as a regression on all rows.

    A client takes about 20 steps in a round, so that 30 rounds suffice for small clients too. `rows` are the training
    rows of the median client.
    """
    batch_size = next((size for most, size in _BATCH_SIZES.items() if rows <= most), 64)
    epochs = round(_LOCAL_STEPS / math.ceil(rows / batch_size))
    return {
        "model": {"name": "mlp", "hidden": [32]},
        "train": {
            "rounds": 30,
            "participation": min(1.0, round(_SELECTED / clients, 2) or _SELECTED / clients),
            "epochs": max(1, min(_MOST_EPOCHS, epochs)),
            "batch_size": batch_size,
            "lr": 0.1 if task == "classification" else 0.03,
        },
        "methods": [
            {"preset": "fedavg"},
            {"preset": "ditto", "mu": 1.0},
            {"preset": "fedtilt", "tau": 0.5, "lam": 0.0, "mu": 1.0},  # tau > 0: fair to the rare classes
        ],
    }


def federation_spec(name: str) -> dict[str, Any]:
    """The built-in spec of a real-world federation, with local and pooled models beside the methods."""
    entry = CATALOG[name]
    assert entry.sites is not None
    raw = starting_point(entry.sites.clients, max(1, entry.train // entry.sites.clients))
    return {"name": name, "data": {"name": name}, **raw, "train": raw["train"] | {"baselines": True}}
