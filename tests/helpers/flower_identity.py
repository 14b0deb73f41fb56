"""The identity that Flower sets in its own processes, for tests that make messages in theirs."""

import pytest


@pytest.fixture(autouse=True)
def flower_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages carry the identity of the process that makes them; Flower sets it in its own processes."""
    from flwr.supercore.task_identity import TaskIdentity

    for key, value in {"_run_id": 1, "_node_id": 1, "_task_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, key, value)
