"""Corrections of training data: samples left out or relabelled by a file, and one line for a file that does not fit."""

import csv
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.data.corrections import corrected


@pytest.fixture(scope="module")
def federation() -> ft.Federation:
    return ft.Federation.build(
        ft.data.load("digits"), clients=4, max_train=30, outliers="flips", outlier_rate=0.5, outlier_redraw="once"
    )


def write(path: Path, *rows: tuple[str, str, str]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("row", "label", "looks_like"), *rows])
    return str(path)


def lines(federation: ft.Federation, client: int, positions: list[int], looks_like: str) -> list[tuple[str, str, str]]:
    names, y = federation.row_names(client), federation.train(client, seed=0, round=1)[1]
    return [(names[k], federation.class_names[int(y[k])], looks_like) for k in positions]


def test_samples_are_left_out_and_the_others_keep_their_labels(federation: ft.Federation, tmp_path: Path) -> None:
    path = write(tmp_path / "suspects.csv", *lines(federation, 1, [0, 7], "3"), *lines(federation, 2, [5], "3"))
    smaller = corrected(federation, exclude=path)
    assert (federation.train_sizes() - smaller.train_sizes()).tolist() == [0, 2, 1, 0]
    for client in range(4):
        x, y = federation.train(client, seed=0, round=1)
        keep = torch.ones(len(y), dtype=torch.bool)
        keep[{1: [0, 7], 2: [5]}.get(client, [])] = False
        new_x, new_y = smaller.train(client, seed=9, round=3)
        assert torch.equal(new_y, y[keep])
        assert torch.equal(new_x, x[keep])
        assert torch.equal(smaller.test(client)[1], federation.test(client)[1])
    assert smaller.outliers.kind == "none"


def test_samples_get_the_label_they_look_like(federation: ft.Federation, tmp_path: Path) -> None:
    path = write(tmp_path / "suspects.csv", *lines(federation, 3, [2, 4], "9"))
    relabelled = corrected(federation, relabel=path)
    before, after = (fed.train(3, seed=0, round=1)[1] for fed in (federation, relabelled))
    assert (before != after).nonzero()[:, 0].tolist() == [k for k in (2, 4) if int(before[k]) != 9]
    assert after[[2, 4]].tolist() == [9, 9]
    assert 9 in relabelled.client_classes[3].tolist()


def test_without_files_nothing_changes(federation: ft.Federation) -> None:
    assert corrected(federation) is federation


@pytest.mark.parametrize(
    ("rows", "how", "message"),
    [
        ([("training sample 99999", "3", "5")], "exclude", "line 2: 'training sample 99999' is no sample of 'digits'"),
        ("twice", "exclude", "in line 2 and in line 3; delete one of them"),
        ("other label", "exclude", "audit the data again"),
        ("no class", "relabel", "looks_like = 'ten' is no class; choose one of 0, 1, 2"),
        ("whole client", "exclude", "leaves client 0 without training data"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(
    federation: ft.Federation, tmp_path: Path, rows: object, how: str, message: str
) -> None:
    names = {
        "twice": lines(federation, 0, [1, 1], "5"),
        "other label": [(federation.row_names(0)[0], "none", "5")],
        "no class": lines(federation, 0, [1], "ten"),
        "whole client": lines(federation, 0, list(range(len(federation.train_index[0]))), "5"),
    }
    path = write(tmp_path / "suspects.csv", *(names[rows] if isinstance(rows, str) else rows))  # type: ignore[misc]
    with pytest.raises(ft.InputError, match=message) as error:
        corrected(federation, **{how: path})
    assert "\n" not in str(error.value)


def test_a_file_without_the_columns_and_a_missing_one_are_refused(federation: ft.Federation, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ft.InputError, match="has no column 'row'"):
        corrected(federation, exclude=str(tmp_path / "other.csv"))
    with pytest.raises(ft.InputError, match="cannot be read"):
        corrected(federation, exclude=str(tmp_path / "none.csv"))
    with pytest.raises(ft.InputError, match="both to exclude and to relabel"):
        corrected(federation, exclude="same.csv", relabel="same.csv")


def test_samples_that_another_seed_uses_for_validation_stay(tmp_path: Path) -> None:
    data = ft.data.load("digits")
    federations = [ft.Federation.build(data, clients=4, max_train=30, validation=0.5, seed=seed) for seed in (0, 1)]
    path = write(tmp_path / "suspects.csv", *lines(federations[0], 0, list(range(10)), "5"))
    kept = corrected(federations[1], exclude=path)
    used = {name for client in range(4) for name in kept.row_names(client)}
    assert not used & {row for row, _, _ in lines(federations[0], 0, list(range(10)), "5")}
    assert [len(rows) for rows in kept.validation_index] == [len(rows) for rows in federations[1].validation_index]


def test_other_static_noise_is_refused(tmp_path: Path) -> None:
    noisy = ft.Federation.build(
        ft.data.load("digits"), clients=4, max_train=30, outliers="gaussian", outlier_redraw="once"
    )
    path = write(tmp_path / "suspects.csv")
    with pytest.raises(ft.InputError, match="depend on the number of samples"):
        corrected(noisy, exclude=path)
