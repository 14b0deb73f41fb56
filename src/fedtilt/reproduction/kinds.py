"""The kinds of experiments: the modules that run and report them."""

from types import ModuleType
from typing import Any, Protocol, cast

from fedtilt.reproduction import outliers, propositions
from fedtilt.reproduction.chapter import Chapter
from fedtilt.reproduction.comparison import experiment as comparison
from fedtilt.reproduction.convergence import experiment as convergence
from fedtilt.reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from fedtilt.reproduction.others import experiment as others
from fedtilt.reproduction.rivals import experiment as rivals
from fedtilt.reproduction.signs import experiment as signs
from fedtilt.reproduction.sweep import experiment as sweep
from fedtilt.reproduction.toy import experiment as toy
from fedtilt.reproduction.tuned import experiment as tuned
from fedtilt.reproduction.tuning import experiment as tuning


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
