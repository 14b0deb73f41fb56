"""The suspects as a CSV file, to open beside the data, and to leave out or relabel with `fedtilt audit`."""

import csv
import io
from collections.abc import Iterable

from fedtilt.audit.samples import Suspect


def suspects_csv(suspects: Iterable[Suspect]) -> str:
    """One line per suspect, with the columns of `Suspect`; `fedtilt.data.corrections` reads it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Suspect._fields)
    for suspect in suspects:
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in suspect)
    return text.getvalue()
