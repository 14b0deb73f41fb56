"""The same rounds on a real Flower federation: `plan` and `train` on the sites, `server_update` on the server.

task      what the federation learns: a spec and, optionally, a model and a function that reads a site's data
site      one client: trains, evaluates, stores its state and its report (`site_files`), reads its data (`site_data`)
client    a Flower ClientApp around a site; checks what the server changes of the project that the operator has allowed
strategy  a Flower Strategy for the clients of any Flower app: our rules and screening in place of Flower's average
site_strategy
          a Strategy for our sites: selects them, checks every reply (`membership`), aggregates, counts rejections
server    a Flower ServerApp around `site_strategy`: sites with tables agree on one schema before the first round
          (`schema_exchange`), run folder, checkpoints, resume (`run_folder`), going back to a good round
          (`training_history`); how far it is, from these files (`run_status`)

`messages` and `evaluation` define everything that is sent, `message_fields` how it is encoded and checked.
`flwr_internals` and `deploy/guarded` are the only files that use more of Flower than its public API.
"""

from importlib.util import find_spec

from fedtilt.errors import InputError
from fedtilt.imports import install_command
from fedtilt.lazy_imports import lazy_names

_get, __dir__, __all__ = lazy_names(globals())  # a site does not import what the server needs


def check_installed() -> None:
    """Raise InputError if Flower is not installed."""
    if find_spec("flwr") is None:
        raise InputError(f"fedtilt.flower needs Flower, which is not installed; {install_command('flower')}")


def __getattr__(name: str) -> object:
    if name in __all__:
        check_installed()
    return _get(name)
