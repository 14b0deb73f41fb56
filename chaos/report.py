"""What a part of the tests has found."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Report:
    """The figures of one part, every case that went wrong, and what was not run.

    Args:
        part: the name of the part
        figures: what was counted, such as {"kills": 1000}
        failures: one line for every wrong result, traceback or silent damage
        skipped: one line for everything that cannot run on this machine, with the reason
    """

    part: str
    figures: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def count(self, what: str, number: int = 1) -> None:
        """Add to a figure."""
        self.figures[what] = self.figures.get(what, 0) + number

    def counts(self) -> str:
        """The figures in words.

        >>> Report("kills", {"kills": 1000, "runs": 41}).counts()
        '1,000 kills, 41 runs'
        """
        return ", ".join(f"{number:,} {what}" for what, number in self.figures.items()) or "nothing was run"

    def line(self) -> str:
        """The part in one line.

        >>> Report("fuzz", {"inputs": 9}, skipped=["replies: flwr is not installed"]).line()
        'fuzz: 9 inputs; 0 wrong, 1 skipped'
        """
        skipped = f", {len(self.skipped):,} skipped" if self.skipped else ""
        return f"{self.part}: {self.counts()}; {len(self.failures):,} wrong{skipped}"


def table(reports: Sequence[Report], seconds: Sequence[float]) -> str:
    """All parts as a table in Markdown."""
    rows = ["| part | figures | wrong | skipped | seconds |", "| --- | --- | ---: | ---: | ---: |"]
    for report, duration in zip(reports, seconds, strict=True):
        found = f"{len(report.failures):,} | {len(report.skipped):,}"
        rows.append(f"| {report.part} | {report.counts()} | {found} | {duration:.0f} |")
    return "\n".join(rows)
