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

from fedtilt.errors import InputError
from fedtilt.lazy_imports import lazy_names

if find_spec("flwr") is None:
    raise InputError('fedtilt.flower needs Flower, which is not installed; pip install "fedtilt[flower]"')

__getattr__, __dir__, __all__ = lazy_names(globals())  # a site does not import what the server needs
