"""How far each client's update is from those of the others, by round: the server's view of its clients.

They are rows (round, client, distance) of the slot `audit` of the server.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedtilt.engine.client import ClientUpdate
from fedtilt.parts import Tensors


def add_distances(slot: Tensors, updates: Mapping[int, ClientUpdate]) -> dict[str, Tensor]:
    """The slot with the rows of this round added.

    The distance is that from the mean update of the other clients, in units of the median over the clients of the
    round: 1 is an ordinary client.

    Args:
        slot: of the audit: the earlier rows
        updates: client → its update, two or more
    """
    earlier = slot.get("distances", torch.zeros(0, 3)).cpu()
    clients = sorted(updates)
    models = torch.stack([updates[client].parameters for client in clients]).float()  # (C, S)
    distances = (models - models.mean(0)).norm(dim=1).cpu()
    relative = distances / distances.median().clamp_min(torch.finfo(torch.float32).tiny)
    round = float(earlier[-1, 0]) + 1 if len(earlier) else 1.0
    rows = torch.stack([torch.full_like(relative, round), torch.tensor(clients, dtype=torch.float32), relative], 1)
    return {"distances": torch.cat([earlier, rows])}


def distances_by_round(server: Tensors, clients: int) -> Tensor:
    """The distances of all rounds, (rounds, clients); NaN where a client did not take part."""
    earlier_version = server.get("update_distances", torch.zeros(0, 3))
    rows = server.get("audit.distances", earlier_version).cpu()
    rounds = int(rows[-1, 0]) if len(rows) else 0
    distances = torch.full((rounds, clients), torch.nan)
    distances[rows[:, 0].long() - 1, rows[:, 1].long()] = rows[:, 2]
    return distances
