"""Your own loop around a federation: stop when the worst tenth of the clients is served well enough."""

import fedtilt as ft


def main() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=20, classes_per_client=2, outliers="flips")
    method = ft.fedtilt(tau=0, lam=-2)
    for r in ft.simulate([method], federation, ft.models.mlp, rounds=40, participation=0.25, lr=0.1):
        metrics = r.metrics("fedtilt")
        print(
            f"round {r.number:2d}: clients {r.selected}, accuracy {metrics.accuracy:.1f} %, worst {metrics.worst:.1f} %"
        )
        if metrics.worst > 80:
            break
    model = r.model("fedtilt", client=3)  # an nn.Module
    x, y = federation.test(3)
    print(f"client 3's own model: {100 * (model(x).argmax(1) == y).float().mean():.1f} % of its test data")


if __name__ == "__main__":
    main()
