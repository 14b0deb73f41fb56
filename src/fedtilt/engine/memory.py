"""Whether a run fits into memory: checked before it trains and, for a built-in model, before the model is built.

The estimate counts models, not activations and data: those of the server, those that the clients of a round send, and
those in training with their gradients and the state of the optimiser.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.models import trained_parameters

_OPTIMIZER_TENSORS = {"adam": 2, "adamw": 2}  # besides sgd, which has one with momentum


def check_memory(
    model: nn.Module, methods: Sequence[Method], settings: TrainSettings, *, clients: int, workers: int,
    device: torch.device,
) -> None:  # fmt: skip
    """Refuse a run whose models do not fit into memory.

    Args:
        model: the model, or one of `build_without_storage`
        methods: the methods of the run
        settings: the optimisers
        clients: how many send a model to this process in a round
        workers: worker processes; 0: none
        device: where models are trained
    """
    trained = sum(p.numel() for p in trained_parameters(model).values())
    total = sum(p.numel() for p in model.parameters())
    kept = models_kept(methods, settings, clients=clients, workers=workers)
    needed, available = 4 * (kept * trained + total), available_bytes(device)
    if available is not None and needed > available:
        raise InputError(
            f"the run keeps {kept + 1} models of {total:,} parameters, about {_gigabytes(needed)}, and "
            f"{_gigabytes(available)} of memory are available; use a smaller model, or a smaller participation, fewer "
            "methods or workers"
        )


def models_kept(methods: Sequence[Method], settings: TrainSettings, *, clients: int, workers: int) -> int:
    """How many trained models a round has in memory besides the network itself."""
    # of a client: its models, the vector of a correction, and which parameters train first
    jobs = sum(1 + m.has_personal + (m.correction is not None) + _trains_apart(m) for m in methods)
    optimizers = [m.optimizer or settings.server_optimizer for m in methods]
    server = sum(1 if o is None else 1 + len(o.init(torch.zeros(0))) for o in optimizers)  # w, and the optimiser's slot
    client = settings.client_optimizer
    optimizer = _OPTIMIZER_TENSORS.get(client.name, int(client.momentum > 0))
    in_training = 2 + optimizer  # parameters, gradients, state of the optimiser
    initial = 1
    return initial + server + clients * jobs + max(1, workers) * (in_training + jobs * (workers > 0))


def available_bytes(device: torch.device) -> int | None:
    """The memory that is free for models; None if the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = [bytes_ for bytes_ in (_available_in_system(), _limit_of_container()) if bytes_ is not None]
    return min(limits, default=None)


def _available_in_system() -> int | None:
    """What the kernel can give without swapping; elsewhere than on Linux, the whole memory."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        if "MemAvailable" in fields:
            return 1024 * int(fields["MemAvailable"].split()[0])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has none
        return None


def _limit_of_container(path: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 1e10 else f"{size / 1e9:.1f} GB"


def _trains_apart(method: Method) -> bool:
    """Whether some parameters of the shared model train while the others do not."""
    return method.local is not None and (method.local.first_epochs is not None or not method.local.trains)
