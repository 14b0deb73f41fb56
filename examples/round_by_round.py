"""Your own loop around a federation: stop when the worst tenth of the clients is served well enough."""

import fedtilt as ft
from fedtilt.results import summarise


def main() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=20, classes_per_client=2, outliers="flips")
    method = ft.fedtilt(tau=0, lam=-2)
    for r in ft.simulate([method], federation, ft.models.mlp, rounds=40, participation=0.25, lr=0.1):
        metrics = summarise(r.counts["fedtilt"], r.total, federation.carriers).judged
        print(
            f"round {r.number:2d}: clients {r.selected}, accuracy {metrics.accuracy:.1f} %, worst {metrics.worst:.1f} %"
        )
        if metrics.worst > 80:
            break


if __name__ == "__main__":
    main()
