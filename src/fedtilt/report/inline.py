"""The figures of a report inside a notebook."""

from html import escape
from os import PathLike
from pathlib import Path

import torch

from fedtilt.data.sampling import DrawnRows
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.results import Result
from fedtilt.files import write_bytes
from fedtilt.report import html
from fedtilt.report.figure import styles
from fedtilt.report.figures import build_figures
from fedtilt.report.run_reader import Run, SeedRun
from fedtilt.version import __version__


class Figures:
    """Figures as one HTML page, which a notebook shows in a frame."""

    def __init__(self, page: str) -> None:
        self._page = str(page)  # of `Markup`, `escape` would escape its own entities again

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its style and the notebook's do not mix."""
        style = "width:100%; height:620px; border:0"
        return f'<iframe title="figures" style="{style}" srcdoc="{escape(self._page)}"></iframe>'

    def save(self, path: str | PathLike[str]) -> Path:
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
