"""`fedtilt report`: files next to the run, and their paths printed."""

from pathlib import Path


def test_reports_are_written_into_the_run_folder(fedtilt) -> None:
    quick = ["clients.count=4", "train.rounds=1", "train.epochs=1", "train.workers=0"]
    fedtilt("run", "--out", "run", "--quiet", *(part for text in quick for part in ("--set", text)))
    result = fedtilt("report", "run", "--markdown", "--csv")
    assert result.code == 0, result.err
    for suffix in ("html", "md", "csv"):
        path = Path("run") / f"report.{suffix}"
        assert f"report: {path}" in result.out
        assert path.stat().st_size > 500
