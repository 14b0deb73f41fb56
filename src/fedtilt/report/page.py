"""HTML pages about runs: a report, with the values that templates/report.html.j2 shows, and figures in a notebook."""

import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import torch

from fedtilt.data.groups import in_words
from fedtilt.data.sampling import DrawnRows
from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.prediction_sets import PredictionSets
from fedtilt.evaluation.results import Result
from fedtilt.files import write_bytes
from fedtilt.report import compare, html, summary
from fedtilt.report.decision_metrics import decision_metrics
from fedtilt.report.differences import differences
from fedtilt.report.figure import Style, styles
from fedtilt.report.figures import MAX_METHODS, build_figures
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import Run, SeedRun
from fedtilt.report.verdict import thresholds, verdict
from fedtilt.storage.predictions import declared_sets
from fedtilt.version import __version__

_COVERAGE, _BAD_SHARE = 0.9, 0.1  # of prediction sets
_MAX_METHODS_WITH_SETS = 4


def build_page(runs: Sequence[Run], published: Sequence[compare.Published], folder: Path) -> str:
    """The whole page, a section per run with its published numbers; links are relative to the folder of the page."""
    compare.check_splits(runs)
    # methods in figures get a colour first
    in_figures = [method for run in runs for method in compare.best_methods(run, MAX_METHODS)]
    method_styles = styles(list(dict.fromkeys(in_figures + [method for run in runs for method in run.methods])))
    overview = compare.overview_metrics(*runs)
    sections = []
    for number, (run, numbers) in enumerate(zip(runs, published, strict=True)):
        table = compare.comparison_table(run, "evaluated")
        cells = {"overview": compare.comparison_cells(table, overview, compare.draws_of(run))}
        sections.append(_run_values(number, run, numbers, method_styles, folder) | cells)
    values = {"runs": sections, "overview_metrics": overview, "score": runs[0].score, "styles": method_styles}
    both = differences(*runs) if len(runs) == 2 else None
    main = html.render("report.html.j2", **values, differences=both)
    return html.document(
        title=f"fedtilt: {runs[0].name}" if len(runs) == 1 else f"fedtilt: {len(runs)} runs", what="report", main=main,
        footer=f"Written by fedtilt {__version__} from run folders, without training.",
    )  # fmt: skip


def _run_values(
    number: int, run: Run, published: compare.Published, method_styles: dict[str, Style], folder: Path
) -> dict[str, Any]:
    key = f"run-{number}"
    figures = build_figures(run, method_styles)
    decision = decision_metrics(run, method_styles)
    return _settings(run) | {
        "number": number, "key": key, "name": run.name, "facts": summary.facts(run), "headline": summary.headline(run),
        "worst_scores": summary.worst_scores(run), "beyond_chance": summary.fairness_beyond_chance(run),
        "certificate": summary.certificates(run), "verdict": [*verdict(run), *thresholds(run)],
        "notes": [note.text for note in notes(run)],
        "about_data": list(dict.fromkeys(text for seed_run in run.compared for text in seed_run.about_data)),
        "audit": os.path.relpath(audit, folder) if (audit := run.folder / "audit.html").exists() else "",
        "groups_in_words": in_words(run.group),
        "views": compare.view_tables(run, published),
        "groups": [(table, table.cells((*table.groups, *table.metrics))) for table in compare.group_tables(run)],
        "is_rare": bool(compare.rare_metrics(run)),
        "decision": decision._replace(figures=[]),
        "decision_figures": [html.figure(figure, f"{key}-") for figure in decision.figures],
        "sets": prediction_sets_table(run),
        "figures": {name: [html.figure(figure, f"{key}-") for figure in group] for name, group in figures.items()},
        "figure_methods": len(compare.best_methods(run, MAX_METHODS)), "methods": len(run.methods),
        "worst_clients": _worst_clients(run), "has_published": bool(published), "round": run.round,
        "several_seeds": len(run.compared) > 1, "seeds": run.seeds, "started": run.started,
        "environment": run.environment,
    }  # fmt: skip


def _worst_clients(run: Run) -> dict[str, Any]:
    methods = compare.best_methods(run, MAX_METHODS)
    rows = summary.worst_clients(run, methods)
    counts = [seed_run.counts[method] for seed_run in run.compared for method in methods]
    return {
        "methods": methods,
        "rows": rows,
        "count": sum(len(seed_run.tested) for seed_run in run.compared),
        "show_outliers": any(row.seed_run.some_have_outliers for row in rows),
        "show_selected": any(c.personal is not None and bool(c.never_selected.any()) for c in counts),
    }


def _settings(run: Run) -> dict[str, str]:
    """The settings of a run, and the commands that run it again."""
    if run.spec is None:
        return {
            "settings_name": "settings in fingerprint.json",
            "settings": json.dumps(run.fingerprint, indent=2),
            "commands": "# started from Python: call fedtilt.run again with the same arguments\n"
            f"fedtilt report {shlex.quote(str(run.folder))}",
        }
    if run.fingerprint.get("runner") == "flower":
        commands = "# trained on Flower sites: name the project folder\nfedtilt deploy run PROJECT"
    else:
        again = shlex.quote(f"runs/{run.name}-again")
        commands = f"fedtilt run {shlex.quote(str(run.folder / 'spec.toml'))} --out {again}\nfedtilt report {again}"
    return {"settings_name": "spec.toml", "settings": run.spec, "commands": commands}


def prediction_sets(run: Run) -> dict[str, PredictionSets]:
    """The sets of the best methods in the first seed; empty if there are no scores of validation data, or too few."""
    found, seed_run = {}, run.compared[0]
    for method in compare.best_methods(run, _MAX_METHODS_WITH_SETS):
        stored = run.predictions[0].get(method)
        try:
            if stored is not None and stored.scores is not None:
                found[method] = stored.prediction_sets(_COVERAGE)
            elif run.fingerprint.get("runner") == "flower" and seed_run.folder is not None:
                found[method] = declared_sets(seed_run.folder, seed_run.client_names, _COVERAGE)
            found = {name: sets for name, sets in found.items() if sets.rules}
        except InputError:  # too few samples for this coverage, or none are declared
            return {}
    return found


def prediction_sets_table(run: Run) -> dict[str, Any]:
    """What the page shows: a sentence per method, and a row per client, the lowest coverage first.

    If clients use the samples of others, another sentence is about sets that bad clients cannot spoil.
    """
    sets = prediction_sets(run)
    if not sets:
        return {}
    sentences = {method: str(found) for method, found in sets.items()}
    for method, found in sets.items():
        if any(rule.clients > 1 for rule in found.rules.values()):
            with suppress(InputError):  # too few samples are left without those that may be bad
                sentences[f"{method}, if clients may be bad"] = str(replace(found, bad_share=_BAD_SHARE))
    clients = sorted(next(iter(sets.values())).rules, key=lambda n: min(found.shares[n] for found in sets.values()))
    return {"coverage": 100 * _COVERAGE, "by_method": sets, "sentences": sentences, "clients": clients}


class Figures:
    """Figures as one HTML page, which a notebook shows in a frame."""

    def __init__(self, page: str) -> None:
        self._page = str(page)  # of `Markup`, `escape` would escape its own entities again

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its style and the notebook's do not mix."""
        style = "width:100%; height:620px; border:0"
        return f'<iframe title="figures" style="{style}" srcdoc="{escape(self._page)}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page as an HTML file."""
        write_bytes(Path(path), self._page.encode())
        return Path(path)


def plot(result: Result) -> Figures:
    """The curves, clients and classes of a result, as in its report."""
    run = as_run(result)
    figures = [figure for group in build_figures(run, styles(run.methods)).values() for figure in group]
    main = f'<div class="grid two">{"".join(map(html.figure, figures))}</div>'
    footer = f"Drawn by fedtilt {__version__}."
    return Figures(html.document(title="fedtilt: figures", what="figures", main=main, footer=footer))


def as_run(result: Result) -> Run:
    """A result as a run of one seed without a folder."""
    first = next(iter(result.values()))
    never = torch.zeros(len(first.total), dtype=torch.bool)
    groups = {name: tuple(found.group_counts.values())[1:] for name, found in result.items()}
    seed_run = SeedRun(
        seed=0, history={name: found.history for name, found in result.items()},
        counts={name: Counts(found.sums, None, never, groups[name]) for name, found in result.items()},
        drawn=DrawnRows(fixed_shares=first.fixed_shares), total=first.total, client_names=first.client_names,
        has_outliers=never if result.has_outliers is None else result.has_outliers,
        class_names=first.table()[2], group=first.group,
    )  # fmt: skip
    settings = {"methods": {name: {} for name in result}, "train": {"rounds": first.history[-1][0]}}
    return Run(
        folder=Path(), name="", started="", environment={}, fingerprint=settings, spec=None, seeds=(0,),
        seed_runs=(seed_run,),
    )  # fmt: skip
