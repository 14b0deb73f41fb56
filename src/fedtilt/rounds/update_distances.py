"""How far each client's update is from those of the others, by round: the server's view of its clients.

The server keeps it as rows (round, client, distance), so it is checkpointed and resumed with the shared model.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedtilt.parts import Tensors
from fedtilt.rounds.client_update import ClientUpdate

DISTANCES = "update_distances"  # among what the server keeps


def add_distances(server: Tensors, updates: Mapping[int, ClientUpdate]) -> Tensor:
    """The rows of all rounds, with this round added.

    The distance is that from the mean update of the other clients, in units of the median over the clients of the
    round: 1 is an ordinary client.

    Args:
        server: what the server keeps: the earlier rows
        updates: client → its update, two or more
    """
    earlier = server.get(DISTANCES, torch.zeros(0, 3)).cpu()
    clients = sorted(updates)
    models = torch.stack([updates[client].parameters for client in clients]).float()  # (C, S)
    distances = (models - models.mean(0)).norm(dim=1).cpu()
    relative = distances / distances.median().clamp_min(torch.finfo(torch.float32).tiny)
    round = float(earlier[-1, 0]) + 1 if len(earlier) else 1.0
    rows = torch.stack([torch.full_like(relative, round), torch.tensor(clients, dtype=torch.float32), relative], 1)
    return torch.cat([earlier, rows])


def distances_by_round(server: Tensors, clients: int) -> Tensor:
    """The distances of all rounds, (rounds, clients); NaN where a client did not take part."""
    rows = server.get(DISTANCES, torch.zeros(0, 3)).cpu()
    rounds = int(rows[-1, 0]) if len(rows) else 0
    distances = torch.full((rounds, clients), torch.nan)
    distances[rows[:, 0].long() - 1, rows[:, 1].long()] = rows[:, 2]
    return distances
