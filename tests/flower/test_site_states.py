"""Personal models on their site: two are kept, and one step back is possible."""

from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.flower.site_states import Locker

HISTORY = "0123456789abcdef"


def model(round: int) -> torch.Tensor:
    return torch.full((3,), float(round))


@pytest.fixture
def locker(tmp_path: Path) -> Locker:
    return Locker(tmp_path, HISTORY)


def test_the_first_round_starts_from_nothing(locker: Locker) -> None:
    assert locker.last(0) is None
    locker.keep(1, 0, model(1))
    assert locker.last(0) is None  # the server never aggregated round 1: it is the first again
    assert torch.equal(locker.last(1), model(1))


def test_one_step_back(locker: Locker) -> None:
    for round in (1, 4, 6):
        locker.keep(round, round - 1, model(round))
    assert locker.rounds() == [4, 6]
    assert torch.equal(locker.last(5), model(4))  # the server begins round 6 again
    locker.keep(6, 5, model(60))
    assert torch.equal(locker.last(6), model(60))
    assert locker.rounds() == [4, 6]


def test_rounds_of_any_number_of_digits(locker: Locker) -> None:
    for round in (99_998, 99_999, 100_000, 1_000_000):
        locker.keep(round, round - 1, model(round))
        assert torch.equal(locker.last(round), model(round))
    assert locker.rounds() == [100_000, 1_000_000]
    assert torch.equal(locker.last(999_999), model(100_000))
    (locker.folder / "round-00007 (copy).safetensors").touch()  # a person's own
    assert locker.rounds() == [100_000, 1_000_000]


def test_two_steps_back_are_refused_and_nothing_is_lost(locker: Locker) -> None:
    for round in (3, 5):
        locker.keep(round, round - 1, model(round))
    with pytest.raises(ft.InputError, match="the server went back to round 2"):
        locker.last(2)
    assert locker.rounds() == [3, 5]


def test_a_federation_that_starts_over_leaves_the_old_models_alone(locker: Locker, tmp_path: Path) -> None:
    locker.keep(5, 4, model(5))
    other = Locker(tmp_path, HISTORY[::-1])
    assert other.last(9) is None
    other.keep(1, 0, model(1))
    assert torch.equal(locker.last(5), model(5))


@pytest.mark.parametrize("history", ["", "../../etc", "0123456789abcdeg", HISTORY + "/.."])
def test_a_history_is_no_path(tmp_path: Path, history: str) -> None:
    with pytest.raises(ft.InputError, match="16 hexadecimal digits"):
        Locker(tmp_path, history)


def test_a_damaged_file_is_named(locker: Locker) -> None:
    locker.keep(1, 0, model(1))
    locker.path(1).write_bytes(b"rubbish")
    with pytest.raises(ft.InputError, match=r"round-00001\.safetensors is damaged"):
        locker.last(1)
