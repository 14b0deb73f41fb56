"""Addresses, a missing Ray, and nodes with other versions: one line each."""

import socket
import sys

import pytest

import fedtilt as ft
from fedtilt.cluster.connection import check_address, import_ray
from fedtilt.rounds.settings import TrainSettings
from tests.helpers import plain_loop

FED = plain_loop.federation()


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ft.InputError, match=r'^a cluster needs Ray, .* pip install "fedtilt\[cluster\]"$'):
        import_ray()


def test_an_address_that_does_not_answer_is_refused_before_training() -> None:
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(ft.InputError, match=f"^cluster '{address}' does not answer .*start it with ray start --head"):
        list(ft.simulate([ft.fedavg()], FED, ft.models.mlp, rounds=1, cluster=address))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "is for Ray's client.* use ray job submit"),
        ("head", "is not an address; use host:port of the head node, or auto"),
        ("head:port", "is not an address"),
    ],
)
def test_what_is_not_an_address_is_refused(address: str, message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        check_address(address)


def test_settings_that_have_no_effect_are_refused() -> None:
    with pytest.raises(ft.InputError, match="cluster_timeout = 5.0 has no effect here; set cluster"):
        TrainSettings(cluster_timeout=5)
    with pytest.raises(ft.InputError, match="workers = 0 leaves nothing to train on a cluster"):
        TrainSettings(cluster="auto", workers=0)
    with pytest.raises(ft.InputError, match="stack_size = 4 has no effect: backend .* trains one client at a time"):
        ft.simulate([ft.fedavg()], FED, ft.models.mlp, rounds=1, stack_size=4)
