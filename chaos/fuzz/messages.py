"""What comes from outside of a process: the replies of sites, and command lines."""

import contextlib
import io
import os
import random
from pathlib import Path

import numpy as np

import fedtilt as ft
from chaos.child import Outcome, command
from chaos.fuzz.mutate import ODD_TEXTS, mutated_bytes
from chaos.fuzz.runner import Read
from chaos.small_run import TABLE, write_spec


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
        assert all(bool(np.isfinite(a.numpy()).all()) for a in arrays.values()), "the aggregate is not finite"

    return read


def arguments(folder: Path) -> Read:
    """Command lines that read files or fail; none that trains, downloads or deploys."""
    os.chdir(folder)
    ft.data.load("digits")  # imports scikit-learn, which takes seconds
    (folder / "table.csv").write_text(TABLE)
    write_spec(folder)
    (folder / "empty").mkdir()
    commands = (
        ["export"], ["report"], ["resume"], ["init"], ["data", "show"], ["data", "list"], ["data", "check"],
        ["data", "schema"], ["data"], ["run", "--seeds", "0"], ["run", "no.toml"], ["check"], [],
    )  # fmt: skip
    words = (
        "table.csv", "small.toml", "empty", "nowhere", "/proc/self/mem", "/dev/null", "--help", "--to", "--out",
        "--force", "--target", "y", "--client", "site", "--method", "ditto", "--seed", "--set",
        "train.rounds=1", "--json", "-q", "--schema", "--kinds", "--drop", "age", "--table", "--",
        "out.json", "out.toml", "digits", "toy-2",
        *(text for text in ODD_TEXTS if "\0" not in text),  # which no command line has
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
