"""Iterate over the rounds of a simulation: stop when the worst 10 % of the clients reach 80 % accuracy."""

import fedtilt as ft


def main() -> None:
    """Train round by round, then evaluate the personal model of one client."""
    federation = ft.Federation.build(ft.data.load("digits"), clients=20, classes_per_client=2, outliers="flips")
    method = ft.fedtilt(tau=0, lam=-2)
    for r in ft.simulate([method], federation, ft.models.mlp, rounds=40, participation=0.25, lr=0.1):
        metrics = r.metrics("fedtilt")
        accuracies = f"accuracy {metrics.accuracy:.1f} %, worst {metrics.worst:.1f} %"
        print(f"round {r.number:2d}: clients {r.selected}, {accuracies}")
        if metrics.worst > 80:
            break
    model = r.model("fedtilt", client=3)  # an nn.Module
    x, y = federation.test(3)
    print(f"personal model of client 3: {100 * (model(x).argmax(1) == y).float().mean():.1f} % on its test data")


if __name__ == "__main__":
    main()
