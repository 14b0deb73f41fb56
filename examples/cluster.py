"""Train on a Ray cluster, here a new one on this machine, and check that the models have the bits of one process.

pip install -e ".[cluster]"; on a real cluster, `cluster="HOST:PORT"` of its head node.
"""

import torch

import fedtilt as ft


def main() -> None:
    """Train twice, without and with a cluster, and compare the shared models."""
    federation = ft.Federation.build(ft.data.load("digits"), clients=10, max_train=60, outliers="flips")
    method = ft.fedtilt(tau=0, lam=-2)
    settings = {"rounds": 4, "participation": 0.5, "epochs": 2, "lr": 0.1, "eval_every": 4}
    shared = []
    for cluster in (None, "auto"):
        result = ft.run([method], federation, ft.models.mlp, cluster=cluster, **settings)["fedtilt"]
        shared.append(torch.cat([p.flatten() for p in result.shared.parameters()]))
        print(f"cluster {cluster}: {result.accuracy:.1f} % accuracy")
    print(f"bit-identical: {torch.equal(*shared)}")


if __name__ == "__main__":
    main()
