"""Compare two runs on one page: the same methods with wrong and with clean labels.

python examples/compare_runs.py [FOLDER]
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import fedtilt as ft
from fedtilt import report

MODEL = partial(ft.models.mlp, hidden=(64, 64))


def main(folder: Path) -> None:
    """Train twice with a run folder each, and write one report about both."""
    for kind in ("flips", "none"):
        federation = ft.Federation.build(ft.data.load("digits"), clients=20, max_train=60, outliers=kind)
        ft.run(
            [ft.fedavg(), ft.ditto(mu=0.01), ft.fedtilt(tau=0, lam=-2)], federation, MODEL,
            rounds=15, participation=0.25, lr=0.1, eval_every=3, out=folder / kind,
        )  # fmt: skip
    page = report.write([folder / "flips", folder / "none"], folder / "report.html")
    print(f"wrote {page}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
