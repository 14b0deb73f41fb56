"""All methods on test data of other seeds, each with the settings chosen by equal tuning."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.verdicts import LEVEL, holm
from fedtilt.report.compare import Metric
from fedtilt.report.summary import format_interval, format_mean_std
from reproduction.chapter import Chapter, Table, Text
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results, by_seed
from reproduction.experiments.chosen import chosen_settings
from reproduction.experiments.comparison_claims import verdicts
from reproduction.experiments.paired import COMPARED_METRICS, TITLES, DatasetComparison, clients_of, condition_name
from reproduction.records import HOW_COMPARED, Difference, Outcome, methods_of, outcome
from reproduction.training import Setting, federation_settings, grid_case, train_grid, trial_name

METHOD_TITLES = {
    "fedtilt": "FedTilt",
    "ditto": "Ditto",
    "fedavg_finetuned": "FedAvg with fine-tuning",
    "local": "local training only",
    "term": "TERM",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
}
NOISY = "-noisy"  # ends the rows whose settings are chosen on noisy validation data
_SPLITS = {"validation": "", "noisy_validation": NOISY}
_VARIANTS = {
    "fedtilt-captions": "FedTilt (tau −50, lam 50, not tuned)",
    "fedtilt-text": "FedTilt (tau 50, lam −10, not tuned)",
    **{f"{method}-last": f"{METHOD_TITLES[method]} (v from the first received w)" for method in ("ditto", "fedtilt")},
    **{f"{method}-initial": f"{METHOD_TITLES[method]} (v from w⁰)" for method in ("ditto", "fedtilt")},
}
ROW_TITLES = METHOD_TITLES | {f"{row}{NOISY}": title for row, title in METHOD_TITLES.items()} | _VARIANTS


def row_settings(settings: Mapping[str, Any], data: str, condition: str) -> dict[str, Setting]:
    """Row → its setting; empty where no settings are chosen yet.

    Args:
        settings: Those of the experiment.
        data: The data set.
        condition: Clean, or the kind of outliers.
    """
    chosen = chosen_settings().get(data, {}).get(condition)
    if chosen is None:
        return {}
    rows = {
        f"{method}{suffix}": {"preset": method, **chosen[split][method]}
        for split, suffix in _SPLITS.items()
        for method in chosen[split]
    }
    for method in ("ditto", "fedtilt") if settings[data].get("personal_starts", True) else ():
        last = {key: value for key, value in rows[method].items() if key != "personal_start"}
        rows |= {f"{method}-last": last, f"{method}-initial": last | {"personal_start": "initial"}}
    return rows | dict(settings[data].get("untuned", settings["untuned"]).get(condition, {}))


def compare_cells(experiment: Experiment, results: Results) -> dict[str, DatasetComparison]:
    """“data condition” → its comparison, from the cases that have results; without rows where there are none."""
    settings, cells = experiment.settings, {}
    for data, condition in product(settings["data"], map(condition_name, settings["outliers"])):
        comparison = DatasetComparison(
            data=data, condition=condition, titles=ROW_TITLES, clients=clients_of(settings, data)
        )
        rows = row_settings(settings, data, condition)
        for seed, result in by_seed(results, f"{data}-{condition}").items():
            comparison.diverged.update(result["diverged"])
            methods = methods_of(result)
            for row, setting in rows.items():
                if trial_name(setting) in methods:
                    comparison.rows.setdefault(row, {})[seed] = methods[trial_name(setting)]
        cells[f"{data} {condition}"] = comparison
    return cells


OURS = "fedtilt"
RIVALS = ("fedavg_finetuned", "ditto", "local", "term", "fedprox", "fedavg")
_OUTCOMES: dict[Outcome, str] = {
    "better": "better", "not told apart": "not told apart", "worse": "worse", "ahead": "one seed: ahead",
    "not ahead": "one seed: not", "not measured": "not measured",
}  # fmt: skip


class CellScore(NamedTuple):
    """FedTilt against one rival on one metric, in one cell: a data set under one condition."""

    data: str
    condition: str
    rival: str
    noisy: bool  # whether the settings of both are chosen on noisy validation data
    metric: Metric
    difference: Difference | None  # positive where FedTilt is better; None: not measured
    adjusted: float = 1.0  # the p-value after Holm's correction

    @property
    def outcome(self) -> Outcome:
        """The outcome by the 95 % interval."""
        return outcome(self.difference)

    @property
    def survives(self) -> bool:
        """Whether the difference is significant after Holm's correction."""
        return self.adjusted <= LEVEL

    @property
    def test(self) -> tuple[object, ...] | None:
        """What identifies the test: settings chosen alike on both kinds of validation data make one test, not two.

        None: there is no test of one seed, or where nothing is known.
        """
        if self.difference is None or self.difference.seeds == 1 or not self.difference.is_known:
            return None
        return self.data, self.condition, self.rival, self.metric.key, self.difference


def score_all(comparisons: Iterable[DatasetComparison]) -> list[CellScore]:
    """FedTilt against every rival on every metric; all different tests with several seeds are corrected together."""
    scores = []
    for comparison, noisy, rival, metric in product(comparisons, (False, True), RIVALS, COMPARED_METRICS):
        suffix = NOISY if noisy else ""
        found = comparison.difference(f"{OURS}{suffix}", f"{rival}{suffix}", metric)
        scores.append(CellScore(comparison.data, comparison.condition, rival, noisy, metric, found))
    p_values = {test: s.difference.verdict.p_value for s in scores if s.difference is not None and (test := s.test)}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return [score._replace(adjusted=adjusted[test]) if (test := score.test) else score for score in scores]


def count_tests(scores: Sequence[CellScore]) -> int:
    """The number of tests that Holm's correction counts."""
    return len({score.test for score in scores} - {None})


def outcome_table(scores: Sequence[CellScore], *, by_metric: bool) -> Table:
    """How often FedTilt is better than each rival, tied, or worse; and how often after the correction.

    Args:
        scores: All scores.
        by_metric: Whether a row counts one metric or all five.
    """
    groups: dict[tuple[str, ...], list[CellScore]] = {}
    for score in scores:
        metric = (TITLES[score.metric.key],) if by_metric else ()
        key = ("noisy" if score.noisy else "clean", METHOD_TITLES[score.rival], *metric)
        groups.setdefault(key, []).append(score)
    groups = {key: groups[key] for key in sorted(groups, key=lambda key: key[0])}  # clean, then noisy
    groups = {key: group for key, group in groups.items() if any(score.difference is not None for score in group)}
    counts = {key: Counter(score.outcome for score in group) for key, group in groups.items()}
    always = ("better", "not told apart", "worse")  # other columns only where they are not empty
    outcomes = [o for o in _OUTCOMES if o in always or any(count[o] for count in counts.values())]
    rows: list[list[str | float]] = []
    for key, group in groups.items():
        surviving = Counter(score.outcome for score in group if score.survives)
        corrected = [str(surviving[outcome]) for outcome in ("better", "worse")]
        rows.append([*key, *(str(counts[key][outcome]) for outcome in outcomes), *corrected])
    cells = len({(score.data, score.condition) for score in scores})
    what = "by metric" if by_metric else f"all five metrics, {cells} cells"
    columns = ["validation", "against", *(["metric"] if by_metric else []), *(_OUTCOMES[o] for o in outcomes)]
    return Table(
        caption=f"FedTilt against the others: how often it is better or worse, {what}",
        columns=[*columns, "better, Holm", "worse, Holm"],
        rows=rows,
        notes="Validation: the data that settings are chosen on, clean or with the outliers of the training data. A "
        "cell is one data set under one condition. Better and worse mean: the 95 % interval of the difference does not "
        f"contain 0; of two equal methods, one is better in at most 2.5 % of the comparisons by chance. {HOW_COMPARED} "
        "The last two columns count what remains after Holm’s correction over the "
        f"{count_tests(scores)} different comparisons (all rivals, metrics and cells, both kinds of validation data): "
        "with a probability of at least 95 %, none of these is chance. The five metrics of a cell are not independent.",
        folded=by_metric,
    )


def difference_table(scores: Sequence[CellScore], rival: str) -> Table:
    """Every difference to one rival, with its interval and p-values."""
    kinds: dict[tuple[object, ...], list[CellScore]] = {}
    for score in scores:
        if score.rival == rival and score.test:
            kinds.setdefault(score.test, []).append(score)
    rows: list[list[str | float]] = []
    for same in kinds.values():
        score, difference = same[0], same[0].difference
        assert difference is not None
        text = format_interval(difference.verdict)
        rows.append(
            [
                score.condition, score.data, "both" if len(same) == 2 else "noisy" if score.noisy else "clean",
                TITLES[score.metric.key], f"**{text}**" if difference.verdict.sign() else text,
                str(difference.seeds), f"{difference.verdict.p_value:.4f}", f"{score.adjusted:.4f}",
            ]
        )  # fmt: skip
    title = METHOD_TITLES[rival]
    return Table(
        caption=f"FedTilt against {title}: differences, intervals and p-values",
        columns=["condition", "data", "validation", "metric", "difference", "seeds", "p", "p, Holm"],
        rows=rows,
        notes="Mean difference in points, positive where FedTilt is better, and its 95 % interval, bold where that "
        f"does not contain 0. {HOW_COMPARED} Validation: the data that settings are chosen on; “both” where both kinds "
        "choose the same settings of both methods. p: two-sided; Holm: corrected over all comparisons of FedTilt that "
        "this page counts.",
        folded=True,
    )


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition and seed, where settings are chosen; it trains all methods together."""
    settings, result = experiment.settings, []
    for name, outliers in product(settings["data"], settings["outliers"]):
        federation, condition = federation_settings(settings, name, outliers), condition_name(outliers)
        rows = row_settings(settings, name, condition)
        if not rows:
            continue  # the chapter names the cell
        methods = {trial_name(setting): setting for setting in rows.values()}  # equal settings are trained once
        case, what, parts = f"{name}-{condition}", f"{name}, {condition}", ("methods", "settings", "diverged")
        for seed in range(options.seeds or settings[name].get("seeds") or settings["seeds"]):
            result.append(
                grid_case(case, federation, seed, methods, what=what, parts=parts, grid=", ".join(sorted(methods)))
            )
    return result


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the methods of one case; only metrics on test data are kept."""
    result = train_grid(case.settings, options, on_progress, curves=False)
    methods = {name: {"test": method["test"]} for name, method in result["methods"].items()}
    return {key: result[key] for key in ("settings", "diverged", "samples")} | {"methods": methods}


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """FedTilt against every rival, a table of every cell, verdicts."""
    cells = compare_cells(experiment, results)
    measured = {where: cell for where, cell in cells.items() if cell.seeds}
    parts: list[Text | Table] = []
    if measured:
        scores = score_all(measured.values())
        parts += [outcome_table(scores, by_metric=by_metric) for by_metric in (False, True)]
        parts += [difference_table(scores, rival) for rival in ("fedavg_finetuned", "ditto")]
        parts += [_cell_table(experiment, cell) for cell in measured.values()]
    missing = [where for where in cells if where not in measured]
    if missing:
        parts.append(Text(markdown=f"Not measured yet: {', '.join(missing)}."))
    diverged = {why: where for where, cell in measured.items() for why in cell.diverged.values()}
    if diverged:
        listed = "; ".join(f"{where}: {why}" for why, where in diverged.items())
        parts.append(Text(markdown=f"Settings that diverged, skipped for that seed: {listed}."))
    return Chapter(
        title=experiment.title,
        lead=experiment.about.strip(),
        parts=parts,
        verdicts=verdicts(experiment.claims, cells),
    )


def _cell_table(experiment: Experiment, cell: DatasetComparison) -> Table:
    """Every method and variant of one cell: settings, what they were chosen on, five metrics."""
    settings = row_settings(experiment.settings, cell.data, cell.condition)
    values = {row: _values(cell, row) for row in cell.rows}
    leaders = {metric.key: cell.best(_tuned(values), metric) for metric in COMPARED_METRICS}
    rows: list[list[str | float]] = []
    shown: list[Setting] = []
    for row in ROW_TITLES:
        if row not in values or settings[row] in shown:
            continue
        shown.append(settings[row])
        texts = {key: format_mean_std(by_seed) for key, by_seed in values[row].items()}
        bold = [f"**{texts[key]}**" if row in leaders[key] else texts[key] for key in TITLES]
        title = f"{ROW_TITLES[row]}<br>{trial_name(settings[row]).partition(' ')[2]}"
        rows.append([title, _chosen_on(row, settings), *bold])
    seeds = "one seed" if len(cell.seeds) == 1 else f"{len(cell.seeds)} seeds"
    return Table(
        caption=f"{cell.data}, {cell.condition}: every method, {seeds}",
        columns=["method and settings", "chosen on", *TITLES.values()],
        rows=rows,
        notes="Test data, evaluated models (v where a method has personal models, else w): mean ± standard "
        "deviation over seeds, in % and points. Chosen on: clean or noisy validation data, or both with the same "
        "result. Bold: the best of the tuned rows, and what is not told apart from it.",
        folded=True,
    )


def _values(cell: DatasetComparison, row: str) -> dict[str, SeedValues]:
    return {key: values for key in TITLES if (values := cell.values(row, key)) is not None}


def _tuned(values: Mapping[str, dict[str, SeedValues]]) -> dict[str, dict[str, SeedValues]]:
    return {row: by_metric for row, by_metric in values.items() if row.removesuffix(NOISY) in METHOD_TITLES}


def _chosen_on(row: str, settings: Mapping[str, Setting]) -> str:
    if row.removesuffix(NOISY) not in METHOD_TITLES:
        return ""
    if row.endswith(NOISY):
        return "noisy"
    return "both" if settings[row] == settings[f"{row}{NOISY}"] else "clean"
