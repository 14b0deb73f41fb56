"""A round of the simulator beside the plain per-client PyTorch loop, on the same work.

10 clients of 600 samples, 10 epochs, batch 10, SGD, MLP 784-200-200-10; w and v both trained.
"""

import argparse
import copy

import torch
import torch.nn.functional as F
from measure import best_of, write

import fedtilt as ft


def federation(clients: int = 10) -> ft.Federation:
    """Random images: what they show does not change the cost."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * 600, 1, 28, 28), generator=rng, dtype=torch.uint8)
    y = torch.arange(clients * 600) % 10
    data = ft.data.Dataset(
        name="random", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100], classes=10,
        class_names=tuple("0123456789"), image=True, client_train=None, client_test=None, client_names=None,
    )  # fmt: skip
    return ft.Federation.build(data, clients=clients, partition="iid")


def plain_round(fed: ft.Federation, mu: float | None) -> None:
    """What everyone writes first: autograd, torch.optim, one client after the other."""
    shared = ft.models.mlp()
    for client in range(fed.clients):
        x, y = fed.train(client, seed=0, round=1)
        lanes = [copy.deepcopy(shared) for _ in range(1 if mu is None else 2)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in lanes]
        anchor = [p.detach() for p in shared.parameters()]
        for _ in range(10):
            for rows in torch.randperm(len(y)).split(10):
                for i, (net, optimizer) in enumerate(zip(lanes, optimizers, strict=True)):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(net(x[rows]), y[rows])
                    if i and mu:
                        away = sum((p - a).square().sum() for p, a in zip(net.parameters(), anchor, strict=True))
                        loss = loss + mu / 2 * away
                    loss.backward()
                    optimizer.step()


def engine_rounds(fed: ft.Federation, method: ft.Method):
    """One round after the other, workers started once, as in a run."""
    rounds = ft.simulate([method], fed, ft.models.mlp, rounds=10_000, participation=1.0, eval_every=10_000)
    return lambda: next(rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    torch.set_num_threads(2)
    fed = federation()
    contenders = {
        "plain loop, one model": lambda: plain_round(fed, None),
        "fedavg": engine_rounds(fed, ft.fedavg()),
        "plain loop, w and v": lambda: plain_round(fed, 0.01),
        "ditto": engine_rounds(fed, ft.ditto(0.01)),
        "fedtilt": engine_rounds(fed, ft.fedtilt(tau=50, lam=100)),
    }
    for name in ("fedavg", "ditto", "fedtilt"):
        contenders[name]()  # start the workers
    times = best_of(contenders, turns)
    ratios = {
        "fedavg": times["plain loop, one model"] / times["fedavg"],
        "ditto": times["plain loop, w and v"] / times["ditto"],
        "fedtilt": times["plain loop, w and v"] / times["fedtilt"],
    }
    print("a round of 10 clients × 600 samples × 10 epochs, MLP 784-200-200-10, against the plain loop with 2 threads:")
    for name, ratio in ratios.items():
        print(f"  {name:8s} {times[name]:6.2f} s   {ratio:5.2f} × faster")
    write("rounds", {"seconds": times, "ratios": ratios})


if __name__ == "__main__":
    main()
