"""Files: damage is found, and a write changes nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtilt.errors import InputError
from fedtilt.files import (
    read_html,
    read_json,
    read_metadata,
    read_tensors,
    read_toml,
    write_bytes,
    write_html,
    write_json,
    write_tensors,
    write_toml,
)

CONTENT = {"round": 12, "clients": ["north", "süd"], "accuracy": 97.03125}
TENSORS = {"w": torch.arange(6.0).reshape(2, 3), "ever": torch.tensor([True, False])}


def read_all(path: Path) -> tuple[dict[str, str], dict[str, list[Any]]]:
    return read_metadata(path), {name: tensor.tolist() for name, tensor in read_tensors(path).items()}


@pytest.mark.parametrize(
    ("write", "read", "refused"),
    [
        (lambda path: write_json(path, CONTENT), read_json, 0.9),  # not the spaces of the layout
        (lambda path: write_toml(path, 'rounds = 5\nname = "digits"\n'), read_toml, 1.0),
        (lambda path: write_html(path, "<html>\n<p>94.2 %</p>\n</html>"), read_html, 1.0),
        (lambda path: write_tensors(path, TENSORS, {"method": "ditto"}), read_all, 1.0),
    ],
)
def test_a_damaged_bit_of_any_byte_is_refused_or_changes_nothing(
    tmp_path: Path, write: Callable[[Path], object], read: Callable[[Path], object], refused: float
) -> None:
    path = tmp_path / "file"
    write(path)
    content, expected = path.read_bytes(), read(path)
    errors = []
    for byte in range(len(content)):
        damaged = bytearray(content)
        damaged[byte] ^= 1 << byte % 8
        path.write_bytes(damaged)
        try:
            assert read(path) == expected, f"bit {byte % 8} of byte {byte}"
        except InputError as error:
            errors.append(str(error))
    assert len(errors) >= refused * len(content)
    assert all(error.startswith(str(path)) and "restore it from a copy" in error for error in errors)
    assert not any("\n" in error for error in errors)


def test_a_file_without_a_digest_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json") == {"a": 1}
    write_json(tmp_path / "list.json", [1, 2])
    assert json.loads((tmp_path / "list.json").read_text()) == [1, 2]
    (tmp_path / "a.toml").write_text("a = 1\n# as it was\n")
    assert read_toml(tmp_path / "a.toml") == "a = 1\n# as it was\n"


def test_a_tensor_file_of_another_digest_is_refused(tmp_path: Path) -> None:
    sha256 = write_tensors(tmp_path / "a", TENSORS)
    write_tensors(tmp_path / "b", {"w": torch.zeros(2)})
    assert read_tensors(tmp_path / "a", sha256)["w"].equal(TENSORS["w"])
    for digest in (sha256, {"a": 1}):  # what stands in a damaged file need not be a text
        with pytest.raises(InputError, match="b is damaged, or another file"):
            read_tensors(tmp_path / "b", digest)  # type: ignore[arg-type]


def test_a_write_never_follows_a_link_of_its_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    os.symlink(tmp_path / "mine.txt", tmp_path / "a.json.part")
    write_bytes(tmp_path / "a.json", b"{}")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "mine.txt"]
