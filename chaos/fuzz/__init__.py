"""Feed mutated inputs to everything that reads some: each is accepted, or rejected with an `InputError` of one line."""

from pathlib import Path

from chaos.processes import missing
from chaos.report import Report

_INPUTS = 20  # of one worker, at least: each has to prepare its inputs


def run(folder: Path, scale: float, jobs: int) -> Report:
    """Run every target with its share of the inputs."""
    import torch

    from chaos.fuzz.runner import fuzz
    from chaos.fuzz.targets import TARGETS

    torch.set_num_threads(1)
    report = Report("fuzz")
    for name, (target, inputs, needs) in TARGETS.items():
        if reason := missing(*needs):
            report.skipped.append(f"{name}: {reason}")
            continue
        number = max(1, round(inputs * scale))
        fuzz(name, target, number, folder / "fuzz", report, min(jobs, -(-number // _INPUTS)))
    return report
