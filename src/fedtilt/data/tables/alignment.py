"""Which sites' tables do not fit together, and what differs."""

from collections.abc import Mapping, Sequence

from fedtilt.data.tables.kinds import TEXT_KINDS
from fedtilt.data.tables.schema import Schema
from fedtilt.data.tables.summary import ColumnSummary, Summary

_FAMILY = {"number": "number", "yes/no": "number", "date": "date"} | dict.fromkeys(TEXT_KINDS, "text")


def misfits(summaries: Sequence[Summary], schema: Schema) -> dict[str, str]:
    """By site: the first thing in which it differs from the schema or from most other sites.

    A column that all other sites leave out of the features may be absent, and the order of columns and classes may
    differ. Where as many sites have a column as lack it, those that lack it do not fit.

    Args:
        summaries: the sites' summaries
        schema: what is known already
    """
    reasons: dict[str, str] = {}
    columns: dict[str, dict[str, ColumnSummary]] = {}  # by name and site
    for summary in summaries:
        for column in summary.columns:
            columns.setdefault(column.name, {})[summary.site] = column
    described = {column.name for column in schema.columns}
    for name, sites in columns.items():
        lacking = [summary.site for summary in summaries if summary.site not in sites]
        _add(reasons, _lacks_column(name, sites, lacking))
        if name not in described:
            _add(reasons, _other_kind(name, sites))
    for summary in summaries:
        unknown = [name for name in summary.classes if schema.classes and name not in schema.classes]
        if unknown:
            known = ", ".join(schema.classes or ())
            reason = f"has the class {unknown[0]!r}, which the schema lacks; its classes are {known}"
            reasons.setdefault(summary.site, reason)
    return {summary.site: reasons[summary.site] for summary in summaries if summary.site in reasons}


def describe_site(name: str) -> str:
    """A site in a message; a table without a site's name is the only one."""
    return f"site {name!r}" if name else "the table"


def _lacks_column(name: str, sites: Mapping[str, ColumnSummary], lacking: Sequence[str]) -> dict[str, str]:
    if not lacking or all(column.kind in (None, "ignore", "identifier") for column in sites.values()):
        return {}
    if len(lacking) <= len(sites):
        reason = (
            f"has no column {name!r}, which {describe_site(next(iter(sites)))} has; add it there, or give every site "
            "a schema without it"
        )
        return dict.fromkeys(lacking, reason)
    reason = f"has the column {name!r}, which {describe_site(lacking[0])} lacks; drop it there, or add it to all sites"
    return dict.fromkeys(sites, reason)


def _other_kind(name: str, sites: Mapping[str, ColumnSummary]) -> dict[str, str]:
    families: dict[str, list[str]] = {}
    for site, column in sites.items():
        if column.kind is not None:
            families.setdefault(_FAMILY[column.kind], []).append(site)
    if len(families) < 2:
        return {}
    most = max(families.values(), key=len)  # the first of equals
    usual = f"{sites[most[0]].kind} at {describe_site(most[0])}"
    return {
        site: f"has column {name!r} as {sites[site].kind}, and it is {usual}; make them the same, or write the "
        "column's kind into the schema"
        for others in families.values() if others is not most
        for site in others
    }  # fmt: skip


def _add(reasons: dict[str, str], more: Mapping[str, str]) -> None:
    for site, reason in more.items():
        reasons.setdefault(site, reason)
