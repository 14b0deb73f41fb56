"""The kinds of experiments: the modules that run and report them."""

from types import ModuleType
from typing import Any, Protocol, cast

from reproduction import outliers, propositions
from reproduction.chapter import Chapter
from reproduction.comparison import experiment as comparison
from reproduction.convergence import experiment as convergence
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from reproduction.others import experiment as others
from reproduction.rivals import experiment as rivals
from reproduction.signs import experiment as signs
from reproduction.sweep import experiment as sweep
from reproduction.toy import experiment as toy
from reproduction.tuned import experiment as tuned
from reproduction.tuning import experiment as tuning


class Kind(Protocol):
    """What a module needs to be the kind of an experiment."""

    def cases(self, experiment: Experiment, options: Options) -> list[Case]:
        """The units of work."""

    def measure(self, case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
        """Run one case; its result as JSON."""

    def chapter(self, experiment: Experiment, results: Results, *reference: tuple[Experiment, Results]) -> Chapter:
        """The report on the results of all cases or some.

        `reference` is the experiment to compare with; only a kind whose experiments name one has the parameter.
        """


EXPERIMENT_KINDS: dict[str, ModuleType] = {
    "comparison": comparison,
    "convergence": convergence,
    "others": others,
    "outliers": outliers,
    "propositions": propositions,
    "rivals": rivals,
    "signs": signs,
    "sweep": sweep,
    "toy": toy,
    "tuned": tuned,
    "tuning": tuning,
}


def kind_of(experiment: Experiment) -> Kind:
    """The module that runs and reports an experiment."""
    return cast(Kind, EXPERIMENT_KINDS[experiment.kind])
