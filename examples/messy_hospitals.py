"""Write exports/, tables as three hospitals export them, and new.csv, patients to predict: to try docs/tables.md with.

Berlin and Wien write semicolons, decimal commas, thousands points and Ja/Nein; Berlin in Latin-1 with German headers.
London writes commas and yes/No. Units, sentinels, words for unknown and several ways of writing dates are among them.
"""

import math
import random
from datetime import date, timedelta
from pathlib import Path

HEADER = ["age", "sex", "platelets", "glucose", "creatinine", "diagnosis", "smoker", "admitted", "readmitted"]
GERMAN = ["Alter", "Geschlecht", "Thrombozyten", "Glukose", "Kreatinin", "Diagnose (Schlüssel)", "Raucher", "Aufnahme",
          "Wiederaufnahme"]  # fmt: skip
CODES = {"I21.0": 1.2, "E11.9": 0.6, "J18.9": 0.3, "S72.0": 0.0, "K80.2": -0.8}  # ICD-10, and how they change the risk
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def draw_patient(rng: random.Random, shift: float) -> list:
    """One patient as clean values, in the order of HEADER; None is unknown."""
    age, sex, code = rng.gauss(64 + shift, 14), rng.choice("fm"), rng.choice(list(CODES))
    platelets, glucose = math.exp(rng.gauss(7.4, 0.9)), rng.gauss(6.2, 1.5)
    creatinine, smoker = rng.gauss(1.1, 0.3), rng.random() < 0.3
    admitted = date(2025, 1, 1) + timedelta(days=rng.randrange(400))
    risk = 0.06 * (age - 64) + 0.5 * (glucose - 6.2) + 1.8 * (creatinine - 1.1) + 0.9 * smoker + CODES[code]
    risk += 0.8 * (math.log(platelets) - 7.4) - 1.2
    known = [rng.random() > 0.06 for _ in range(3)]
    cells = [round(age), sex, round(platelets), round(glucose, 1), round(creatinine, 2), code, smoker, admitted]
    for position, is_known in zip((2, 4, 6), known, strict=True):
        cells[position] = cells[position] if is_known else None
    return [*cells, rng.random() < 1 / (1 + math.exp(-risk))]


def german_number(value: float, decimals: int) -> str:
    """1234.5 as 1.234,5."""
    return f"{value:,.{decimals}f}".translate(str.maketrans(",.", ".,"))


def berlin(rng: random.Random, patient: list) -> list[str]:
    age, sex, platelets, glucose, creatinine, code, smoker, admitted, again = patient
    return [
        str(age), {"f": "w", "m": "m"}[sex], "-999" if platelets is None else german_number(platelets, 0),
        german_number(glucose, 1) + rng.choice([" mmol/l", " mmol/l", ""]),
        "-999" if creatinine is None else german_number(creatinine, 2), code,
        "unbekannt" if smoker is None else rng.choice(["Ja", "JA", "ja"] if smoker else ["Nein", "nein"]),
        admitted.strftime(rng.choice(["%d.%m.%Y", "%Y-%m-%d"])), rng.choice(["Ja", "ja"]) if again else "Nein",
    ]  # fmt: skip


def wien(rng: random.Random, patient: list) -> list[str]:
    cells = berlin(rng, patient)
    smoker = cells[6] if cells[6] == "unbekannt" else cells[6][0]
    return [cells[0], patient[1], *cells[2:6], smoker, *cells[7:]]


def london(rng: random.Random, patient: list) -> list[str]:
    age, sex, platelets, glucose, creatinine, code, smoker, admitted, again = patient
    day = f"{admitted.day} {MONTHS[admitted.month - 1]} {admitted.year}"
    return [
        str(age), sex.upper(), "9999999" if platelets is None else f"{platelets:,}", f"{glucose} mmol/L",
        "" if creatinine is None else str(creatinine), code,
        "n/a" if smoker is None else rng.choice(["yes", "YES"] if smoker else ["No", "no"]),
        rng.choice([day, admitted.strftime("%d/%m/%Y")]), "yes" if again else "No",
    ]  # fmt: skip


def write_table(path: Path, header: list[str], rows: list[list[str]], separator: str, encoding: str) -> None:
    """Write a table; cells with a separator inside are quoted."""
    lines = [separator.join(f'"{cell}"' if separator in cell else cell for cell in row) for row in [header, *rows]]
    path.write_bytes("\r\n".join([*lines, ""]).encode(encoding))


def make_messy(folder: Path, rows: int = 500, seed: int = 0, new: int = 300) -> dict[str, list[list]]:
    """Write the exports and new.csv, which is like Wien's; return the patients of each file as clean values."""
    rng = random.Random(seed)
    (folder / "exports").mkdir(parents=True, exist_ok=True)
    patients = {
        name: [draw_patient(rng, shift) for _ in range(count)]
        for name, shift, count in (("berlin", 0, rows), ("wien", 4, rows), ("london", -4, rows), ("new", 2, new))
    }
    texts = {
        name: [write(rng, patient) for patient in patients[name]]
        for name, write in (("berlin", berlin), ("wien", wien), ("london", london), ("new", wien))
    }
    write_table(folder / "exports" / "berlin.csv", GERMAN, texts["berlin"], ";", "latin-1")
    write_table(folder / "exports" / "wien.csv", HEADER, texts["wien"], ";", "utf-8-sig")
    write_table(folder / "exports" / "london.csv", HEADER, texts["london"], ",", "utf-8")
    write_table(folder / "new.csv", HEADER[:-1], [row[:-1] for row in texts["new"]], ";", "cp1252")
    return patients


if __name__ == "__main__":
    make_messy(Path())
    print("wrote exports/berlin.csv, exports/wien.csv and exports/london.csv, and new.csv with patients to predict")
