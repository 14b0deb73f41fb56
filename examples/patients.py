"""Write patients.csv, a table to try the guides with: three hospitals; numbers, categories, dates and gaps."""

import csv
import random
from datetime import date, timedelta
from pathlib import Path

HOSPITALS = {"north": (0.5, 0.30), "south": (0.3, 0.20), "island": (0.2, 0.12)}  # share of patients, of ill ones


def write_patients(path: Path, rows: int = 900, seed: int = 0) -> None:
    """Write a table of patients; an ill one is older and has a higher pressure, more so on ward A."""
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["patient", "age", "sex", "ward", "pressure", "admitted", "diagnosis", "hospital"])
        for number in range(rows):
            hospital = rng.choices(list(HOSPITALS), [share for share, _ in HOSPITALS.values()])[0]
            ill = rng.random() < HOSPITALS[hospital][1]
            sex, ward = rng.choice("fm"), rng.choices("ABC", [5, 3, 1])[0]
            pressure = rng.gauss(120 + (25 if ward == "A" else 15) * ill, 10)
            admitted = date(2026, 1, 1) + timedelta(days=rng.randrange(300))
            table.writerow(
                [f"p{number:04}", f"{rng.gauss(50 + 12 * ill, 12):.1f}", sex, ward,
                 "" if rng.random() < 0.05 else f"{pressure:.1f}", admitted, "ill" if ill else "well", hospital]
            )  # fmt: skip


if __name__ == "__main__":
    write_patients(Path("patients.csv"))
    print("wrote patients.csv: 900 patients of 3 hospitals")
