"""Vectors in an object store: their values are fetched when, and only when, they are needed."""

import pickle

import pytest
import torch

from fedtilt.cluster.remote_tensor import LostTensorError
from tests.helpers.object_store import Store

VALUES = torch.arange(5.0)


def test_it_is_passed_on_and_copied_without_its_values() -> None:
    store = Store()
    remote = store.put(VALUES, [slice(0, 3), slice(3, 5)])
    store.blocks.clear()
    assert remote.clone() is remote
    assert remote.to("cpu") is remote
    assert (remote.shape, remote.dtype, remote.nbytes) == ((5,), torch.float32, 20)
    with pytest.raises(LostTensorError, match="resume the run"):
        remote + 1


def test_operations_fetch_the_values() -> None:
    remote = Store().put(VALUES, [slice(0, 3), slice(3, 5)])
    assert torch.equal(remote - 2 * VALUES, -VALUES)
    assert torch.equal(torch.stack([remote, VALUES]), torch.stack([VALUES, VALUES]))
    assert torch.equal(torch.zeros(5).copy_(remote), VALUES)
    assert torch.equal(pickle.loads(pickle.dumps(remote)), VALUES)


def test_it_cannot_be_written() -> None:
    remote = Store().put(VALUES)
    with pytest.raises(RuntimeError, match="cannot be written"):
        remote.copy_(VALUES)
    with pytest.raises(RuntimeError, match="cannot be written"):
        remote += 1
