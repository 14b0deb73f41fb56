"""A real nginx in front of a SuperLink, with the configuration that `fedtilt deploy server` writes."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed: make nginx")

MAIN = """\
{user}
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {configuration};
}}
"""


@contextmanager
def nginx(folder: Path, configuration: str) -> Iterator[None]:
    """Serve a configuration for nginx's http section; the process is stopped at the end."""
    folder.mkdir(parents=True)
    (folder / "site.conf").write_text(configuration)
    user = "user root;" if os.getuid() == 0 else ""  # the folders of a test are private
    main = folder / "nginx.conf"
    main.write_text(MAIN.format(user=user, folder=folder, configuration=folder / "site.conf"))
    command = ["nginx", "-p", str(folder), "-c", str(main), "-e", "stderr"]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    with (folder / "error.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        while not (folder / "nginx.pid").exists():
            assert process.poll() is None, (folder / "error.log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(30)
