"""fedtilt's own simulator; `--backend` forces a backend."""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from turns import Turns, Work, work_of

import fedtilt as ft
from fedtilt.models import unflat
from fedtilt.training import choose_backend


def federation(work: Work) -> ft.Federation:
    """The clients of the work; one test sample each, since nothing is judged here."""
    x, y = (torch.from_numpy(np.load(Path(work.folder, f"{name}.npy"))) for name in "xy")
    clients, n = y.shape
    owner = torch.arange(clients)
    data = ft.data.Dataset(
        name="benchmark", x_train=x.flatten(0, 1), y_train=y.flatten(), x_test=x[:, 0], y_test=y[:, 0], classes=10,
        image=True, client_train=owner.repeat_interleave(n), client_test=owner,
        client_names=tuple(map(str, range(clients))),
    )  # fmt: skip
    return ft.Federation.build(data, partition="column")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    work = work_of(arguments.work)
    fed = federation(work)
    net = {"mlp": ft.models.mlp, "cnn": ft.models.cnn}[work.model]()
    net.load_state_dict({name: torch.from_numpy(value) for name, value in work.start().items()})
    method = ft.Method(name="bench", tau=work.tau, lam=work.lam, mu=math.inf if work.mu is None else work.mu)
    turns = Turns(work)
    rounds = ft.simulate(
        [method], fed, net, rounds=len(work.schedule) + 1, participation=len(work.schedule[0]) / fed.clients,
        epochs=work.epochs, batch_size=work.batch_size, lr=work.lr, eval_every=len(work.schedule) + 1, device="cpu",
        backend=arguments.backend,
    )  # fmt: skip
    per_client = work.epochs * -(-fed.train_sizes() // work.batch_size)  # (clients,) steps of one model
    for clients in turns:
        last = next(rounds)
        if sorted(last.selected) != sorted(clients):
            raise SystemExit(f"the simulator selected {last.selected} where the work says {clients}")
        turns.steps = int(per_client[last.selected].sum()) * (2 if method.personal else 1)

    keys = [client for client in range(fed.clients) if method.personal]
    kept = {client: last.state.client_states.get(("bench", client)) for client in keys}
    turns.finish(
        unflat(net, last.state.shared["bench"]),
        {client: unflat(net, own) for client, own in kept.items() if own is not None},
        fedtilt=ft.__version__, torch=torch.__version__, backend=choose_backend(net, "cpu", arguments.backend),
    )  # fmt: skip
    rounds.close()


if __name__ == "__main__":
    main()
