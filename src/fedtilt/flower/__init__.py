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

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedtilt.errors import InputError
from fedtilt.lazy_imports import lazy_names

if find_spec("flwr") is None:
    raise InputError('fedtilt.flower needs Flower, which is not installed; pip install "fedtilt[flower]"')

if TYPE_CHECKING:
    from fedtilt.flower.client import client_app
    from fedtilt.flower.policy import RoundPolicy
    from fedtilt.flower.run_folder import ServerRunFolder
    from fedtilt.flower.schema.exchange import agree_on_schema
    from fedtilt.flower.server import server_app
    from fedtilt.flower.strategy import FedTiltStrategy
    from fedtilt.flower.task import Task
else:  # a site does not import what the server needs
    __getattr__, __dir__ = lazy_names(
        globals(),
        {
            "FedTiltStrategy": "fedtilt.flower.strategy:FedTiltStrategy",
            "RoundPolicy": "fedtilt.flower.policy:RoundPolicy",
            "ServerRunFolder": "fedtilt.flower.run_folder:ServerRunFolder",
            "Task": "fedtilt.flower.task:Task",
            "agree_on_schema": "fedtilt.flower.schema.exchange:agree_on_schema",
            "client_app": "fedtilt.flower.client:client_app",
            "server_app": "fedtilt.flower.server:server_app",
        },
    )

__all__ = ["FedTiltStrategy", "RoundPolicy", "ServerRunFolder", "Task", "agree_on_schema", "client_app", "server_app"]
