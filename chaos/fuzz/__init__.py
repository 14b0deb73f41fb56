"""Feed mutated inputs to everything that reads some: each is accepted, or refused with an `InputError` of one line."""

from pathlib import Path

from chaos.report import Report


def run(folder: Path, scale: float) -> Report:
    """Run every target with its share of the inputs."""
    import torch

    from chaos.fuzz.runner import fuzz
    from chaos.fuzz.targets import TARGETS

    torch.set_num_threads(1)
    report = Report("fuzz")
    for name, (target, inputs) in TARGETS.items():
        workers = 2 if scale >= 0.01 else 1  # each has to prepare its inputs
        fuzz(name, target, max(1, round(inputs * scale)), folder / "fuzz", report, workers)
    return report
