"""Train on a table with a client column: hospitals of different sizes, with an illness that is rare in the small ones.

A positive tau raises the accuracy on the rare class in every hospital and costs a little on the common one.
"""

import csv
import random
import sys
import tempfile
from pathlib import Path

import fedtilt as ft


def write_table(path: Path) -> None:
    """Write an example table: two measurements, a diagnosis and the hospital."""
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
    """Train three methods on the table and print the accuracy per hospital and class."""
    data = ft.data.table(path, target="diagnosis", client="hospital")
    federation = ft.Federation.build(data)
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
