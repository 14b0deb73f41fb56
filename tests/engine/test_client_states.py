"""Client states in memory and in files: the same tensors, few files, and none that is changed."""

import random
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from fedtilt.engine.client_states import _MAX_FILES, ClientStates
from fedtilt.errors import InputError
from fedtilt.state import ClientState


def state(value: float) -> ClientState:
    return ClientState(personal=torch.full((20,), float(value)))  # 80 bytes


@pytest.mark.parametrize("limit", [0, 250, 10**9])
@pytest.mark.parametrize("persistent", [True, False])
def test_states_are_in_memory_or_on_disk(tmp_path: Path, limit: int, persistent: bool) -> None:
    states = ClientStates(tmp_path if persistent else None, limit_bytes=limit)
    for round in (1, 2):
        for n in range(10):
            states.put(("m", n), round, state(n + 10 * round))
    assert len(states._in_memory) == {0: 1, 250: 2, 10**9: 10}[limit]  # at most half of the limit, or one
    assert len(states) == 10
    assert ("m", 11) not in states
    assert states.get(("m", 11)).is_empty
    for n in range(10):
        assert torch.equal(states.get(("m", n)).personal, state(n + 20).personal)
        assert states.round_of(("m", n)) == 2
    assert {owner: stored.round for owner, stored in states.save_all().items()} == {("m", n): 2 for n in range(10)}


def test_random_changes_never_change_a_file_and_leave_few(tmp_path: Path) -> None:
    rng, states = random.Random(0), ClientStates(tmp_path, limit_bytes=1000)
    current: dict[int, float] = {}
    checkpoints, contents = [], {}
    for round in range(1, 61):
        for n in rng.sample(range(60), rng.choice([1, 2, 20])):
            current[n] = rng.random()
            states.put(("m", n), round, state(current[n]))
        checkpoints = [*checkpoints[-1:], (states.save_all(), dict(current))]
        states.prune({stored.file for saved, _ in checkpoints for stored in saved.values()})
        for path in tmp_path.iterdir():
            assert contents.setdefault(path.name, path.read_bytes()) == path.read_bytes()
        for saved, expected in checkpoints:  # both can be restored
            restored = ClientStates(tmp_path)
            restored.restore(saved)
            assert {n: restored.get(("m", n)).personal[0].item() for n in expected} == pytest.approx(expected)
    assert len(list(tmp_path.iterdir())) <= _MAX_FILES + 5
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < 4 * sum(stored.size for stored in checkpoints[-1][0].values())


def test_one_file_per_checkpoint(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for round in (1, 2, 3):
        for n in range(200):
            states.put((f"m{n % 2}", n), round, state(n))
        states.save_all()
        assert len(list(tmp_path.iterdir())) == round
    assert states.save_all() == states.save_all()  # nothing new: no file
    states.prune([])
    assert [path.name for path in tmp_path.iterdir()] == ["states-000003"]


def test_damage_is_found_state_by_state(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for n in range(5):
        states.put(("m", n), 1, state(n))
    saved = states.save_all()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for byte in range(0, len(content), 7):
        path.write_bytes(content[:byte] + bytes([content[byte] ^ 16]) + content[byte + 1 :])
        states.restore(saved)
        hit = next(owner for owner, s in saved.items() if s.start <= byte < s.start + s.size)
        assert states.damaged() == {hit: path}
        with pytest.raises(InputError, match=f"states-000001 is damaged where it has the state of client {hit[1]} "):
            states.get(hit)
    states.remove(hit)
    assert states.damaged() == {}
    assert states.owners() == [owner for owner in saved if owner != hit]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_copy_respects_its_limit(tmp_path: Path, persistent: bool) -> None:
    states = ClientStates(tmp_path if persistent else None, limit_bytes=240)
    for n in range(10):
        states.put(("m", n), 10 - n, state(n))
    copied = deepcopy(states)
    for n in range(3):
        copied.put(("m", 20 + n), 11 + n, state(20 + n))
    assert copied._bytes_in_memory <= 240
    for n in (*range(10), 20, 21, 22):
        assert torch.equal(copied.get(("m", n)).personal, state(n).personal)
    for n in range(10):
        assert torch.equal(states.get(("m", n)).personal, state(n).personal)


def test_a_new_state_overwrites_the_old_one_in_memory(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.put(("m", 0), 1, state(1))
    saved, kept = states.save_all(), states.get(("m", 0)).personal
    states.put(("m", 0), 2, state(2))
    assert states.get(("m", 0)).personal is kept
    assert torch.equal(kept, state(2).personal)
    assert states.save_all()[("m", 0)].file == 2  # the file of the first round is unchanged
    states.restore(saved)
    assert torch.equal(states.get(("m", 0)).personal, state(1).personal)
    states.put(("m", 0), 3, ClientState(personal=torch.zeros(3)))  # another shape
    assert states.get(("m", 0)).personal.shape == (3,)
