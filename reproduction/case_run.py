"""Run one case of an experiment into a results folder."""

import contextlib
import shutil
import time
from dataclasses import dataclass, replace

from fedtilt.storage.provenance import environment
from reproduction.experiment import Case, Experiment, OnProgress, Options
from reproduction.kinds import kind_of
from reproduction.results_folder import CaseResult, ResultsFolder


@dataclass(frozen=True, kw_only=True)
class CaseStatus:
    """A case and its stored result."""

    experiment: Experiment
    case: Case
    stored: CaseResult | None
    stale: str | None = None  # why the stored result cannot be used
    missing_data: bool = False  # its data set is not on this machine

    @property
    def label(self) -> str:
        """NAME/CASE."""
        return f"{self.experiment.name}/{self.case.name}"

    @property
    def done(self) -> bool:
        """Whether the stored result can be used."""
        return self.stored is not None and self.stale is None


def run_case(status: CaseStatus, folder: ResultsFolder, options: Options, on_progress: OnProgress) -> None:
    """Run one case and write its result; its checkpoints are deleted then."""
    name, case = status.experiment.name, status.case
    work = folder.work(name, case.name)
    start = time.monotonic()
    result = kind_of(status.experiment).measure(case, replace(options, work=work), on_progress)
    folder.write(
        name,
        CaseResult(
            case=case.name,
            what=case.what,
            quick=options.quick,
            seeds=options.seeds,
            settings=case.settings,
            environment=environment(options.device),
            seconds=round(time.monotonic() - start, 2),
            result=result,
        ),
    )
    if work.exists():
        shutil.rmtree(work)
        with contextlib.suppress(OSError):  # another case may be unfinished
            work.parent.rmdir()
