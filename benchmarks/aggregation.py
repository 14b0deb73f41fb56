"""What a tilted aggregation costs beside the least it could: the mean and one Gram product."""

import torch
from measure import best_of, write

from fedtilt.math import aggregate


def main() -> None:
    models = torch.randn(100, 1_000_000, generator=torch.Generator().manual_seed(0))
    times = best_of(
        {
            "mean": lambda: models.mean(0),
            "gram": lambda: models @ models.T,
            "tilted q=5": lambda: aggregate.tilted(models, 5.0),
            "tilted q=-5": lambda: aggregate.tilted(models, -5.0),
            "tilted q=inf": lambda: aggregate.tilted(models, float("inf")),
        },
        turns=7,
    )
    floor = times["mean"] + times["gram"]
    ratios = {name: seconds / floor for name, seconds in times.items() if name.startswith("tilted")}
    print("aggregation of 100 models of 1,000,000 parameters, in units of (mean + one float32 Gram product):")
    for name, ratio in ratios.items():
        print(f"  {name:14s} {ratio:5.2f} ×")
    write("aggregation", {"seconds": times, "ratios": ratios})


if __name__ == "__main__":
    main()
