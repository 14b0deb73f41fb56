"""The manifests for Kubernetes: rendered, checked by its schemas, and against what `fedtilt deploy` writes."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedtilt.flower.deploy import machines

# imported where they are used: it takes long
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="needs kubernetes_validate"
)
ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes"
HOME = "/var/lib/fedtilt/home"
VERSIONS = ("1.30", "1.36")
needs_kustomize = pytest.mark.skipif(
    shutil.which("kubectl") is None and shutil.which("kustomize") is None, reason="neither kubectl nor kustomize"
)
Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def written(kind: str) -> list[Document]:
    return documents((FOLDER / kind / f"{kind}.yaml").read_text())


def of_kind(kind: str, found: list[Document]) -> Document:
    (document,) = (d for d in found if d["kind"] == kind)
    return document


def pod(kind: str) -> Document:
    return dict(of_kind("StatefulSet", written(kind))["spec"]["template"]["spec"])


def rendered(folder: Path) -> str:
    program = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
    done = subprocess.run([*program, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(document: Document) -> None:
    import kubernetes_validate

    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("kind", ["server", "site"])
def test_every_manifest_has_the_schema_of_kubernetes(kind: str) -> None:
    for document in written(kind):
        check(document)


def test_the_schema_rejects_a_key_that_kubernetes_does_not_know() -> None:
    import kubernetes_validate

    broken = of_kind("StatefulSet", written("site"))
    broken["spec"]["template"]["spec"]["containers"][0]["comand"] = ["sh"]
    with pytest.raises(kubernetes_validate.ValidationError):
        check(broken)


@needs_kustomize
@pytest.mark.parametrize("kind", ["server", "site"])
def test_kustomize_renders_them(kind: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    (tmp_path / "kubernetes/site/ca.crt").write_text("the server's certificate\n")
    found = documents(rendered(tmp_path / "kubernetes" / kind))
    for document in found:
        check(document)
    assert {d["metadata"].get("namespace") for d in found if d["kind"] != "Namespace"} == {
        of_kind("Namespace", found)["metadata"]["name"]
    }
    maps = {d["metadata"]["name"]: d["data"] for d in found if d["kind"] == "ConfigMap"}
    spec = of_kind("StatefulSet", found)["spec"]["template"]["spec"]
    used = {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v}
    used |= {source["configMapRef"]["name"] for c in spec["initContainers"] for source in c.get("envFrom", [])}
    assert used == set(maps)  # by their rendered names
    assert "run-unit.sh" in {key for data in maps.values() for key in data}
    images = {c["image"] for c in (*spec["initContainers"], *spec["containers"])}
    assert not images & {"fedtilt", "nginx"}  # the kustomization says which


@pytest.mark.parametrize("kind", ["server", "site"])
def test_every_container_is_bounded(kind: str) -> None:
    spec = pod(kind)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001  # the Dockerfile's
    assert "USER 10001" in (ROOT / "Dockerfile").read_text()
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    assert of_kind("StatefulSet", written(kind))["spec"]["replicas"] == 1


def test_the_network_reaches_nginx_alone() -> None:
    ports = {c["name"]: c["ports"] for kind in ("server", "site") for c in pod(kind)["containers"] if "ports" in c}
    assert ports == {"proxy": [{"name": "fleet", "containerPort": 9092}]}
    server, site = (of_kind("NetworkPolicy", written(kind))["spec"] for kind in ("server", "site"))
    assert (server["ingress"], server["egress"]) == ([{"ports": [{"port": "fleet"}]}], [])
    assert site["ingress"] == []
    assert {port["port"] for rule in site["egress"] for port in rule["ports"]} == {53, 9092}


def test_no_manifest_has_a_key_or_a_secret() -> None:
    for kind in ("server", "site"):
        assert all(document["kind"] != "Secret" for document in written(kind))
    mounts = {
        m.get("subPath", "") for c in pod("server")["containers"] if c["name"] == "proxy" for m in c["volumeMounts"]
    }
    assert not any("ca.key" in path or path == "home" for path in mounts)  # nginx cannot read the authority's key
    data = [c["name"] for c in pod("site")["containers"] if any(m["name"] == "data" for m in c["volumeMounts"])]
    assert data == ["executor"]


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files that the init containers write."""
    volume = tmp_path_factory.mktemp("volume")
    machines.write_server(volume / "server/home", ["fl.example.org"], port=9092, superlink_port=9093, days=30)
    authority = volume / "server/home/certificates/ca.crt"
    odd = {"data": "/data/a `b` $HOME 50%.csv"}
    machines.write_site(volume / "site/home", 0, "fl.example.org:9092", authority, node_config=odd)
    return {"server": volume / "server/home", "site": volume / "site/home"}


@pytest.mark.parametrize("kind", ["server", "site"])
def test_the_files_that_the_containers_use_are_those_that_fedtilt_deploy_writes(
    kind: str, homes: dict[str, Path]
) -> None:
    home, ports = homes[kind], {"server": "9093", "site": "9094"}
    for container in pod(kind)["containers"]:
        paths = [text for text in container.get("command", []) if text.startswith(HOME)]
        paths += [f"{HOME}/{m['subPath'].removeprefix('home/')}" for m in container["volumeMounts"] if "subPath" in m]
        probe = container.get("readinessProbe", {}).get("exec", {}).get("command", [""])[-1]
        paths += re.findall(r'cafile="([^"]+)"', probe)
        assert all((home / Path(path).relative_to(HOME)).is_file() for path in paths), paths
        assert paths
        if probe:
            assert f"https://127.0.0.1:{ports[kind]}/health" in probe
    if kind == "server":
        proxy = (home / "units/fedtilt-proxy.conf").read_text().replace(str(home), HOME)
        mounted = {m["mountPath"] for c in pod(kind)["containers"] for m in c["volumeMounts"]}
        assert set(re.findall(rf"{HOME}/[\w./]+", proxy)) <= mounted


@pytest.mark.parametrize("unit", ["fedtilt-site.service", "fedtilt-site-executor.service"])
def test_run_unit_starts_the_program_of_a_unit(unit: str, homes: dict[str, Path], tmp_path: Path) -> None:
    """The arguments and the environment are those that systemd would give the program."""
    seen = tmp_path / "seen.py"
    seen.write_text("import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))\n")
    text = (homes["site"] / "units" / unit).read_text()
    started = f"{sys.executable} -P -m fedtilt.flower.deploy.guarded"
    assert started in text
    copy = tmp_path / unit
    copy.write_text(text.replace(started, f"{sys.executable} {seen}"))
    done = subprocess.run(
        ["sh", FOLDER / "run-unit/run-unit.sh", copy],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    arguments, environment, folder = json.loads(done.stdout)
    assert folder == str(homes["site"])
    assert environment["FLWR_HOME"] == str(homes["site"] / "flwr")
    assert environment["FEDTILT_ALLOWED_APPS"] == str(homes["site"] / "allowed_apps")
    if unit == "fedtilt-site.service":
        assert arguments[0] == "supernode"
        config = arguments[arguments.index("--node-config") + 1]
        assert config.endswith('data="/data/a `b` $HOME 50%.csv"')
    else:
        assert arguments[0] == "site-executor"


# -- the RayJob of docs/cluster.md -----------------------------------------------------------------------------------

TEXT, TEXTS, NUMBER, FLAG = (
    {"type": "string"},
    {"additionalProperties": {"type": "string"}},
    {"type": "integer"},
    {"type": "boolean"},
)
POD = {"type": "object", "properties": {"metadata": {}, "spec": {"type": "object"}}, "additionalProperties": False}


def closed(required: list[str], **properties: Document) -> Document:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


# the fields that KubeRay's definitions of ray.io/v1 (RayJobSpec, RayClusterSpec) have had since version 1.1, without
# those for the autoscaler and the service of the head; pods are checked by the schemas of Kubernetes
RAY_JOB = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata={"type": "object", "required": ["name"]},
    spec=closed(
        [],
        entrypoint=TEXT, runtimeEnvYAML=TEXT, jobId=TEXT, metadata=TEXTS, clusterSelector=TEXTS, suspend=FLAG,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode"]}, submitterPodTemplate=POD, entrypointResources=TEXT,
        entrypointNumCpus={"type": "number"}, entrypointNumGpus={"type": "number"}, backoffLimit=NUMBER,
        activeDeadlineSeconds=NUMBER, shutdownAfterJobFinishes=FLAG, ttlSecondsAfterFinished=NUMBER,
        rayClusterSpec=closed(
            ["headGroupSpec"],
            rayVersion=TEXT, enableInTreeAutoscaling=FLAG, suspend=FLAG, headServiceAnnotations=TEXTS,
            headGroupSpec=closed(
                ["rayStartParams", "template"], rayStartParams=TEXTS, template=POD, serviceType=TEXT, enableIngress=FLAG
            ),
            workerGroupSpecs={
                "type": "array",
                "items": closed(
                    ["groupName", "rayStartParams", "template", "minReplicas", "maxReplicas"],
                    groupName=TEXT, rayStartParams=TEXTS, template=POD,
                    replicas=NUMBER, minReplicas=NUMBER, maxReplicas=NUMBER, numOfHosts=NUMBER,
                ),
            },
        ),
    ),
)  # fmt: skip


def ray_job() -> str:
    """The manifest of the page."""
    (text,) = re.findall(r"```text\n(apiVersion: ray.io.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL)
    return str(text)


def check_ray_job(job: Document) -> None:
    import jsonschema  # kubernetes_validate needs it

    jsonschema.validate(job, RAY_JOB)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]})


def test_the_ray_job_of_the_cluster_page() -> None:
    (job,) = documents(ray_job())
    check_ray_job(job)
    (pinned,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned
    command = subprocess.run(["sh", "-n", "-c", job["spec"]["entrypoint"]], capture_output=True, text=True, check=False)
    assert command.returncode == 0, command.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("backoffLimit", "backofLimit"),  # no such field
        ("minReplicas: 1", "minReplicas: '1'"),  # another type
        ("        maxReplicas: 8\n", ""),  # a field that is needed
        ('num-cpus: "0"', "num-cpus: 0"),  # KubeRay takes texts
        ("claimName", "claim"),  # in a pod
    ],
)
def test_the_schema_of_a_ray_job_rejects_mistakes(old: str, new: str) -> None:
    import jsonschema
    import kubernetes_validate

    assert old in ray_job()
    (job,) = documents(ray_job().replace(old, new))
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check_ray_job(job)


@needs_kustomize
def test_kustomize_renders_the_ray_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(ray_job())
    (tmp_path / "kustomization.yaml").write_text("namespace: study\nresources: [job.yaml]\n")
    (job,) = documents(rendered(tmp_path))
    check_ray_job(job)
    (written,) = documents(ray_job())
    assert job == written | {"metadata": {"name": "fedtilt", "namespace": "study"}}  # the anchor &pod is resolved
