"""`fedtilt init`: a spec that loads, never over a file of the user's."""

import tomllib
from pathlib import Path

from fedtilt import spec


def test_a_new_spec_loads_and_the_next_command_is_printed(fedtilt, tmp_path: Path) -> None:
    path = tmp_path / "new" / "mine.toml"
    result = fedtilt("init", str(path))
    assert result.code == 0
    assert f"wrote {path}" in result.out.replace("\n", "")
    assert f"fedtilt run {path}" in result.out.replace("\n", "")
    assert spec.load(path) == spec.load("digits", overrides=["name=mine"])
    assert [p.name for p in path.parent.iterdir()] == ["mine.toml"]


def test_a_file_is_overwritten_only_with_force(fedtilt, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seed = 1\n")
    result = fedtilt("init", str(path))
    assert result.code == 2
    assert "already exists" in result.err
    assert path.read_text() == "seed = 1\n"
    assert fedtilt("init", str(path), "--force").code == 0
    assert tomllib.loads(path.read_text())["name"] == "mine"
    for invalid in (tmp_path, path / "below.toml"):
        assert fedtilt("init", str(invalid)).code == 2


def test_the_reference_is_printed(fedtilt) -> None:
    assert fedtilt("init", "--reference").out == spec.reference()
