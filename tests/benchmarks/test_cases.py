"""Cases of a benchmark are measured once, on several processes."""

import json
from pathlib import Path

import pytest

from benchmarks.cases import Case, run_cases
from benchmarks.markdown import machine_text


def square(case: Case) -> Case:
    return case | {"square": case["n"] ** 2, "of": [case["n"]]}


def test_cases_that_the_file_has_are_not_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "squares.json"
    first = list(run_cases("squares", [{"n": 3}], square, {"setting": (1, 2)}, 1, out))
    assert first == [{"n": 3, "square": 9, "of": [3]}]
    later = list(run_cases("squares", [{"n": 2}, {"n": 3}], square, {"setting": (1, 2)}, 1, out))
    assert later == [{"n": 2, "square": 4, "of": [2]}]
    assert list(run_cases("squares", [{"n": 2}, {"n": 3}], square, {"setting": (1, 2)}, 1, out)) == []
    with pytest.raises(SystemExit, match="has other settings than this benchmark; move it away"):
        next(run_cases("squares", [{"n": 2}], square, {"setting": (1, 3)}, 1, out))


def test_the_file_says_of_every_case_where_it_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "squares.json"
    assert list(run_cases("squares", [{"n": 3}], square, {}, 1, out))
    record = json.loads(out.read_text())
    record["cases"][0]["measured"] = "another machine"
    out.write_text(json.dumps(record))
    assert list(run_cases("squares", [{"n": 2}, {"n": 3}], square, {}, 1, out))
    record = json.loads(out.read_text())
    assert [case["measured"] for case in record["cases"]] == [machine_text(record), "another machine"]
