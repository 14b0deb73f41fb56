"""The plain loop: one client after the other, autograd and torch.optim, all cores inside one operation."""

import argparse
import copy

import torch
from nets import load, network, train_locally, weights_of
from turns import Turns, work_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    work = work_of(parser.parse_args().work)
    torch.set_num_threads(work.cores)
    turns = Turns(work)
    data = {c: (torch.from_numpy(x), torch.from_numpy(y)) for c, (x, y) in work.every().items()}
    shared = network(work.model)
    load(shared, work.start())
    personal: dict[int, torch.nn.Module] = {}
    settings = {"epochs": work.epochs, "size": work.batch_size, "lr": work.lr}

    for clients in turns:
        anchor = [p.detach().clone() for p in shared.parameters()]
        trained = []
        for client in clients:
            x, y = data[client]
            own = copy.deepcopy(shared)
            turns.steps += train_locally(own, x, y, mu=0.0, anchor=anchor, **settings)
            trained.append(own)
            if work.mu is not None:
                own = personal.setdefault(client, copy.deepcopy(shared))
                turns.steps += train_locally(own, x, y, mu=work.mu, anchor=anchor, **settings)
        with torch.no_grad():
            for p, *others in zip(shared.parameters(), *(net.parameters() for net in trained), strict=True):
                p.copy_(torch.stack(others).mean(0))

    turns.finish(weights_of(shared), {c: weights_of(net) for c, net in personal.items()}, torch=torch.__version__)


if __name__ == "__main__":
    main()
