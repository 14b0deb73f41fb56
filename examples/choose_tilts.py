"""Choose tilts on validation data: nine settings are trained together, and the choice is compared on test data.

30 % of the labels are wrong. The choice is made twice: by the accuracy, and by that of the worst 10 % of the clients.
"""

from functools import partial
from itertools import product

import fedtilt as ft

MODEL = partial(ft.models.mlp, hidden=(64, 64))


def main() -> None:
    """Train a grid of tilts, print it, and choose by accuracy and by the worst 10 % of the clients."""
    federation = ft.Federation.build(ft.data.load("digits"), clients=20, max_train=60, outliers="flips", validation=0.2)
    methods = [
        ft.fedtilt(tau=tau, lam=lam, name=f"tau {tau}, lam {lam}") for tau, lam in product((0, 1, 5), (-2, 0, 2))
    ]
    result = ft.run(methods, federation, MODEL, rounds=20, participation=0.25, lr=0.1, eval_every=20)

    validation = {name: method.validation for name, method in result.items()}
    for name, metrics in validation.items():
        print(f"{name:<14} validation: accuracy {metrics.accuracy:5.1f} %, worst 10 % {metrics.worst:5.1f} %")
    for what in ("accuracy", "worst"):
        chosen = max(validation, key=lambda name: getattr(validation[name], what))
        test = result[chosen].metrics
        print(f"by {what}: {chosen}; on test data: accuracy {test.accuracy:.1f} %, worst 10 % {test.worst:.1f} %")


if __name__ == "__main__":
    main()
