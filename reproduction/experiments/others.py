"""The tables of other libraries: each cell with the published figure, ours and the difference."""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fedtilt import data
from fedtilt.attacks.attack import Attack
from fedtilt.devices import pick_device
from fedtilt.engine.prepare import prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.simulation import Round
from reproduction.chapter import Chapter, Table, Text
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results, by_seed
from reproduction.experiments.others_data import MODELS, federation_of
from reproduction.results import round_floats
from reproduction.training import CaseRecorder, method_of, train_case

PARTS = ("best", "last", "rounds", "curve")
MARGIN = 1.5  # points; a larger difference is bold
_NOT_OF_A_CASE = (
    "data", "divisions", "bad", "attacks", "seeds", "seeds_per_figure", "title", "assumed", "methods", "rounds", "tuned"
)  # fmt: skip


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per table, data set, division and seed; of ByzFL, per attack too, and of PFLlib, per method."""
    settings, result = experiment.settings, []
    for table in settings["tables"]:
        of_table = settings[table]
        fixed = {key: value for key, value in of_table.items() if key not in _NOT_OF_A_CASE}
        bad, attacks = of_table.get("bad", [0]), of_table.get("attacks", {"none": None})
        for name, division in product(of_table["data"], of_table["divisions"]):
            seeds = range(options.seeds or _seeds(of_table, division))
            for f, attack, methods, seed in product(bad, attacks, _together(of_table), seeds):
                words = [*_words(of_table, table, name, division, f, attack, methods[0]), f"seed-{seed}"]
                case = {**fixed, "table": table, "data": name, "division": division, "seed": seed}
                case |= of_table["divisions"][division] | ({"bad": f, "attack": attacks[attack]} if f else {})
                case["methods"] = {method: of_table["methods"][method] for method in methods}
                case["train"] = fixed["train"] | _rounds(of_table, methods[0])
                result.append(
                    Case(
                        name="-".join(words),
                        what=f"{table}: {', '.join(words[1:])}" + f", {len(methods)} methods" * (len(methods) > 1),
                        settings=case,
                        needs=name,
                        parts=PARTS,
                    )
                )
    return result


def _seeds(of_table: Mapping[str, Any], division: str) -> int:
    """How many seeds the cells of a division have: a table has one number, or one for each division."""
    seeds = of_table["seeds"]
    return seeds[division] if isinstance(seeds, Mapping) else seeds


def _together(of_table: Mapping[str, Any]) -> list[list[str]]:
    """The methods that train in one case: all, unless each has its own number of rounds."""
    methods = list(of_table["methods"])
    return [[method] for method in methods] if "rounds" in of_table else [methods]


def _rounds(of_table: Mapping[str, Any], method: str) -> dict[str, int]:
    return {"rounds": of_table["rounds"][method]} if "rounds" in of_table else {}


def _words(
    of_table: Mapping[str, Any], table: str, name: str, division: str, f: int, attack: str, method: str
) -> list[str]:
    """The parts of the name of a case before its seed."""
    return [table, name, division, *([f"f-{f}", attack] if f else []), *([method] if "rounds" in of_table else [])]


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the methods of one case; by method, the accuracy over all test samples of its best and its last round."""
    settings = case.settings
    federation = federation_of(settings, data.load(settings["data"], options.data_dir))
    bad = settings.get("bad", 0)
    share = {"bad_share": bad / federation.clients} if bad else {}
    methods = [method_of(name, {**setting, **share}) for name, setting in settings["methods"].items()]
    attack = None
    if bad:
        attackers = tuple(federation.client_names[-bad:])
        attack = Attack(**settings["attack"], clients=attackers)
    on_cuda = "precision_on_cuda" in settings and pick_device(options.device).type == "cuda"
    training = TrainSettings(
        **settings["train"], seed=settings["seed"], device=options.device, attack=attack,
        precision=settings["precision_on_cuda"] if on_cuda else "float32",
    )  # fmt: skip
    prepared = prepare(methods, federation, MODELS[settings["table"]], training)
    recorder = CaseRecorder(options, dict(settings))

    def evaluate(r: Round) -> tuple[dict[str, float], str]:
        counts = r.counts or {}
        accuracy = {name: 100 * float(found.evaluated.sum() / r.total.sum()) for name, found in counts.items()}
        return accuracy, ", ".join(f"{name} {value:.1f}" for name, value in accuracy.items())

    train_case(prepared, recorder, options, on_progress, evaluate)
    curve = {m.name: [accuracy[m.name] for _, accuracy in recorder.curve] for m in methods}
    return round_floats(
        {
            "best": {name: max(values) for name, values in curve.items()},
            "last": {name: values[-1] for name, values in curve.items()},
            "rounds": [number for number, _ in recorder.curve],
            "curve": curve,
        }
    )


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """A table per library, and what was assumed."""
    parts: list[Text | Table] = []
    for table in experiment.settings["tables"]:
        of_table = experiment.settings[table]
        rows: list[list[str | float]] = []
        compared: list[tuple[_Figure, _Figure]] = []
        for name, division, f in product(of_table["data"], of_table["divisions"], of_table.get("bad", [0])):
            for method, settings in _rows(of_table).items():
                published = _published(experiment, table, name, division, f, method)
                found = [_ours(experiment, results, table, name, division, f, setting) for setting in settings]
                ours = None if None in found else max(filter(None, found), key=_mean)
                if published is not None and ours is not None:
                    compared.append((published, ours))
                where = [name, division, *([str(f)] if f else [])]
                figures = [_text(published, "not published"), _text(ours, "not measured")]
                seeds = "" if ours is None else str(ours.seeds)
                rows.append([*where, method, *figures, seeds, _difference(published, ours)])
        parts.append(
            Table(
                caption=f"{table}: {of_table['title']}",
                columns=["data", "division", *(["attackers"] if "bad" in of_table else []), "method", "published",
                         "ours", "our seeds", "difference"],
                rows=rows,
                notes=" ".join([*_agreement(compared), of_table["assumed"].strip()]),
            )
        )  # fmt: skip
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts)


class _Figure(NamedTuple):
    """The mean accuracy over seeds, and their deviation and number where they are known."""

    mean: float
    deviation: float | None = None
    seeds: int | None = None


_mean = attrgetter("mean")


def _rows(of_table: Mapping[str, Any]) -> dict[str, list[str]]:
    """By row, the methods whose best is shown: a method itself, or the settings among which one was tuned."""
    tuned: dict[str, list[str]] = of_table.get("tuned", {})
    settings = {setting for found in tuned.values() for setting in found}
    return {method: [method] for method in of_table["methods"] if method not in settings} | tuned


def _published(experiment: Experiment, table: str, name: str, division: str, f: int, method: str) -> _Figure | None:
    found: Any = experiment.published[table][name].get(division, {}).get(method)
    if isinstance(found, list):
        found = found[f - 1]
    if found is None:
        return None
    return _Figure(**found) if isinstance(found, Mapping) else _Figure(float(found))


def _ours(
    experiment: Experiment, results: Results, table: str, name: str, division: str, f: int, method: str
) -> _Figure | None:
    """Under several attacks, of the worst attack. None: an attack was not measured."""
    of_table = experiment.settings[table]
    by_attack = []
    for attack in of_table.get("attacks", {"none": None}):
        found = by_seed(results, "-".join(_words(of_table, table, name, division, f, attack, method)))
        if not found:
            return None
        by_attack.append(_over_seeds(list(found.values()), method, of_table["seeds_per_figure"]))
    return min(by_attack, key=_mean)


def _over_seeds(results: Sequence[Mapping[str, Any]], method: str, together: int) -> _Figure:
    """The best round of the mean of as many seeds as a published figure has; of more seeds, over all choices of them.

    The best round of a mean is lower the more seeds it is of. The deviation is that of each seed's own best round.
    """
    curves: list[Sequence[float]] = [result["curve"][method] for result in results]
    choices = combinations(curves, min(together, len(curves)))
    figures = [max(map(fmean, zip(*choice, strict=True))) for choice in choices]
    return _Figure(fmean(figures), stdev(map(max, curves)) if len(curves) > 1 else None, len(curves))


def _agreement(compared: Sequence[tuple[_Figure, _Figure]]) -> list[str]:
    """How many figures are near the published ones, and how many others differ by less than our seeds do."""
    if not compared:
        return []
    differences = [(abs(ours.mean - published.mean), ours.deviation or 0.0) for published, ours in compared]
    far = [(difference, deviation) for difference, deviation in differences if difference > MARGIN]
    near = f"{len(compared) - len(far)} of {len(compared)} figures are within {MARGIN} points of the published ones."
    if not far:
        return [near]
    within = sum(difference <= deviation for difference, deviation in far)
    return [near, f"Of the {len(far)} others, those that differ by less than our seeds deviate: {within}."]


def _text(figure: _Figure | None, missing: str) -> str:
    if figure is None:
        return missing
    return f"{figure.mean:.2f}" + ("" if figure.deviation is None else f" ± {figure.deviation:.2f}")


def _difference(published: _Figure | None, ours: _Figure | None) -> str:
    if published is None or ours is None:
        return ""
    difference = ours.mean - published.mean
    text = f"{difference:+.2f}".replace("-", "−")
    return text if abs(difference) <= MARGIN else f"**{text}**"
