"""Texts that people write: specs, overrides, tables and schemas."""

import contextlib
import csv
import io
import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet

import fedtilt as ft
from chaos.fuzz.mutate import ODD_TEXTS, ODD_VALUES, dump_json, mutated_bytes, mutated_json
from chaos.fuzz.runner import Read
from chaos.small_run import SPEC, TABLE
from fedtilt import spec
from fedtilt.config.setting_fields import settings_of
from fedtilt.data.tables.schema import read_schema
from fedtilt.spec.fields import TABLES
from fedtilt.spec.method import MethodSpec
from fedtilt.toml_text import format_toml


def specs(folder: Path) -> Read:
    """Spec files: mutated text, and mutated values under known and unknown keys."""
    texts = [SPEC.encode(), spec.annotated().encode(), spec.dump(spec.load("mnist")).encode()]
    tables = [tomllib.loads(text.decode()) for text in texts]
    path = folder / "mutated.toml"

    def read(rng: random.Random) -> None:
        if rng.random() < 0.5:
            content = mutated_bytes(rng.choice(texts), rng, texts)
        else:
            content = _toml(mutated_json(rng.choice(tables), rng)).encode(errors="replace")
        path.write_bytes(content)
        for method in spec.load(path).methods:
            method.to_method()

    return read


def _toml(value: Any) -> str:
    """A table as TOML on one level of tables; what TOML has no form for is text."""
    if not isinstance(value, dict):
        return str(value)
    with contextlib.suppress(RecursionError):
        return "\n".join(f"{format_toml(str(k))} = {format_toml(_without_none(v))}" for k, v in value.items())
    return f"a = {'[' * 5000}"


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(part) for key, part in value.items()}
    return [_without_none(part) for part in value] if isinstance(value, list) else "none" if value is None else value


def overrides(folder: Path) -> Read:
    """Texts after --set, names after --method, and seeds."""
    keys = [f"{table}.{key}" for table, settings in TABLES.items() for key in settings_of(settings)]
    keys += [f"methods.fedtilt.{key}" for key in settings_of(MethodSpec)] + ["seed", "seeds", "device", "name"]

    def read(rng: random.Random) -> None:
        value = rng.choice(ODD_VALUES)
        text = value if isinstance(value, str) else json.dumps(value)
        override = f"{rng.choice(keys)}={text}"
        if rng.random() < 0.5:
            override = mutated_bytes(override.encode(), rng).decode(errors="surrogateescape")
        methods = [rng.choice(("fedavg", "ditto", *ODD_TEXTS))] if rng.random() < 0.1 else []
        loaded = spec.load("digits", overrides=[override], methods=methods)
        for method in loaded.methods:
            method.to_method()

    return read


def tables(folder: Path) -> Read:
    """CSV files with odd cells, columns and bytes, and damaged Parquet files."""
    content, rows = TABLE.encode(), [line.split(",") for line in TABLE.splitlines()]
    others = [b'"a\n""b",', b"1.5;2,5;", b"\xfc,\xe9\n", b"2026-13-45,", b"NA,null,,", b"=1+1,@x,"]
    text, parquet = folder / "mutated.csv", folder / "mutated.parquet"
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(content)), parquet)
    parquet_content = parquet.read_bytes()

    def read(rng: random.Random) -> None:
        path, kind = text, rng.random()
        if kind < 0.3:
            text.write_bytes(mutated_bytes(content, rng, others))
        elif kind < 0.9:
            with text.open("w", newline="", errors="replace") as file:
                csv.writer(file).writerows(_odd_cells(rows, rng))
        else:
            path = parquet
            parquet.write_bytes(mutated_bytes(parquet_content, rng))
        dataset = ft.data.table(path, target="y", client=rng.choice(("site", None)))
        if dataset.row_names is not None:
            assert dataset.row_names[0]

    return read


def _odd_cells(rows: list[list[str]], rng: random.Random) -> list[list[str]]:
    """Rows with odd texts in some cells, and columns that are repeated, removed or filled with odd texts."""
    rows = [list(row) for row in rows]
    for _ in range(rng.choice((1, 1, 2, 5))):
        row, column = rng.choice(rows), rng.randrange(len(rows[0]))
        match rng.randrange(6):
            case 0:
                for other in rows:
                    other.append(other[column])
            case 1 if len(rows[0]) > 1:
                for other in rows:
                    del other[column]
            case 2:
                for other in rows[1:]:
                    other[column] = rng.choice(ODD_TEXTS)
            case 3:
                rows[0][column] = rng.choice(ODD_TEXTS)
            case 4:
                del rows[rng.randrange(1, len(rows) + 1) :]
            case _:
                row[column] = rng.choice(ODD_TEXTS)
    return rows


def schemas(folder: Path) -> Read:
    """Schema files, and the table that they describe."""
    table = folder / "table.csv"
    table.write_text(TABLE)
    schema = ft.data.table(table, target="y", client="site").schema
    assert schema is not None
    values, text = json.loads(schema.text()), schema.text().encode()
    path = folder / "schema.json"

    def read(rng: random.Random) -> None:
        if rng.random() < 0.3:
            path.write_bytes(mutated_bytes(text, rng))
        else:
            path.write_text(dump_json(mutated_json(values, rng)))
        known = read_schema(path)
        if rng.random() < 0.3:
            ft.data.table(table, schema=known)

    return read
