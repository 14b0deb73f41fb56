"""A Flower ServerApp around the strategy: trains a run from start to end, or from its last checkpoint."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedtilt.data import Schema
from fedtilt.engine.prepare import backend_for, check_audit, check_settings_used, example_jobs
from fedtilt.engine.root_set import RootSet
from fedtilt.errors import InputError
from fedtilt.evaluation.results import Result
from fedtilt.flower.deploy.credentials import site_keys
from fedtilt.flower.flwr_internals import limit_reply_size, max_reply_size, network_grid
from fedtilt.flower.policy import RoundPolicy
from fedtilt.flower.run_folder import ServerRunFolder, open_run_folder
from fedtilt.flower.schema_exchange import agree_on_schema, stored_schema
from fedtilt.flower.site_data import check_groups, site_federation
from fedtilt.flower.site_strategy import SiteStrategy
from fedtilt.flower.task import NodeConfig, ResolvedTask, Task, left_out_sites
from fedtilt.methods.aggregators import Rooted
from fedtilt.parts import Parts
from fedtilt.privacy.gaussian_mechanism import GaussianMechanism
from fedtilt.spec import federation_of, known_schema_of
from fedtilt.storage.fingerprint import continued
from fedtilt.storage.provenance import seed_folder


def server_app(task: Task) -> ServerApp:
    """The app that the SuperLink runs.

    Its run configuration may contain `method`, `set` (overrides of the spec, one per line), `out` (the run folder),
    `back-to` (the kept round to go back to), `root` (the file of a root set on the server) and the settings of
    `RoundPolicy`, such as `quorum` and `deadline`. If the
    environment variable FEDTILT_SITE_KEYS is a folder with the public keys of the sites, no node can take the place of
    another site.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(task, grid, context.run_config)

    return app


def serve(task: Task, grid: Grid, config: Mapping[str, object]) -> Result:
    """Train to the last round; a run that cannot continue raises, so that Flower does not report it as completed."""
    resolved, policy, keys = task.resolve(config), RoundPolicy.from_config(config), site_keys()
    folder, grid = run_path(resolved, config), network_grid(grid)
    with open_run_folder(folder):
        _check_root(task, resolved, config)
        settings = continued(seed_folder(folder, resolved.spec.seed), resolved.settings)
        resolved = resolved._replace(settings=settings)
        schema = None
        if task.table is not None:
            known, spec = known_schema_of(resolved.spec), resolved.spec
            schema = stored_schema(seed_folder(folder, spec.seed), known)
            schema = schema or agree_on_schema(known, spec.clients.sites, grid, policy, keys, left_out_sites(spec))
        info = task.federation_info(resolved, schema)
        model, parts = task.initial_model(resolved, info)
        check_audit(resolved.settings, info.target, len(info.class_names))
        mechanism = GaussianMechanism.of(resolved.settings, info.sites, parts)
        if mechanism is not None:  # the noise is part of the fingerprint: a run has one
            resolved = resolved._replace(settings=mechanism.with_noise(resolved.settings))
        root = _root_set(task, resolved, config, schema, model, parts)
        run_folder = ServerRunFolder(
            folder, resolved, info, model, parts, kept_rounds=policy.kept_rounds, back_to=_back_to(config),
            root=None if root is None else root[0],
        )  # fmt: skip
        if not run_folder.has_run():
            check_settings_used([resolved.method], resolved.settings, parts, info.sites)
        strategy = SiteStrategy(
            resolved.method, parts, info, settings=resolved.settings, net=model, policy=policy, run_folder=run_folder,
            site_keys=keys, root=root,
        )  # fmt: skip
        limit_reply_size(grid, max_reply_size(model), strategy.membership.drop_reply)
        strategy.start(grid)
        return run_folder.write_results()


def _check_root(task: Task, resolved: ResolvedTask, config: Mapping[str, object]) -> None:
    """Raise InputError if a rule lacks its root set, or a root set has no effect."""
    path, method = str(config.get("root") or ""), resolved.method
    is_rooted = isinstance(method.aggregator, Rooted)
    if is_rooted and task.has_own_data and not path:
        raise InputError(
            f"aggregator = {method.aggregator.label!r} of method {method.name!r} needs clean samples on the server; "
            "name a file of them with root in the run configuration (fedtilt deploy run --root FILE), or use another "
            "aggregator"
        )
    if path and not (is_rooted and task.has_own_data):
        why = "is drawn from the data set of the spec" if is_rooted else "is of no use to this aggregator"
        raise InputError(f"root = {path!r} has no effect: a root set {why}; remove it")


def _root_set(
    task: Task, resolved: ResolvedTask, config: Mapping[str, object], schema: Schema | None, model: nn.Module,
    parts: Parts,
) -> tuple[RootSet, str] | None:  # fmt: skip
    """The root set of the rule and the backend that trains on it; the file is read as a site reads its own."""
    spec, method, settings = resolved
    if not isinstance(method.aggregator, Rooted):
        return None
    if task.has_own_data:
        node_config: NodeConfig = {"data": str(config["root"]), "partition-id": 0}
        federation = site_federation(task, spec, node_config, schema)
        check_groups(federation, method, model)
    else:
        federation = federation_of(spec, spec.seed)
    root = RootSet.of(method, federation, settings.seed)
    assert root is not None
    jobs = example_jobs([method], model, parts, settings, federation)
    return root, backend_for(jobs, model, settings, federation, torch.device("cpu")).name


def _back_to(config: Mapping[str, object]) -> int | None:
    """The round to go back to, in a Flower run configuration; -1, the default: none."""
    round = config.get("back-to", -1)
    if isinstance(round, bool) or not isinstance(round, int) or round < -1:
        raise InputError(f"back-to must be the number of a round, or -1 to continue from the last, got {round!r}")
    return None if round == -1 else round


def run_path(task: ResolvedTask, config: Mapping[str, object]) -> Path:
    """The run folder: `out`, or NAME-METHOD under FEDTILT_RUNS or runs/ in the SuperLink's working directory."""
    out = str(config.get("out") or "")
    runs = Path(os.environ.get("FEDTILT_RUNS", "runs"))
    return Path(out) if out else runs / f"{task.spec.name}-{task.method.name}"
