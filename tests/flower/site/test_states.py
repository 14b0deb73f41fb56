"""What sites keep: the states of two rounds, so the server can go back one round."""

from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.flower.site.states import SiteStates

HISTORY = "0123456789abcdef"


def model(round: int) -> dict[str, torch.Tensor]:
    return {"personal": torch.full((3,), float(round)), "buffers": torch.full((2,), -float(round))}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def states(tmp_path: Path) -> SiteStates:
    return SiteStates(tmp_path, HISTORY)


def test_there_is_no_model_before_the_first_round(states: SiteStates) -> None:
    assert states.current(0) == {}
    states.save(1, 0, model(1))
    assert states.current(0) == {}  # the server never aggregated round 1: round 1 is repeated
    assert equal(states.current(1), model(1))


def test_the_server_may_go_back_one_round(states: SiteStates) -> None:
    for round in (1, 4, 6):
        states.save(round, round - 1, model(round))
    assert states.rounds() == [4, 6]
    assert equal(states.current(5), model(4))  # the server repeats round 6
    states.save(6, 5, model(60))
    assert equal(states.current(6), model(60))
    assert states.rounds() == [4, 6]


def test_rounds_of_any_number_of_digits(states: SiteStates) -> None:
    for round in (99_998, 99_999, 100_000, 1_000_000):
        states.save(round, round - 1, model(round))
        assert equal(states.current(round), model(round))
    assert states.rounds() == [100_000, 1_000_000]
    assert equal(states.current(999_999), model(100_000))
    (states.folder / "round-00007 (copy).safetensors").touch()  # a user's copy
    assert states.rounds() == [100_000, 1_000_000]


def test_going_back_two_rounds_is_rejected_and_deletes_nothing(states: SiteStates) -> None:
    for round in (3, 5):
        states.save(round, round - 1, model(round))
    with pytest.raises(ft.InputError, match="the server went back to round 2"):
        states.current(2)
    assert states.rounds() == [3, 5]


def test_a_federation_that_starts_over_keeps_the_old_models(states: SiteStates, tmp_path: Path) -> None:
    states.save(5, 4, model(5))
    other = SiteStates(tmp_path, HISTORY[::-1])
    assert other.current(9) == {}
    other.save(1, 0, model(1))
    assert equal(states.current(5), model(5))


@pytest.mark.parametrize("history_id", ["", "../../etc", "0123456789abcdeg", HISTORY + "/.."])
def test_a_history_id_cannot_be_a_path(tmp_path: Path, history_id: str) -> None:
    with pytest.raises(ft.InputError, match="16 hexadecimal digits"):
        SiteStates(tmp_path, history_id)


def test_a_damaged_file_is_named(states: SiteStates) -> None:
    states.save(1, 0, model(1))
    states.path(1).write_bytes(b"rubbish")
    with pytest.raises(ft.InputError, match=r"round-00001\.safetensors is damaged"):
        states.current(1)
