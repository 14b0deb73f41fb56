"""Published figures of client data fairness that contradict the published accuracy."""

import math
from collections.abc import Sequence

from reproduction.chapter import Table
from reproduction.experiment import Experiment
from reproduction.experiments.paired import PAPER_METRICS, row_titles

DATA = ("mnist", "fashion-mnist")  # clients have two classes of nearly equal size in the test data
_ACCURACY, _SPREAD = (
    [metric.key for metric in PAPER_METRICS].index(key) for key in ("accuracy", "client_data_fairness_mean")
)


def largest_spread(accuracy: float, share: float = 0.5) -> float:
    """The largest mean spread inside clients of two classes, in points, given the mean accuracy in percent.

    A client with class accuracies a ≤ b has a spread (population standard deviation) of (b − a) / 2. The gap is
    largest if all errors are in the smaller class: then b = 100 and a = 100 − (100 − accuracy) / share. The bound is
    linear in the accuracy, so it holds for means over clients too.

    >>> largest_spread(96.0), largest_spread(96.0, share=0.25)
    (4.0, 8.0)

    Args:
        accuracy: Mean over clients, in percent.
        share: The share of the smaller class in a client's test data.
    """
    return (100 - accuracy) / (2 * share)


def impossible_table(experiments: Sequence[Experiment]) -> Table | None:
    """The paper's rows with the bound next to the printed figure; None without published numbers."""
    rows: list[list[str | float]] = []
    impossible = with_sample_std = 0
    shares = []
    for experiment in experiments:
        for data in DATA:
            for row, numbers in experiment.published.get(data, {}).items():
                accuracy, spread = numbers[_ACCURACY], numbers[_SPREAD]
                bound = largest_spread(accuracy)
                if spread > bound:
                    impossible += 1
                    shares.append(bound / (2 * spread))
                with_sample_std += spread > math.sqrt(2) * bound
                verdict = "**impossible**" if spread > bound else "possible"
                rows.append([experiment.title, data, row_titles(experiment)[row], accuracy, spread, bound, verdict])
    if not rows:
        return None
    smallest = math.ceil(100 * max(shares, default=0.0)) / 100  # rounded up, so that “above” is right
    return Table(
        caption=f"{impossible} of the paper’s {len(rows)} figures of client data fairness on MNIST and Fashion-MNIST "
        "are impossible, given its accuracies",
        columns=["table", "data", "method", "accuracy", "client data fairness, mean", "at most", ""],
        rows=rows,
        notes="A client with two classes of test accuracy a ≤ b has a spread of (b − a) / 2. If the smaller class has "
        "a share p of its test data, the gap is largest when all errors are in that class: the spread is at most "
        "(100 − accuracy) / (2p), and so is its mean over clients. We assume p = 1/2, as nearly holds for these test "
        "sets: their classes are of equal size in Fashion-MNIST, and the most unequal pair of MNIST has p = 0.44. All "
        f"{impossible} stay impossible for any p above {smallest:.2f}. We also assume the population standard "
        "deviation; with the sample standard deviation, √2 times as large for two classes, "
        f"{with_sample_std} are impossible. And we assume that both figures are means over the same clients, all of "
        "two classes.",
        folded=True,
    )
