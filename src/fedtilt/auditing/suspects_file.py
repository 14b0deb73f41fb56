"""The suspects as a CSV file, to open beside the data, and to leave out or relabel with `fedtilt audit`."""

from collections.abc import Iterable

from fedtilt.auditing.samples import Suspect
from fedtilt.text_tables import csv_text


def suspects_csv(suspects: Iterable[Suspect]) -> str:
    """One line per suspect, with the columns of `Suspect`; `fedtilt.data.corrections` reads it."""
    rows = ([round(value, 6) if isinstance(value, float) else value for value in suspect] for suspect in suspects)
    return csv_text([Suspect._fields, *rows])
