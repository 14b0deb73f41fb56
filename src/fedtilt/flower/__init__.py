"""The same method on a real Flower federation: `plan`, `descend` and `settle`, on servers and clients of their own.

task      what is learnt: a spec, and where it is not the spec's own, a model and a function that reads a site's data
site      one client: trains, judges, keeps its personal model in files (`locker`) and its report (`site_report`)
client    a Flower ClientApp around a site
strategy  a Flower Strategy: selects, checks every reply (`wire`, `roster`), settles, counts what it refused
server    a Flower ServerApp around the strategy: run folder, checkpoints, resume (`ledger`)

What travels is written down in `wire`, and nothing else does.
"""

from fedtilt.errors import InputError

try:
    import flwr as _flwr  # noqa: F401
except ImportError:
    raise InputError('fedtilt.flower needs Flower, which is not installed; pip install "fedtilt[flower]"') from None

from fedtilt.flower.client import client_app
from fedtilt.flower.policy import Rules
from fedtilt.flower.run_folder import Ledger
from fedtilt.flower.server import server_app
from fedtilt.flower.strategy import FedTiltStrategy
from fedtilt.flower.task import Task

__all__ = ["FedTiltStrategy", "Ledger", "Rules", "Task", "client_app", "server_app"]
