"""Groups and certificates: how well does each ward do, and how bad can it be for the worst hospital?

A tilt over the wards raises the one that does worst; the certificate is a bound that holds with 95 % confidence.
"""

import tempfile
from pathlib import Path

from patients import write_patients

import fedtilt as ft


def main() -> None:
    """Train with a tilt over the wards of every hospital, and print figures by ward with their certificate."""
    with tempfile.TemporaryDirectory() as folder:
        write_patients(Path(folder) / "patients.csv", rows=3000)
        data = ft.data.table(
            Path(folder) / "patients.csv", target="diagnosis", client="hospital", group="ward", drop=["patient"]
        )
    result = ft.run(
        [ft.ditto(mu=0.1), ft.fedtilt(tau=5, lam=0, mu=0.1)], ft.Federation.build(data), ft.models.logistic,
        rounds=20, participation=1.0, epochs=5, lr=0.05, eval_every=20,
    )  # fmt: skip
    for name, method in result.items():
        recall = method.metrics_frame(["recall"], by="ward", positive="ill").by_group["recall"]
        print(f"{name}: accuracy {method.accuracy:.1f} %, recall of the ill by ward {recall.round(2).to_dict()}")
    print(result["fedtilt"].certificate(by="ward"))


if __name__ == "__main__":
    main()
