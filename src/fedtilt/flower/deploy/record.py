"""`fedtilt deploy record`: a record of processing (GDPR, article 30) of a project.

What its spec and its pyproject.toml decide is filled in; what only people know is marked. No code of the project runs.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtilt.data.tables.schema import MIN_COUNT
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from fedtilt.flower.deploy.allowed_apps import app_digest
from fedtilt.flower.deploy.project import default_run_config
from fedtilt.flower.policy import RoundPolicy
from fedtilt.flower.site import DECLARES
from fedtilt.flower.site_data import SUMMARY, is_on
from fedtilt.flower.task import ResolvedTask, Task
from fedtilt.version import __version__

MARK = "✎"
Row = tuple[str, str]


def record_of(project: Path, method: str = "", node_config: Mapping[str, Any] | None = None) -> str:
    """The record in Markdown.

    Args:
        project: the folder of a Flower project
        method: the method of its spec, if it has several
        node_config: what the SuperNode's `--node-config` says about sending, where it differs from the defaults
    """
    node_config, keys = node_config or {}, [SUMMARY, *(f"declare-{name}" for name in DECLARES)]
    if unknown := [key for key in node_config if key not in keys]:
        raise InputError(f"--node-config {unknown[0]} does not change what a site sends; use {', '.join(keys)}")
    digest, config = app_digest(project), default_run_config(project)
    task = Task(spec=project / "spec.toml").resolve(config | ({"method": method} if method else {}))
    text = (
        f"# Record of processing: {task.spec.name}\n\nGDPR, article 30. `fedtilt deploy record` ({__version__}) "
        f"has filled in what `spec.toml` and `pyproject.toml` of the project {digest} decide. {MARK} marks what only "
        "people know; every site keeps its own copy, as the controller of its data. It is a draft for the "
        "data-protection officer, and no legal advice.\n"
    )
    for title, rows in {
        "Who is responsible (30.1 a)": _people(),
        "Purpose, people and data (30.1 b, c)": _purpose(task),
        "Who receives what (30.1 d, e)": _sent(task, node_config),
        "How long it is kept (30.1 f)": _kept(task, RoundPolicy.from_config(config).kept_rounds),
        "Security (30.1 g, 32)": _security(task, digest),
    }.items():
        cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows]
        text += f"\n## {title}\n\n| | |\n| --- | --- |\n" + "".join(cells)
    return text


def write_record(text: str, path: Path) -> None:
    """Write a record into a new file: what people have filled in is never lost."""
    if path.exists():
        raise InputError(f"{path} exists, and people may have filled it in; choose another file with --to")
    write_bytes(path, text.encode())


def _ask(what: str, who: str) -> Row:
    return what, f"{MARK} to be filled in by: {who}"


def _people() -> Iterator[Row]:
    yield _ask("controller, and its contact", "the site's management")
    yield _ask("joint controllers or the processor that runs the server, and their agreement", "the legal department")
    yield _ask("data-protection officer, and the date of their advice", "the data-protection officer")


def _purpose(task: ResolvedTask) -> Iterator[Row]:
    data, train, sites = task.spec.data, task.settings, task.spec.clients.sites
    kind = "a number" if task.spec.task == "regression" else "a class"
    target = f", the column `{data.target}`," if data.target else ""
    yield "what is computed", f"a model ({task.spec.model.name}) that predicts {kind}{target} by {task.method.name}"
    left = ", ".join(task.spec.clients.leave_out)
    rounds = f"{train.rounds} rounds, in each of which {train.clients_per_round(sites)} of {sites} sites train"
    yield "how long", f"{rounds}, without those that have left: {left}" if left else rounds
    yield _ask("purpose, and its legal basis (articles 6 and 9)", "the controller")
    yield _ask("categories of people, and how many", "the site's data manager")
    columns = {"target": data.target, "groups": data.group, "weight": data.weight, "not used": data.drop}
    named = [f"{what}: {_names(value)}" for what, value in columns.items() if value]
    yield "columns that the spec names", "; ".join(named) or "none"
    who = "the site's data manager, with the columns that `fedtilt data schema` lists"
    yield _ask("all other columns of the site's data, and special categories (article 9)", who)


def _names(value: str | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in ((value,) if isinstance(value, str) else value))


def _sent(task: ResolvedTask, node_config: Mapping[str, Any]) -> Iterator[Row]:
    """What leaves a site; docs/deployment.md has the messages in full."""
    data, method, settings = task.spec.data, task.method, task.settings
    if data.file is not None:
        summary = (
            f"{'nothing, if schema.json is complete; otherwise ' if data.schema else ''}numbers of rows, names of "
            "classes and columns, mean, deviation and quantiles of numbers, names and counts of categories with at "
            f"least {MIN_COUNT} rows"
        )
        yield "site → server, first", summary if is_on(node_config, SUMMARY) else f"nothing: {SUMMARY}=false"
    yield "site → server, to join", "its number, numbers of classes and parameters, digests of initial values"
    sent = ["the shared model that it has trained", "its number of training samples"]
    sent += ["averaged buffers"] if settings.buffers == "average" else []
    sent += ["the mean loss of the model that it received"] if method.needs_losses else []
    sent += [f"{_names(method.correction.sends)} of `{method.correction.label}`"] if method.correction else []
    sent += [f"what the training `{method.training.label}` declares to send"] if method.training else []
    yield "site → server, in every round in which it trains", "; ".join(sent)
    has = {"groups": bool(data.group), "suspects": settings.audit}  # without them, there is nothing to declare
    counts = [
        with_it if is_on(node_config, f"declare-{name}", default) else without
        for name, (default, with_it, without) in DECLARES.items()
        if has.get(name, True)
    ]
    counts += [] if settings.stop is None else ["correct predictions, or errors, and validation samples in total"]
    yield "site → server, in evaluated rounds", "; ".join(filter(None, counts))
    yield "server → sites", "the shared model of every round" + ("; the schema of the tables" if data.file else "")
    stays = ["samples and labels", *(["the personal model"] if method.has_personal else [])]
    stays += [f"the parameters {_names(local)}"] if (local := (*settings.local, *method.local_names)) else []
    stays += ["the list of samples whose labels look wrong"] if settings.audit else []
    yield "never leaves the site", ", ".join([*stays, "its report", "its log"])
    yield _ask("who may use the shared model afterwards", "the controllers together")
    yield _ask("countries of the server and of every site, and safeguards for transfers", "the legal department")


def _kept(task: ResolvedTask, rounds: int) -> Iterator[Row]:
    server = f"of the last two rounds and the last {rounds} good ones, until its folder is deleted"
    yield "a site's trained model, on the server", "until the server has read it; the round's aggregate stays"
    yield f"shared models, on the server, in runs/{task.spec.name}-{task.method.name}", server
    yield "counts and metrics of each site, on the server", "of all evaluated rounds, until its folder is deleted"
    yield "state of a site, on the site, in state/", "of the rounds that the server keeps, until it is deleted"
    yield _ask("dates on which these folders and the logs are deleted", "IT of the server and of the site")


def _security(task: ResolvedTask, digest: str) -> Iterator[Row]:
    screen = task.settings.screen
    yield "in transit", "TLS with the federation's own authority; one registered key per site"
    yield "code", f"a site runs only projects that its operator has allowed by their digest; this one: {digest}"
    yield "access", "the server takes runs only with a token; keys, states and models are readable by their owner alone"
    yield "can the server see single updates?", "yes: there is no secure aggregation"
    yield "differential privacy of the shared model", _privacy(task.settings, task.spec.clients.sites)
    yield "wrong or hostile sites", f"screening, at {screen:g} times the median" if screen else "no screening"
    yield _ask("encryption of disks, backups, who has access, review of logs", "IT of the server and of the site")
    yield _ask("impact assessment (article 35): needed, done, date", "the controller")


def _privacy(settings: TrainSettings, sites: int) -> str:
    if (privacy := settings.privacy) is None:
        return "none: the shared model can reveal who took part"
    if (epsilon := privacy.epsilon) is None:
        from fedtilt.privacy.accounting import epsilon as epsilon_of

        assert privacy.noise is not None
        selected = settings.clients_per_round(sites)  # the bound without amplification holds for every method
        epsilon = epsilon_of(privacy.noise / 2, settings.rounds, privacy.delta, population=selected, selected=selected)
    return (
        f"of whole sites: epsilon ≤ {epsilon:.3g} at delta {privacy.delta:g}; updates are clipped to {privacy.clip:g}"
    )
