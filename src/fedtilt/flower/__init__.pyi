"""The public names of fedtilt.flower."""

from fedtilt.flower.client import client_app as client_app
from fedtilt.flower.policy import RoundPolicy as RoundPolicy
from fedtilt.flower.run_folder import ServerRunFolder as ServerRunFolder
from fedtilt.flower.schema_exchange import agree_on_schema as agree_on_schema
from fedtilt.flower.server import server_app as server_app
from fedtilt.flower.site_strategy import SiteStrategy as SiteStrategy
from fedtilt.flower.strategy import FedTiltStrategy as FedTiltStrategy
from fedtilt.flower.task import Task as Task

def check_installed() -> None: ...
