"""The cost of a tilted aggregation, in units of its lower bound: the mean and one Gram product."""

import torch

from benchmarks.measure import best_times, write_result
from fedtilt.math import aggregate


def main() -> None:
    models = torch.randn(100, 1_000_000, generator=torch.Generator().manual_seed(0))
    seconds = best_times(
        {
            "mean": lambda: models.mean(0),
            "gram": lambda: models @ models.T,
            "tilted q=5": lambda: aggregate.tilted(models, 5.0),
            "tilted q=-5": lambda: aggregate.tilted(models, -5.0),
            "tilted q=inf": lambda: aggregate.tilted(models, float("inf")),
        },
        repeats=7,
    )
    lower_bound = seconds["mean"] + seconds["gram"]
    ratios = {name: value / lower_bound for name, value in seconds.items() if name.startswith("tilted")}
    print("aggregation of 100 models of 1,000,000 parameters, in units of (mean + one float32 Gram product):")
    for name, ratio in ratios.items():
        print(f"  {name:14s} {ratio:5.2f} ×")
    write_result("aggregation", {"seconds": seconds, "ratios": ratios})


if __name__ == "__main__":
    main()
