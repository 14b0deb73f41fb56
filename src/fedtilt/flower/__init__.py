"""The same rounds on a real Flower federation: `plan` and `train` on the sites, `server_update` on the server.

task      what the federation learns: a spec and, optionally, a model and a function that reads a site's data
site      one client: trains, evaluates, stores its personal model and its report
client    a Flower ClientApp around a site
strategy  a Flower Strategy: selects sites, checks every reply (`replies`, `membership`), aggregates, counts rejections
server    a Flower ServerApp around the strategy: run folder, checkpoints, resume (`run_folder`), and going back to a
          good round (`model_jumps`, `training_history`)
schema    sites with tables agree on one schema before the first round

`messages`, `model_arrays` and `schema.messages` define everything that is sent.
"""

from fedtilt.errors import InputError

try:
    import flwr as _flwr  # noqa: F401
except ImportError:
    raise InputError('fedtilt.flower needs Flower, which is not installed; pip install "fedtilt[flower]"') from None

from fedtilt.flower.client import client_app
from fedtilt.flower.policy import RoundPolicy
from fedtilt.flower.run_folder import ServerRunFolder
from fedtilt.flower.schema.exchange import agree_on_schema
from fedtilt.flower.server import server_app
from fedtilt.flower.strategy import FedTiltStrategy
from fedtilt.flower.task import Task

__all__ = ["FedTiltStrategy", "RoundPolicy", "ServerRunFolder", "Task", "agree_on_schema", "client_app", "server_app"]
