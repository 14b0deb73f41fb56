"""The plain loop: one client after another, autograd and torch.optim, all cores inside one operation or `--threads`."""

import argparse
import copy

import torch
from protocol import RoundRequests, Workload
from torch_models import build_model, copy_weights, load_weights, train_locally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    workload = Workload.read(arguments.workload)
    torch.set_num_threads(arguments.threads or workload.cores)
    requests = RoundRequests(workload)
    data = {c: (torch.from_numpy(x), torch.from_numpy(y)) for c, (x, y) in workload.all_samples().items()}
    shared = build_model(workload.model)
    load_weights(shared, workload.initial_weights())
    personal: dict[int, torch.nn.Module] = {}

    for clients in requests:
        anchor = [p.detach().clone() for p in shared.parameters()]
        client_nets = []
        for client in clients:
            x, y = data[client]
            net = copy.deepcopy(shared)
            requests.steps += train_locally(net, x, y, workload, anchor=anchor)
            client_nets.append(net)
            if workload.mu is not None:
                net = personal.setdefault(client, copy.deepcopy(shared))
                requests.steps += train_locally(net, x, y, workload, mu=workload.mu, anchor=anchor)
        with torch.no_grad():
            for p, *trained in zip(shared.parameters(), *(net.parameters() for net in client_nets), strict=True):
                p.copy_(torch.stack(trained).mean(0))

    personal_weights = {client: copy_weights(net) for client, net in personal.items()}
    requests.finish(copy_weights(shared), personal_weights, torch=torch.__version__)


if __name__ == "__main__":
    main()
