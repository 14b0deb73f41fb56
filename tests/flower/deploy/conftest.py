"""One real SuperLink for all tests that ask it something."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from tests.helpers.network import running_superlink

    with running_superlink(tmp_path_factory.mktemp("server"), sites=1) as cluster:
        yield cluster
