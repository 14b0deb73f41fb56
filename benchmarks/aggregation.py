"""The cost of a tilted aggregation, in units of its lower bound: the mean and one Gram product."""

import torch

from benchmarks.measure import best_times
from benchmarks.options import make_result_parser, save_result
from fedtilt.math import aggregate


def main() -> None:
    arguments = make_result_parser(__doc__).parse_args()
    parameters, repeats = (1_000, 1) if arguments.quick else (1_000_000, 7)
    models = torch.randn(100, parameters, generator=torch.Generator().manual_seed(0))
    seconds = best_times(
        {
            "mean": lambda: models.mean(0),
            "gram": lambda: models @ models.T,
            "tilted q=5": lambda: aggregate.tilted(models, 5.0),
            "tilted q=-5": lambda: aggregate.tilted(models, -5.0),
            "tilted q=inf": lambda: aggregate.tilted(models, float("inf")),
        },
        repeats,
    )
    lower_bound = seconds["mean"] + seconds["gram"]
    ratios = {name: value / lower_bound for name, value in seconds.items() if name.startswith("tilted")}
    print(f"aggregation of 100 models of {parameters:,} parameters, in units of (mean + one float32 Gram product):")
    for name, ratio in ratios.items():
        print(f"  {name:14s} {ratio:5.2f} ×")
    save_result(arguments, "aggregation", {"seconds": seconds, "ratios": ratios})


if __name__ == "__main__":
    main()
