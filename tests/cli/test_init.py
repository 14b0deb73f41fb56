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


TABLE = "age,ward,hospital,well\n" + "".join(
    f"{20 + n % 37},{'abc'[n % 3]},{'north' if n % 5 else 'south'},{'yes' if n % 4 < 2 else 'no'}\n" for n in range(200)
)


def test_a_spec_for_a_table(fedtilt, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "patients.csv").write_text(TABLE)
    result = fedtilt("init", "mine.toml", "--table", "data/patients.csv", "--target", "well", "--client", "hospital")
    assert result.code == 0, result.err
    assert "wrote mine.toml: FedAvg, Ditto and FedTilt on data/patients.csv" in result.out.replace("\n", " ")
    assert 'file = "data/patients.csv"' in Path("mine.toml").read_text()  # relative to the spec
    loaded = spec.load("mine.toml")
    assert spec.federation_of(loaded, 0).client_names == ("north", "south")
    fedtilt("init", "alone.toml", "--table", "data/patients.csv", "--target", "well")
    assert spec.federation_of(spec.load("alone.toml"), 0).clients == 5
    for options, message in (
        (["--target", "well"], "--target well describes a table; name it with --table"),
        (["--table", "data/patients.csv", "--target", "ill"], "target = 'ill' is not a column of data/patients.csv"),
        (["--table", "data/patients.csv"], "needs a target"),
    ):
        result = fedtilt("init", "other.toml", *options)
        assert result.code == 2
        assert message in result.err.replace("\n", " ")
        assert not Path("other.toml").exists()


def test_the_json_schema_is_printed(fedtilt) -> None:
    assert fedtilt("init", "--json-schema").out == spec.json_schema()
