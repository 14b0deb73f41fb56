"""What sites keep: the states of the rounds that the server can go back to."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt.flower.site_files import DamagedState, SiteStates
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.state import ClientState

HISTORY = TrainingHistory("0123456789abcdef")


def model(round: int) -> ClientState:
    return ClientState(personal=torch.full((3,), float(round)), buffers=torch.full((2,), -float(round)))


def value(states: SiteStates, base_round: int) -> int:
    """The round whose model is current, as its values say."""
    state = states.current(base_round)
    assert state is not None
    kept = state.read(model(0))
    assert kept.buffers.tolist() == [-kept.personal[0]] * 2
    return int(kept.personal[0])


@pytest.fixture
def states(tmp_path: Path) -> SiteStates:
    return SiteStates(tmp_path, HISTORY)


def test_there_is_no_model_before_the_first_round(states: SiteStates) -> None:
    assert states.current(0) is None
    states.save(1, 0, model(1))
    assert states.current(0) is None  # the server never aggregated round 1: round 1 is repeated
    assert value(states, 1) == 1


def test_the_server_may_go_back_one_round(states: SiteStates) -> None:
    for round in (1, 4, 6):
        states.save(round, round - 1, model(round))
    assert states.rounds() == [4, 6]
    assert value(states, 5) == 4  # the server repeats round 6
    states.save(6, 5, model(60))
    assert value(states, 6) == 60
    assert states.rounds() == [4, 6]


def test_rounds_of_any_number_of_digits(states: SiteStates) -> None:
    for round in (99_998, 99_999, 100_000, 1_000_000):
        states.save(round, round - 1, model(round))
        assert value(states, round) == round
    assert states.rounds() == [100_000, 1_000_000]
    assert value(states, 999_999) == 100_000
    (states.folder / "round-00007 (copy).safetensors").touch()  # a user's copy
    assert states.rounds() == [100_000, 1_000_000]


def test_the_states_of_kept_rounds_stay_and_no_others(states: SiteStates) -> None:
    for round in range(1, 10):
        if round != 6:  # in which the site was not selected
            states.save(round, round - 1, model(round), keep=[0, 3, 6, 8])
    assert states.rounds() == [3, 5, 8, 9]


def test_a_server_that_goes_back_starts_a_new_history_in_which_the_site_goes_back_too(tmp_path: Path) -> None:
    first = SiteStates(tmp_path, HISTORY)
    for round in (2, 4, 6, 7):
        first.save(round, round - 1, model(round), keep=[2, 5])
    second_history = HISTORY.branch(5)
    second = SiteStates(tmp_path, second_history)
    assert value(second, 5) == 4
    assert value(second, 9) == 4  # selected later: still nothing of the rounds 6 and 7 that were left
    second.save(7, 6, model(70), keep=[2, 5, 6])
    assert value(second, 7) == 70
    third = SiteStates(tmp_path, second_history.branch(6))
    assert value(third, 6) == 4  # of the first history: the second has nothing before its round 7
    fourth = SiteStates(tmp_path, second_history.branch(2))
    assert value(fourth, 2) == 2
    assert SiteStates(tmp_path, second_history.branch(1)).current(5) is None
    assert first.rounds() == [2, 4, 6, 7]  # left alone
    assert second.rounds() == [7]


def test_a_server_that_goes_back_two_rounds_in_one_history_is_refused(states: SiteStates) -> None:
    for round in (3, 5):
        states.save(round, round - 1, model(round))
    for base_round in (2, 3):
        with pytest.raises(ft.InputError, match=rf"went back to round {base_round}, and this site has trained round 5"):
            states.current(base_round)
    assert states.rounds() == [3, 5]


def test_a_federation_that_starts_over_keeps_the_old_models(states: SiteStates, tmp_path: Path) -> None:
    states.save(5, 4, model(5))
    other = SiteStates(tmp_path, TrainingHistory.new())
    assert other.current(9) is None
    other.save(1, 0, model(1))
    assert value(states, 5) == 5


@pytest.mark.parametrize("history_id", ["", "../../etc", "0123456789abcdeg", HISTORY.id + "/.."])
def test_a_history_id_cannot_be_a_path(history_id: str) -> None:
    for arguments in ((history_id,), (HISTORY.id, ((history_id, 3),))):
        with pytest.raises(ft.InputError, match="16 hexadecimal digits"):
            TrainingHistory(*arguments)


def test_a_damaged_file_is_named(states: SiteStates) -> None:
    states.save(1, 0, model(1))
    states.path(1).write_bytes(b"rubbish")
    state = states.current(1)
    assert state is not None
    message = "the state of this site after round 1 starts again from the shared model: .*round-00001.safetensors is"
    with pytest.raises(DamagedState, match=message):
        state.read(model(0))


def test_no_flipped_bit_is_silent(states: SiteStates) -> None:
    states.save(1, 0, model(1))
    content, rng = states.path(1).read_bytes(), random.Random(0)
    state = states.current(1)
    assert state is not None
    for bit in rng.sample(range(8 * len(content)), 240):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        states.path(1).write_bytes(damaged)
        with pytest.raises(DamagedState, match=r"round-00001\.safetensors"):
            state.read(model(0))


def test_a_state_of_another_model_is_refused_and_one_that_cannot_be_read_is_not_lost(states: SiteStates) -> None:
    states.save(1, 0, model(1))
    state = states.current(1)
    assert state is not None
    for other in (ClientState(personal=torch.zeros(3)), replace(model(0), personal=torch.zeros(4))):
        with pytest.raises(DamagedState, match=r"is of another model: it has buffers \(2,\) torch.float32, personal"):
            state.read(other)
    states.path(1).unlink()
    states.path(1).mkdir()  # stands for any error of the disk: the file behind it may be intact
    with pytest.raises(ft.InputError, match="cannot be read") as error:
        state.read(model(0))
    assert not isinstance(error.value, DamagedState)
