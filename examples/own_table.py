"""One table with a client column: hospitals of very different size, and an illness that is rare in the small ones.

A positive tau lifts the rare class in every hospital, for a little of the common one.
"""

import csv
import random
import sys
import tempfile
from pathlib import Path

import fedtilt as ft


def write_table(path: Path) -> None:
    """Stands for your file: two measurements, a diagnosis, and the hospital it comes from."""
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["pressure", "sugar", "diagnosis", "hospital"])
        for hospital, patients in (("north", 2000), ("south", 600), ("island", 300)):
            for i in range(patients):
                ill = i % (4 if hospital == "north" else 8) == 0
                shift = {"north": 0.0, "south": 0.6, "island": -0.6}[hospital]
                table.writerow(
                    [f"{rng.gauss(2 * ill + shift, 1):.3f}", f"{rng.gauss(1.5 * ill - shift, 1):.3f}",
                     "ill" if ill else "well", hospital]
                )  # fmt: skip


def main(path: Path) -> None:
    data = ft.data.table(path, target="diagnosis", client="hospital")
    federation = ft.Federation.build(data, partition="column")
    result = ft.run(
        [ft.fedavg(), ft.ditto(mu=0.1), ft.fedtilt(tau=2, lam=0, mu=0.1)],
        federation, ft.models.logistic, rounds=20, participation=1.0, epochs=5, lr=0.1,
    )  # fmt: skip
    table = result.to_pandas()
    print(table.pivot_table(index=["client_name", "class_name"], columns="method", values="accuracy").round(1))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_table(Path(folder) / "patients.csv")
            main(Path(folder) / "patients.csv")
