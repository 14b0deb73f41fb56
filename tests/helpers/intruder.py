"""Somebody with an account on the machine and no credential, who submits a Flower app of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

_APP = {
    "pyproject.toml": """\
[project]
name = "intruder"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "intruder.server:app"
clientapp = "intruder.client:app"
""",
    "intruder/__init__.py": """\
import os, pathlib
home = pathlib.Path(os.environ["FLWR_HOME"]).parent.name
pathlib.Path(@MARKS@, f"{home}-uid-{os.getuid()}").touch()
""",
    "intruder/client.py": """\
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
""",
    "intruder/server.py": """\
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    list(grid.send_and_receive([Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]))
""",
}

# Imports come before the change of user, who may not be able to read this Python.
_SUBMIT = """
import hashlib, json, os, ssl, sys
from flwr.cli.build import build_fab_from_files
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

url, files, token = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
content, _ = build_fab_from_files({path: text.encode() for path, text in files.items()})
interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
client = ControlHttpClient(url, verify=False, interceptors=interceptors)
if token:
    client._client.headers["Authorization"] = f"Bearer {token}"
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
print(client.StartRun(StartRunRequest(fab=fab)).run_id)
"""


def write_intruder(folder: Path, marks: Path) -> Path:
    """A Flower project that leaves a file in the folder `marks` wherever any of its code runs."""
    for name, text in intruder_files(marks).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def intruder_files(marks: Path) -> dict[str, str]:
    """The files of that project by name."""
    marks.mkdir(exist_ok=True)
    marks.chmod(0o777)
    return {name: text.replace("@MARKS@", repr(str(marks))) for name, text in _APP.items()}


def submit_as_another_user(url: str, marks: Path, token: str = "") -> subprocess.CompletedProcess[str]:
    """Submit the app as another user, without key and certificate; prints the number of the run.

    Without a token it is somebody with an account on the server. With the owner's, it is a server of others.
    """
    files = json.dumps(intruder_files(marks))
    command = [sys.executable, "-W", "ignore", "-c", _SUBMIT, url, files, token]
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
