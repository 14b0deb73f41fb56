"""Texts that a spreadsheet would run as formulas are written as texts, and read back unchanged."""

import csv
import io

import pytest

from fedtilt.text_tables import csv_text, original_text

FORMULAS = ["=1+1", "+A1", "-2+3", "@SUM(A1)", '=HYPERLINK("http://x")', "\t=1", "\r=1"]
TEXTS = ["ward 3", "-0.5", "1e-3", "'quoted", "a=1", "", "north, south", "two\nlines"]


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_written_as_text(name: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_text([[name, -1.5, None]]), newline=""))
    assert row == [f"'{name}", "-1.5", ""]
    assert original_text(row[0]) == name


@pytest.mark.parametrize("name", TEXTS)
def test_other_texts_and_numbers_are_unchanged(name: str) -> None:
    ((cell, _),) = csv.reader(io.StringIO(csv_text([[name, 0]]), newline=""))
    assert cell == original_text(cell) == name
