"""fedtilt's own simulator; `--backend` forces a backend."""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from protocol import RoundRequests, Workload

import fedtilt as ft
from fedtilt.engine.prepare import prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.models import vector_to_parameters
from fedtilt.simulation import simulate_prepared


def build_federation(workload: Workload) -> ft.Federation:
    """The workload's clients, with one test sample each, since this run does not evaluate."""
    x, y = (torch.from_numpy(np.load(Path(workload.folder, f"{name}.npy"))) for name in "xy")
    clients, n = y.shape
    client_numbers = torch.arange(clients)
    data = ft.data.Dataset(
        name="benchmark", x_train=x.flatten(0, 1), y_train=y.flatten(), x_test=x[:, 0], y_test=y[:, 0], classes=10,
        image=True, client_train=client_numbers.repeat_interleave(n), client_test=client_numbers,
        client_names=tuple(map(str, range(clients))),
    )  # fmt: skip
    return ft.Federation.build(data, partition="column")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    workload = Workload.read(arguments.workload)
    federation = build_federation(workload)
    net = {"mlp": ft.models.mlp, "cnn": ft.models.cnn}[workload.model]()
    net.load_state_dict({name: torch.from_numpy(value) for name, value in workload.initial_weights().items()})
    mu = math.inf if workload.mu is None else workload.mu
    method = ft.fedtilt(workload.tau, workload.lam, mu=mu, name="bench")
    requests = RoundRequests(workload)
    total_rounds = len(workload.schedule) + 1
    settings = TrainSettings(
        rounds=total_rounds, eval_every=total_rounds, participation=len(workload.schedule[0]) / federation.clients,
        epochs=workload.epochs, batch_size=workload.batch_size, lr=workload.lr, optimizer=workload.optimizer,
        momentum=workload.momentum, weight_decay=workload.weight_decay, device="cpu", backend=arguments.backend,
    )  # fmt: skip
    prepared = prepare([method], federation, net, settings)
    rounds = simulate_prepared(prepared)
    # (clients,) steps of one model
    steps_per_client = workload.epochs * -(-federation.train_sizes() // workload.batch_size)
    for clients in requests:
        last = next(rounds)
        if sorted(last.selected) != sorted(clients):
            raise SystemExit(f"the simulator selected {last.selected}, the workload schedules {clients}")
        requests.steps = int(steps_per_client[last.selected].sum()) * (2 if method.has_personal else 1)

    personal = {}
    for client in range(federation.clients) if method.has_personal else ():
        model = last.state.client_states.get(("bench", client)).personal
        if model is not None:
            personal[client] = vector_to_parameters(net, model)
    requests.finish(
        vector_to_parameters(net, last.state.shared["bench"]),
        personal,
        fedtilt=ft.__version__,
        torch=torch.__version__,
        backend=prepared.backend.name,
    )
    rounds.close()


if __name__ == "__main__":
    main()
