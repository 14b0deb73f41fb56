"""The kinds of experiments: one module for each, with `cases`, `measure` and `chapter`."""

from importlib import import_module
from typing import Any, Protocol, cast

from reproduction.chapter import Chapter
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results


class Kind(Protocol):
    """What a module needs to be the kind of an experiment."""

    def cases(self, experiment: Experiment, options: Options) -> list[Case]:
        """The units of work."""

    def measure(self, case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
        """Run one case; its result as JSON."""

    def chapter(self, experiment: Experiment, results: Results, *reference: tuple[Experiment, Results]) -> Chapter:
        """The report on the results of all cases or some; `reference` is the experiment that it names, if it does."""


def kind_of(experiment: Experiment) -> Kind:
    """The module that runs and reports an experiment."""
    return cast(Kind, import_module(f"reproduction.experiments.{experiment.kind}"))
