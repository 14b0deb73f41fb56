"""The columns that are no features: target, client, group, weight and split, as the user names them."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedtilt.data.tables.columns import Columns
from fedtilt.data.tables.schema import ROLES, Schema, read_schema
from fedtilt.errors import InputError

Roles = Mapping[str, str | int | Sequence[str | int] | None]  # the columns that are no features, by what they are


def known_schema(
    schema: Schema | str | os.PathLike[str] | None, roles: Roles, task: str | None = None
) -> Schema:  # fmt: skip
    """What the user says of a table: a schema or the path of one, the roles of columns, and the task."""
    known = schema if isinstance(schema, Schema) else Schema(columns=()) if schema is None else read_schema(schema)
    group = roles.get("group") or ()
    names: dict[str, str | tuple[str, ...]] = {
        role: str(name) for role, name in roles.items() if name is not None and role != "group"
    }
    if group:
        names["group"] = (str(group),) if isinstance(group, str | int) else tuple(map(str, group))
    for role, name in names.items():
        written = getattr(known, role)
        if written and written != name:
            raise InputError(f"{role} = {name!r} differs from the schema's, {written!r}; correct one of them")
    written = known.task or ("classification" if known.classes else None)
    task = task or written
    if written not in (None, task):
        raise InputError(f"task = {task!r} differs from the schema's, {written!r}; correct one of them")
    return replace(known, task=task, **names)  # type: ignore[arg-type]


def check_names(columns: Columns, schema: Schema, drop: Iterable[str]) -> None:
    """Refuse names that are no columns, and columns with two roles."""
    known = ", ".join(columns.header)
    used: dict[str, str] = {}
    wanted = [
        *schema.roles,
        *(("schema", column.name) for column in schema.columns),
        *(("drop", n) for n in drop),
    ]
    for role, name in wanted:
        if name not in columns.header:
            raise InputError(f"{role} = {name!r} is not a column of {columns.name}; its columns are {known}")
        if role == "drop" and used.get(name) not in (None, "split_time"):
            raise InputError(f"drop contains {name!r}, which is the {used[name]}; leave it out")
        if role in ROLES and role != "split_time":
            if name in used:
                raise InputError(
                    f"{used[name]} and {role} are both {name!r}; they must be two columns of {columns.name}"
                )
            used[name] = role
    splits = [role for role in ("split", "split_group", "split_time") if getattr(schema, role) is not None]
    if len(splits) > 1:
        raise InputError(f"{' and '.join(splits)} are two ways to split; choose one")
