"""What a part of the tests has found."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Report:
    """The figures of one part, and every case that went wrong.

    Args:
        part: the name of the part
        figures: what was counted, such as {"kills": 1000}
        failures: one line for every wrong result, traceback or silent damage
    """

    part: str
    figures: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, what: str, number: int = 1) -> None:
        """Add to a figure."""
        self.figures[what] = self.figures.get(what, 0) + number

    def line(self) -> str:
        """The part in one line.

        >>> Report("kills", {"kills": 1000, "runs": 41}).line()
        'kills: 1,000 kills, 41 runs; 0 wrong'
        """
        counts = ", ".join(f"{number:,} {what}" for what, number in self.figures.items())
        return f"{self.part}: {counts}; {len(self.failures):,} wrong"


def table(reports: Sequence[Report], seconds: Sequence[float]) -> str:
    """All parts as a table in Markdown."""
    rows = ["| part | figures | wrong | seconds |", "| --- | --- | ---: | ---: |"]
    for report, duration in zip(reports, seconds, strict=True):
        counts = ", ".join(f"{number:,} {what}" for what, number in report.figures.items())
        rows.append(f"| {report.part} | {counts} | {len(report.failures):,} | {duration:.0f} |")
    return "\n".join(rows)
