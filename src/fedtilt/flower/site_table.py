"""A site's table: its summary and its data set, and what differs if it does not fit the schema."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedtilt.data import Column, Dataset, Schema
from fedtilt.data.tables.reader import Source, TableReader, open_reader
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.data.tables.values import class_numbers, read_column, read_names
from fedtilt.errors import InputError
from fedtilt.spec import Spec, known_schema_of, table_of


class SchemaMismatch(InputError):
    """A table that does not fit the schema; `difference` has no more of the table than names and kinds of columns."""

    def __init__(self, message: str, *, difference: str) -> None:
        super().__init__(message)
        self.difference = difference


def site_summary(spec: Spec, source: Source, number: int, *, shared: bool) -> SiteSummary:
    """What a site sends of its table, so that all sites agree on one schema, if it shares its summary."""
    if not shared:
        raise _withheld(known_schema_of(spec))
    with _differences(spec, source, None, shared=True):
        table = table_of(spec, source, site=number)
        summary = table.site_summary(spec.data.test_share, spec.seed)
    _check_few_values(summary, table.schema.min_count)
    return summary


def _check_few_values(summary: SiteSummary, min_count: int) -> None:
    """Raise SchemaMismatch for a mean over too few values, which would reveal them."""
    for column in (*summary.columns, *([] if summary.numbers is None else [summary.numbers])):
        if column.mean is not None and column.rows < min_count:
            text = (
                f"has fewer than {min_count} training rows with a value in column {column.name!r}, whose mean would "
                "reveal them; drop the column, or write its statistics or a smaller min_count into the project's schema"
            )
            raise SchemaMismatch(f"this site {text}", difference=text)


def site_dataset(spec: Spec, source: Source, number: int, schema: Schema, *, shared: bool) -> Dataset:
    """A site's table as a data set, as the agreed schema says."""
    known = known_schema_of(spec)
    if (schema.roles, schema.is_regression) != (known.roles, known.is_regression):  # the server chooses no target
        text = "has a project in which other columns are the target, the groups or the like than in the schema"
        raise SchemaMismatch(f"this site {text}; give the server and all sites one project", difference=text)
    if not shared and schema != known:
        raise _withheld(known)
    with _differences(spec, source, schema, shared=shared):
        table = table_of(spec, source, site=number).with_schema(schema)
        return table.to_dataset(spec.data.test_share, spec.seed)


def _withheld(known: Schema) -> SchemaMismatch:
    target = known.numbers if known.is_regression else known.classes
    missing = "numbers of its target" if known.is_regression else "classes"
    what = "columns" if not known.columns else missing if target is None else "statistics of its columns"
    text = f"withholds its summary (share-summary = false), and the project's schema has no {what}"
    return SchemaMismatch(f"this site {text}; write data.schema with fedtilt data schema", difference=text)


@contextmanager
def _differences(spec: Spec, source: Source, schema: Schema | None, *, shared: bool) -> Iterator[None]:
    """Make an error about the schema a `SchemaMismatch`; others, which may quote cells, stay as they are."""
    try:
        yield
    except InputError as error:
        try:
            difference = _difference(spec, source, schema, shared=shared)
        except InputError:
            difference = None  # the table cannot be read at all
        if difference is None:
            raise
        raise SchemaMismatch(str(error), difference=difference) from error


def _difference(spec: Spec, source: Source, schema: Schema | None, *, shared: bool) -> str | None:
    """The first difference between a table and the schema; without `shared`, in the names of the schema alone."""
    known = known_schema_of(spec)
    as_text = [] if known.target is None or known.is_regression else [known.target]
    reader = open_reader(source, text=as_text, files=known.files)
    for role, name in known.roles:
        if role != "client" and name not in reader.header:
            return f"has no column {name!r}, which is the {role}"
    optional = [column.name for column in known.columns if column.gaps]
    expected = (schema or known).columns
    for column in expected:
        if column.is_feature and column.name not in (*reader.header, *optional):
            return f"has no column {column.name!r}, which the schema has"
    taken = {*(name for _, name in known.roles), *spec.data.drop, *(column.name for column in expected)}
    for name in reader.header:
        if expected and name not in taken:
            return f"has {f'the column {name!r}' if shared else 'a column'}, which the schema lacks"
    for column in expected:
        if column.name in reader.header and not _can_read(reader, column):
            return f"has cells in column {column.name!r} that are no {column.kind}"
    if known.is_regression and known.target is not None and not _can_read(reader, _number(known.target)):
        return f"has cells in column {known.target!r} that are no number"
    classes = (schema or known).classes
    if classes is not None and known.target is not None:
        names = read_names(reader, known.target, gaps=True)[1]
        unknown = [name for name in names if name not in class_numbers(names, classes)]
        if unknown:
            return f"has {f'the class {unknown[0]!r}' if shared else 'a class'}, which the schema lacks"
    return None


def _number(name: str) -> Column:
    return Column(name=name, kind="number")


def _can_read(reader: TableReader, column: Column) -> bool:
    try:
        read_column(reader, column.name, column)
    except InputError:
        return False
    return True
