"""What reads inputs: specs, overrides, tables, schemas, run folders, replies, image files, tensors, command lines."""

import contextlib
import csv
import gzip
import io
import json
import os
import random
import shutil
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import torch
from safetensors.torch import save

import fedtilt as ft
from chaos.child import Outcome, command
from chaos.fuzz.mutate import ODD_TEXTS, ODD_VALUES, mutated_bytes, mutated_json
from chaos.fuzz.runner import Target
from chaos.small_run import METHOD, SPEC, TABLE, write_spec
from fedtilt import spec
from fedtilt.data.tables.schema import read_schema
from fedtilt.errors import InputError
from fedtilt.files import read_json, read_metadata, read_tensors
from fedtilt.report.run_reader import read_run
from fedtilt.runs.export import export_model
from fedtilt.runs.spec_run import resume, run_spec, spec_of
from fedtilt.spec.fields import TABLES
from fedtilt.spec.method import MethodSpec
from fedtilt.spec.write import format_toml

Read = Callable[[random.Random], object]


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
    keys = [f"{table}.{key}" for table, fields in TABLES.items() for key in fields.model_fields]
    keys += [f"methods.fedtilt.{key}" for key in MethodSpec.model_fields] + ["seed", "seeds", "device", "name"]

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
            path.write_text(_dump(mutated_json(values, rng)))
        known = read_schema(path)
        if rng.random() < 0.3:
            ft.data.table(table, schema=known)

    return read


def _dump(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 100_000


def run_folders(folder: Path) -> Read:
    """One damaged or changed file in a run folder: reports, exports and resumes read it."""
    original, run = folder / "original", folder / "run"
    loaded = spec.load(write_spec(folder))
    run_spec(loaded, original)
    files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file() and path.stat().st_size)

    def read(rng: random.Random) -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(original, run)
        _change_file(run / rng.choice(files), rng)
        for use in rng.sample(USES, len(USES)):
            with contextlib.suppress(InputError):
                use(run)
        rng.choice(USES)(run)

    return read


USES: list[Callable[[Path], object]] = [
    read_run,
    spec_of,
    lambda run: export_model(run, METHOD, 0),
    lambda run: export_model(run, "fedavg"),
    resume,
]


def _change_file(path: Path, rng: random.Random) -> None:
    """Mutate a file; of JSON also the values, without the digest, so that it is not just refused as damaged."""
    content = path.read_bytes()
    match rng.randrange(10):
        case 0:
            path.unlink()
        case 1:
            path.unlink()
            path.symlink_to("/nowhere" if rng.random() < 0.5 else path.name)
        case 2:
            path.unlink()
            path.mkdir()
        case 3 | 4 | 5 | 6 if path.suffix == ".json":
            path.write_text(_dump(mutated_json(read_json(path), rng)))
        case 3 | 4 | 5 | 6 if path.suffix == ".jsonl":
            lines = [{k: v for k, v in json.loads(line).items() if k != "digest"} for line in content.splitlines()]
            lines[rng.randrange(len(lines))] = mutated_json(rng.choice(lines), rng)
            path.write_text("\n".join(map(_dump, lines)) + "\n")
        case _:
            path.write_bytes(mutated_bytes(content, rng))


def image_files(folder: Path) -> Read:
    """The idx files of MNIST, compressed or not."""
    names = [content.name for content in ft.data.published.catalog.entry("mnist").contents]
    arrays = [torch.zeros(6, 28, 28), torch.arange(6) % 10, torch.zeros(4, 28, 28), torch.arange(4) % 10]
    blobs = {
        name: bytes([0, 0, 8, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.to(torch.uint8).numpy().tobytes()
        for name, a in zip(names, arrays, strict=True)
    }
    data = folder / "mnist"
    data.mkdir()

    def write(compressed: bool) -> None:
        shutil.rmtree(data)
        data.mkdir()
        for name, blob in blobs.items():
            (data / (name + ".gz" * compressed)).write_bytes(gzip.compress(blob, 1) if compressed else blob)

    def read(rng: random.Random) -> None:
        compressed = rng.random() < 0.5
        write(compressed)
        path = data / (rng.choice(names) + ".gz" * compressed)
        content = path.read_bytes()
        if compressed and rng.random() < 0.5:
            path.write_bytes(gzip.compress(mutated_bytes(gzip.decompress(content), rng), 1))
        else:
            path.write_bytes(mutated_bytes(content, rng))
        ft.data.load("mnist", folder)

    return read


def tensors(folder: Path) -> Read:
    """Exported models and the other files of tensors: bytes, and headers with other values."""
    path = folder / "model.safetensors"
    model = ft.models.mlp((2,), 2, hidden=(4,))
    recipe = {"name": "mlp", "input_shape": [2], "classes": 2, "hidden": [4]}
    content = save(model.state_dict(), {"model": json.dumps(recipe)})  # without a digest: it would just differ
    size = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]

    def read(rng: random.Random) -> None:
        if rng.random() < 0.4:
            changed = _dump(mutated_json(header, rng)).encode(errors="replace")
            path.write_bytes(len(changed).to_bytes(8, "little") + changed + body)
        else:
            path.write_bytes(mutated_bytes(content, rng))
        reader = rng.choice((read_tensors, read_metadata, read_schema, ft.models.load))
        reader(path)

    return read


def replies(folder: Path) -> Read:
    """Replies of one site of three: the round is aggregated without it, or with a valid update."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from tests.flower.test_rejections import round_one

    for key in ("_run_id", "_node_id", "_task_id"):  # Flower sets them in its own processes
        setattr(TaskIdentity, key, 1)

    def read(rng: random.Random) -> None:
        strategy, _, site_replies = round_one()
        content = site_replies[1].content
        kind = rng.randrange(3)
        if kind == 0:
            array = rng.choice(list(content["arrays"].values()))
            field = rng.choice(("data", "dtype", "shape", "stype"))
            value = array.data if field == "data" else rng.choice(ODD_TEXTS)
            setattr(array, field, mutated_bytes(value, rng) if isinstance(value, bytes) else value)
            if field == "shape":
                array.shape = tuple(rng.choice((-1, 0, 1, 5, 2**40)) for _ in range(rng.randrange(5)))
        elif kind == 1:
            key = rng.choice(("round", "num-examples", rng.choice(ODD_TEXTS)))
            value = rng.choice((0, 1, -1, 2**63 - 1, 0.5, float("nan"), float("inf"), [1, 2], [0.5], []))
            content["metrics"][key] = value
        else:
            content.pop(rng.choice(list(content)))
            records = {"arrays": ArrayRecord(), "metrics": MetricRecord(), rng.choice(ODD_TEXTS): RecordDict()}
            name = rng.choice(list(records))
            with contextlib.suppress(TypeError):
                content[name] = records[name]
        arrays, metrics = strategy.aggregate_train(1, site_replies.values())
        rejected = strategy.membership.rejections()
        assert metrics["sites"] + metrics["rejected"] == 3
        assert (metrics["rejected"] == 1) == (list(rejected) == ["site 1"])
        assert all(bool((abs(a.numpy()) < 1e6).all()) for a in arrays.values()), "a reply has destroyed the model"

    return read


def arguments(folder: Path) -> Read:
    """Command lines that read files or refuse; none that trains, downloads or deploys."""
    os.chdir(folder)
    (folder / "table.csv").write_text(TABLE)
    write_spec(folder)
    (folder / "empty").mkdir()
    commands = (
        ["export"], ["report"], ["resume"], ["init"], ["data", "show"], ["data", "list"], ["data", "check"],
        ["data", "schema"], ["data"], ["run", "--seeds", "0"], ["run", "no.toml"], ["check"], [],
    )  # fmt: skip
    words = (
        "table.csv", "small.toml", "empty", "nowhere", "/proc/self/mem", "/dev/null", "--help", "--to", "--out",
        "--force", "--target", "y", "--client", "site", "--method", "ditto", "--seed", "--set", "train.rounds=1", "--json", "-q",
        "--schema", "--kinds", "--drop", "age", "--table", "--", "out.json", "out.toml", "digits", "toy-2", *ODD_TEXTS,
    )  # fmt: skip

    def read(rng: random.Random) -> None:
        chosen = [*rng.choice(commands), *(rng.choice(words) for _ in range(rng.randrange(6)))]
        for name in ("out.json", "out.toml", "fedtilt.toml"):
            (folder / name).unlink(missing_ok=True)
        streams = io.StringIO(), io.StringIO()
        code = 0
        try:
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                command(*chosen)()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        problem = Outcome(code, *(stream.getvalue() for stream in streams)).problem()
        assert problem is None or "Usage" in streams[0].getvalue() + streams[1].getvalue(), f"{chosen}: {problem}"

    return read


TARGETS: dict[str, tuple[Target, int]] = {  # with the number of inputs at scale 1
    "specs": (specs, 60_000),
    "overrides": (overrides, 40_000),
    "tables": (tables, 15_000),
    "schemas": (schemas, 30_000),
    "run folders": (run_folders, 4_000),
    "replies": (replies, 15_000),
    "image files": (image_files, 15_000),
    "tensors": (tensors, 40_000),
    "command lines": (arguments, 3_000),
}
