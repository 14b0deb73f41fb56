"""Three levels of tilts: patients, diagnoses, wards. Every hospital has a small ward where the illness looks different.

The tilt over the classes is fair to the diagnoses and still gives up the children's ward; one more level, over the
wards of a hospital, raises it.
"""

import random

import pandas

import fedtilt as ft

WARDS = {"surgery": 6, "medicine": 3, "children": 1}  # and their relative sizes


def patients() -> pandas.DataFrame:
    """Two measurements; sugar is high in ill adults and low in ill children."""
    rng = random.Random(0)
    rows = []
    for hospital, count in (("north", 1500), ("south", 900), ("island", 600)):
        for i in range(count):
            ward = rng.choices(list(WARDS), list(WARDS.values()))[0]
            ill = i % 3 == 0
            sugar = rng.gauss(1.5 * ill if ward != "children" else -1.5 * ill, 1)
            rows.append((rng.gauss(1.5 * ill, 1), sugar, "ill" if ill else "well", ward, hospital))
    return pandas.DataFrame(rows, columns=["pressure", "sugar", "diagnosis", "ward", "hospital"])


def main() -> None:
    """Train without tilts, with two levels and with three, and print the accuracy by ward and by diagnosis."""
    data = ft.data.table(patients(), target="diagnosis", client="hospital", group="ward")
    methods = [
        ft.ditto(mu=0.1, name="none"),
        ft.fedtilt(lam=0, levels=[("class", 3)], mu=0.1, name="class"),
        ft.fedtilt(lam=0, levels=[("class", 3), ("ward", 10)], mu=0.1, name="class, ward"),
    ]
    result = ft.run(
        methods, ft.Federation.build(data), ft.models.logistic,
        rounds=10, participation=1.0, epochs=5, batch_size=200, lr=0.5,
    )  # fmt: skip
    for grouping in ("ward", "class"):
        accuracy = {name: r.groups[grouping].accuracy for name, r in result.items()}
        print(f"accuracy by {grouping}", pandas.DataFrame(accuracy).round(1), sep="\n", end="\n\n")
    worst = {name: r.groups["ward"].client_worst for name, r in result.items()}
    print("worst ward of a hospital:", ", ".join(f"{name} {value:.1f} %" for name, value in worst.items()))


if __name__ == "__main__":
    main()
