"""The code in the documentation about models runs."""

import re
from pathlib import Path

import pytest

import fedtilt as ft

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("page", "heading"),
    [("README.md", "### Your own model and recipe"), ("docs/models.md", "# Your own model and recipe")],
)
def test_your_own_model_and_recipe(page: str, heading: str) -> None:
    text = (ROOT / page).read_text().partition(f"{heading}\n")[2]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    federation = ft.Federation.build(ft.data.load("digits"), clients=20, classes_per_client=2, outliers="flips")
    names = {"ft": ft, "federation": federation}
    exec(code[1], names)
    assert names["result"]["fedtilt"].accuracy > 50
    assert len(names["result"]["fedtilt"].history) >= 5
