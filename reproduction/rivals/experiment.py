"""All methods × conditions, each method with the same number of trials: a ranking, and FedTilt against every rival."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from reproduction.chapter import Chapter, Table, Text
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from reproduction.rivals.ranking import (
    OURS,
    RANKED,
    Cell,
    Score,
    cells_of,
    losing_sentence,
    mean_ranks,
    score_all,
)
from reproduction.train_grid import Setting, federation_settings, grid_case, train_grid


def trials(settings: Mapping[str, Any]) -> dict[str, dict[str, Setting]]:
    """Method → name of a trial → its setting; every method has the same number of trials."""
    return {
        method: {f"{method} {number}": setting for number, setting in enumerate(of_method, start=1)}
        for method, of_method in settings["methods"].items()
    }


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition, loss and seed; it trains all trials of all methods with that loss together."""
    settings, result = experiment.settings, []
    by_loss: dict[str, dict[str, Setting]] = {}
    for method, of_method in trials(settings).items():
        by_loss.setdefault(method if method in settings["losses"] else "", {}).update(of_method)
    for data, condition, loss in product(settings["data"], settings["conditions"], by_loss):
        given = settings["conditions"][condition]
        federation = federation_settings(
            {**settings, "conditions": {}}, data, "none", **settings["losses"].get(loss, {})
        )
        federation["outliers"] = given.get("outliers", "none")
        if "attack" in given:
            federation["attack"] = given["attack"]
        for seed in range(options.seeds or settings["seeds"]):
            words = [data, condition, *([loss] if loss else [])]
            result.append(grid_case("-".join(words), federation, seed, by_loss[loss], what=", ".join(words)))
    return result


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train all trials of one case."""
    return train_grid(case.settings, options, on_progress, curves=False)


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """The ranking, where FedTilt loses, and its difference to every rival."""
    cells = cells_of(experiment, results, trials(experiment.settings))
    parts: list[Text | Table] = []
    if cells:
        scores = score_all(cells)
        parts += [_rank_table(cells), *(_accuracy_table(cells, data) for data in {cell.data: None for cell in cells})]
        parts += [Text(markdown=losing_sentence(scores)), _against(scores), *_backdoor(cells)]
    planned = {(data, name) for data in experiment.settings["data"] for name in experiment.settings["conditions"]}
    missing = sorted(planned - {(cell.data, cell.condition) for cell in cells})
    if missing:
        parts.append(Text(markdown="Not measured yet: " + "; ".join(f"{d}, {c}" for d, c in missing) + "."))
    budget = len(next(iter(experiment.settings["methods"].values())))
    lead = f"{experiment.about.strip()} Trials of each method: {budget}."
    return Chapter(title=experiment.title, lead=lead, parts=parts)


def _rank_table(cells: list[Cell]) -> Table:
    """The mean rank of every method over all cells, by accuracy, for the worst clients, and by client fairness."""
    ranks = {metric: mean_ranks(cells, metric) for metric in RANKED}
    methods = sorted(ranks["accuracy"], key=lambda name: (ranks["accuracy"][name], name))
    return Table(
        caption="All methods, ranked",
        columns=["method", "accuracy", "worst 10 %", "client fairness"],
        rows=[[method, *(f"{of_metric[method]:.1f}" for of_metric in ranks.values())] for method in methods],
        notes="Mean rank over all data sets and conditions, on the test data of honest clients; equal values share a "
        "rank, and a method without result is last. Worst 10 %: the accuracy of the worst 10 % of the clients; client "
        "fairness: the spread of accuracy over clients, which says nothing without accuracy: a method that fails all "
        "clients alike has none. The setting of a method in one seed is the trial with the highest accuracy on the "
        "validation data of the other seeds.",
    )


def _accuracy_table(cells: list[Cell], data: str) -> Table:
    """Accuracy under every condition of a data set, the best in bold; methods in the order of their mean rank."""
    ranks, of_data = mean_ranks(cells), [cell for cell in cells if cell.data == data]
    rows: list[list[str | float]] = []
    for method in sorted(ranks, key=lambda name: (ranks[name], name)):
        row: list[str | float] = [method]
        for cell in of_data:
            accuracy = cell.mean(method)
            best = max(value for name in cell.accuracy if (value := cell.mean(name)) is not None)
            text = "—" if accuracy is None else f"{accuracy:.2f}"
            row.append(f"**{text}**" if accuracy == best else text)
        rows.append(row)
    seeds = sorted({len(cell.seeds) for cell in of_data})
    number_of_seeds = " to ".join(str(count) for count in dict.fromkeys((seeds[0], seeds[-1])))
    return Table(
        caption=f"All methods: accuracy on {data}",
        columns=["method", *(cell.condition for cell in of_data)],
        rows=rows,
        notes=f"On the test data of honest clients, mean over {number_of_seeds} seeds, in %; — if no trial converged.",
    )


def _against(scores: list[Score]) -> Table:
    rows: list[list[str | float]] = []
    for score in scores:
        d = score.difference
        text = f"{d.mean:+.2f} ({d.low:+.2f} to {d.high:+.2f})".replace("-", "−")
        rows.append(
            [f"{score.data}, {score.condition}", score.rival, f"**{text}**" if score.survives else text, str(d.pairs),
             f"{d.p_value:.4f}", f"{score.adjusted:.4f}"]
        )  # fmt: skip
    return Table(
        caption=f"{OURS} against every rival: paired differences of accuracy",
        columns=["cell", "against", "difference", "seeds", "p", "p, Holm"],
        rows=rows,
        notes=f"Mean difference in points, positive where {OURS} is better, and its 95 % interval by Student’s t, "
        f"paired by seed; bold where it remains after Holm’s correction over all {len(scores)} comparisons.",
        folded=True,
    )


def _backdoor(cells: list[Cell]) -> list[Table]:
    measured = [cell for cell in cells if cell.attack_success]
    if not measured:
        return []
    methods = list(measured[0].accuracy)
    rows: list[list[str | float]] = [
        [method, *(f"{cell.success(method):.1f}" if cell.success(method) is not None else "—" for cell in measured)]
        for method in methods
    ]
    return [
        Table(
            caption="Success of the backdoor",
            columns=["method", *(f"{cell.data}, {cell.condition}" for cell in measured)],
            rows=rows,
            notes="% of honest clients’ test images with the trigger that become the target class; lower is better.",
        )
    ]
