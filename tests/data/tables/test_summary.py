"""Summaries of a site's columns: several columns at once, and each against its own values."""

import numpy as np
import pytest

from fedtilt.data import Schema
from fedtilt.data.tables.reader import open_reader
from fedtilt.data.tables.summary import summarise_sites
from tests.data.tables.summaries import summarise

pandas = pytest.importorskip("pandas")

rng = np.random.default_rng(0)
ROWS = 400
FRAME = pandas.DataFrame(
    {f"x{n}": rng.normal(n, 1 + n, ROWS) for n in range(9)}
    | {
        "gaps": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(size=ROWS)),
        "more gaps": np.where(rng.random(ROWS) < 0.5, np.nan, rng.normal(size=ROWS)),
        "constant": np.full(ROWS, 0.1),
        "too large": rng.normal(size=ROWS) * 1e200,
        "ward": rng.choice(["a", "b"], ROWS),
        "empty": np.full(ROWS, np.nan),
    }
)
SITES = {"north": np.arange(0, ROWS, 2), "south": np.arange(1, 120, 2), "east": np.arange(121, ROWS, 2)}


def test_a_column_has_the_same_summary_whatever_is_summarised_with_it() -> None:
    columns, classes = open_reader(FRAME), dict.fromkeys(SITES, ())
    for summary in summarise_sites(columns, list(FRAME), SITES, classes, Schema(columns=())):
        alone = [summarise(columns, [name], rows=SITES[summary.site]).columns[0] for name in FRAME]
        assert list(summary.columns) == alone


@pytest.mark.parametrize("name", ["x3", "gaps", "more gaps"])
def test_numbers(name: str) -> None:
    values = FRAME[name].dropna()
    (column,) = summarise(open_reader(FRAME), [name]).columns
    assert (column.kind, column.rows, column.missing) == ("number", len(values), ROWS - len(values))
    assert column.mean == pytest.approx(values.mean(), rel=1e-12)
    assert column.squares == pytest.approx(values.var(ddof=0) * len(values), rel=1e-12)
    assert column.quantiles == pytest.approx(np.quantile(values, (np.arange(15) + 0.5) / 15), rel=1e-12)


def test_columns_without_deviation() -> None:
    constant, too_large, empty = summarise(open_reader(FRAME), ["constant", "too large", "empty"]).columns
    assert (constant.mean, constant.squares) == (0.1, 0.0)
    assert (too_large.mean, too_large.squares) == (0.0, 0.0)
    assert (empty.kind, empty.rows, empty.missing, empty.mean) == (None, 0, ROWS, None)
