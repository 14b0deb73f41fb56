"""Mutations of bytes, text and JSON values; the same generator gives the same mutations."""

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

ODD_TEXTS = (
    "", " ", "\n", "\0", "\x1b[2J\x1b]0;x\x07", "a\nb", "a\rb", "\u202etxt.exe", "n" * 5000, "../../etc/passwd", "/",
    "\\", "=1+1", "@SUM(A1)", "-2+3", "nan", "inf", "1e400", "0x10", "true", "é" * 300, "\ufeff", "😀", "%s%n", "${x}",
    "'\"`",
)  # fmt: skip
ODD_NUMBERS = (0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e-320, 1e308, -1e308)
ODD_VALUES = (None, True, False, [], {}, [[]], [None], {"a": 1}, {"": {}}, *ODD_NUMBERS, *ODD_TEXTS)
_ODD_BYTES = (
    b"\0",
    b"\xff",
    b"\n",
    b"\r",
    b'"',
    b"'",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b";",
    b"=",
    b".",
    b"\x80",
    b"\xed\xa0\x80",
    b"[" * 5000,
)


def mutated_bytes(content: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Some bits flipped, slices deleted, repeated, replaced or taken from another input."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 200)))
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end] * rng.choice((1, 2, 50))
            case 3:
                data[at:end] = rng.choice(_ODD_BYTES) * rng.choice((1, 1, 3, 100))
            case 4:
                data[at:end] = rng.randbytes(end - at)
            case 5:
                del data[at:]
            case 6 if others:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                data[at:end] = other[start : start + 100]
            case _:
                data[at:at] = str(rng.choice((*ODD_NUMBERS, *ODD_TEXTS))).encode(errors="replace")
    return bytes(data)


def mutated_json(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON value in which some entries are replaced, removed, added or nested."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 5))):
        places = _places(value)
        if not places:
            return copy.deepcopy(rng.choice(ODD_VALUES))
        parent, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[rng.choice(ODD_TEXTS)] = parent.pop(key)
            case 2:
                parent[key] = [parent[key]]
            case 3:
                other_parent, other_key = rng.choice(places)
                parent[key] = copy.deepcopy(other_parent[other_key])
            case 4:
                # a copy of a deeper one would exceed the stack
                parent[key] = nested(rng.choice((5, 60, 150)), rng.random() < 0.5)
            case _:
                parent[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    return value


def nested(levels: int, as_table: bool) -> Any:
    """A list in a list in a list …, or a table in a table."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if as_table else [value]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (list or table, index or key) in a value, without the deepest levels of very deep ones."""
    places, level = [], [value]
    for _ in range(20):
        entries = [(part, key) for part in level if isinstance(part, dict) for key in part]
        entries += [(part, index) for part in level if isinstance(part, list) for index in range(len(part))]
        places += entries
        level = [part[key] for part, key in entries]
    return places


def dump_json(value: Any) -> str:
    """A value as JSON; one that is nested too deeply for that as a text that is too."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 100_000
