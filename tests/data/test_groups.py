"""TableReader of groups: their combination, their way through a federation, and bad ones."""

import pytest
import torch

import fedtilt as ft
from fedtilt.errors import InputError, InputWarning

pandas = pytest.importorskip("pandas")

N = 120


def frame() -> "pandas.DataFrame":
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=rng)
    return pandas.DataFrame(
        {
            "x1": x[:, 0], "x2": x[:, 1], "ill": (x[:, 0] > 0).tolist(),
            "sex": ["f", "m", "f"] * (N // 3), "age": ["old", "young"] * (N // 2), "site": ["a"] * 70 + ["b"] * 50,
        }
    )  # fmt: skip


def test_several_columns_also_give_their_combination() -> None:
    data = ft.data.table(frame(), target="ill", client="site", group=["sex", "age"])
    columns = data.groups
    assert list(columns) == ["sex", "age", "sex & age"]
    assert columns["sex & age"].names == ("f & old", "f & young", "m & old", "m & young")
    for row in range(len(data.y_train)):
        pair = " & ".join(columns[name].names[int(columns[name].train[row])] for name in ("sex", "age"))
        assert columns["sex & age"].names[int(columns["sex & age"].train[row])] == pair
    assert set(data.schema.inputs) == {"x1", "x2", "sex = f", "sex = m", "age = old", "age = young"}


def test_groups_follow_the_samples_of_every_client_and_split() -> None:
    table = frame()
    data = ft.data.table(table, target="ill", client="site", group="sex")
    fed = ft.Federation.build(data, validation=0.2, max_train=30, outliers="flips")
    assert fed.group == "sex"
    assert ft.Federation.build(ft.data.load("toy-2")).group == "class"

    def sexes(client: str, split: str) -> list[str]:
        return [table["sex"][int(name.split()[-1])] for name in fed.row_names(client, split)]

    for client in ("a", "b"):
        codes = fed.train_groups(client)["sex"]
        assert [("f", "m")[k] for k in codes] == sexes(client, "train")
    for split in ("test", "validation"):
        codes = fed.evaluation_groups(split)["sex"]
        assert [("f", "m")[k] for k in codes] == sexes("a", split) + sexes("b", split)


def test_a_group_stays_an_input_unless_the_user_says_otherwise() -> None:
    plain = ft.data.table(frame(), target="ill", client="site")
    grouped = ft.data.table(frame(), target="ill", client="site", group="sex")
    assert grouped.schema.columns == plain.schema.columns
    assert torch.equal(grouped.x_train, plain.x_train)
    without = ft.data.table(frame(), target="ill", client="site", group="sex", group_is_input=False)
    dropped = ft.data.table(frame(), target="ill", client="site", drop=["sex"])
    assert without.schema.columns == dropped.schema.columns
    assert torch.equal(without.x_train, dropped.x_train)
    assert without.group_names == grouped.group_names == {"sex": ("f", "m")}
    again = ft.data.table(frame(), schema=without.schema)  # a schema says which columns are inputs
    assert torch.equal(again.x_train, without.x_train)
    with pytest.raises(InputError, match="group_is_input = False, and the schema has 'sex' as an input; correct one"):
        ft.data.table(frame(), schema=grouped.schema, group_is_input=False)
    with pytest.raises(InputError, match="group_is_input = False has no effect without group"):
        ft.data.table(frame(), target="ill", group_is_input=False)


def test_a_number_can_be_group_and_input() -> None:
    table = frame().assign(ward=[f"{n % 3}" for n in range(N)], stage=[n % 4 for n in range(N)])
    data = ft.data.table(table, target="ill", group=["ward", "stage"])
    assert [data.schema.column(name).kind for name in ("ward", "stage")] == ["number", "number"]
    assert data.group_names == {"ward": ("0", "1", "2"), "stage": ("0", "1", "2", "3")}


def test_a_schema_carries_the_groups(tmp_path) -> None:
    data = ft.data.table(frame(), target="ill", group=["sex", "age"])
    data.schema.write(tmp_path / "schema.json")
    again = ft.data.table(frame(), schema=tmp_path / "schema.json")
    assert again.schema == data.schema
    assert again.group_names == {"sex": ("f", "m"), "age": ("old", "young")}
    assert ft.data.Schema.from_json(data.schema.to_json() | {"group": "sex"}).group == ("sex",)


def test_bad_groups_are_refused() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    fields = {"name": "mine", "x_train": x, "y_train": y, "x_test": x, "y_test": y, "classes": 2}
    names = {"sex": ("f", "m")}
    cases = [
        ({"group_train": {"sex": y}}, "has only some of group_train, group_test and group_names"),
        ({"group_train": y, "group_test": y, "group_names": names}, "group_train of type Tensor; give a dictionary"),
        ({"group_train": {"sex": y}, "group_test": {"age": y}, "group_names": names}, "give each the same columns"),
        ({"group_train": {"sex": y + 1}, "group_test": {"sex": y}, "group_names": names}, r"\['sex'\] up to 2 and dow"),
        ({"group_train": {"sex": y[:2]}, "group_test": {"sex": y}, "group_names": names}, "give 4 int64 numbers"),
        ({"group_train": {"class": y}, "group_test": {"class": y}, "group_names": {"class": ("f", "m")}}, "rename it"),
        ({"group_train": {"sex": y}, "group_test": {"sex": y}, "group_names": ("f", "m")}, "give the names by column"),
    ]
    for groups, message in cases:
        with pytest.raises(InputError, match=message):
            ft.data.Dataset(**fields, **groups)
    data = ft.data.table(frame().assign(sex="f"), target="ill", client="site", group="sex")
    with pytest.raises(InputError, match="group = 'sex' has one value, 'f', in .*; choose a column with two or more"):
        ft.Federation.build(data)
    with pytest.raises(InputError, match="group = 'gender' is not a column"):
        ft.data.table(frame(), target="ill", group="gender")
    with pytest.raises(InputError, match="target and group are both 'ill'"):
        ft.data.table(frame(), target="ill", group="ill")


def test_what_a_client_lacks_and_small_groups_are_named() -> None:
    table = frame()
    table["ward"] = ["icu"] * 4 + ["surgery"] * 36 + ["medicine"] * 80
    with pytest.warns(InputWarning) as caught:
        ft.Federation.build(ft.data.table(table, target="ill", client="site", group="ward"))
    texts = [str(warning.message) for warning in caught]
    assert (
        "no training sample of ward 'icu' at client 'b', of ward 'surgery' at client 'b'; a client's tilts are over "
        "the groups it has" in texts
    )
    assert any(t.startswith("ward 'icu' (") and "fewer than 10 test samples, so their figures" in t for t in texts)
