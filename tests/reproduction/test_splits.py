"""The page on splits has the figures of the records, and the experiment draws what it says."""

from pathlib import Path

import pytest

from fedtilt.data import Federation
from reproduction.chapter import Table
from reproduction.experiment import Options, load
from reproduction.experiments import splits
from reproduction.results import ResultsFolder
from reproduction.runner import read_chapter

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_figures_of_the_records() -> None:
    lines = (ROOT / "docs" / "splits.md").read_text("utf-8").splitlines()
    page = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    chapter = read_chapter(ResultsFolder(ROOT / "reproduction" / "results"), "splits", quick=False)
    coins, tables = (part.rows for part in chapter.parts if isinstance(part, Table))
    assert [row for row in page if row[0].isdigit()] == [list(row) for row in coins if row[0] not in ("16", "64")]
    assert [row for row in page if row[0].endswith((", random", ", proportional"))] == [list(row) for row in tables]


def test_the_page_is_short() -> None:
    text = (ROOT / "docs" / "splits.md").read_text("utf-8")
    assert len(" ".join(line for line in text.splitlines() if not line.startswith("|")).split()) <= 400


def test_both_splits_get_the_same_methods_and_seeds() -> None:
    cases = splits.cases(load("splits"), Options())
    without = [{k: v for k, v in case.settings.items() if k != "split"} for case in cases]
    random, proportional = ([s for s, c in zip(without, cases, strict=True) if c.settings["split"] == split]
                            for split in splits.SPLITS)  # fmt: skip
    assert random == proportional
    assert len(random) == 20 * 6 + 5 * 7


@pytest.mark.parametrize("split", splits.SPLITS)
def test_coins_say_nothing(split: str) -> None:
    federation = splits.coins(clients=40, columns=2, rows=20, split=split, seed=3)
    assert isinstance(federation, Federation)
    assert (federation.drawn.split, federation.clients, len(federation.test_index[0])) == (split, 40, 5)
    assert (splits.majority_accuracy(federation) > 54) == (split == "proportional")
