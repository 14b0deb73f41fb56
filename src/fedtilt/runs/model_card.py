"""The model card of an export: what the model was trained on, how, how good it is, and its limits, as Markdown.

It has the schema of the data and counts of predictions, but no data. The card of a client's model has figures of that
client alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.data.naming import client_number
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.evaluation.certificate import Certificate
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.evaluation.scores import ACCURACY, scores_of, shares_of
from fedtilt.evaluation.weighted_predictions import clopper_pearson
from fedtilt.files import write_bytes
from fedtilt.methods import COMPONENTS, Method
from fedtilt.models import ModelSource
from fedtilt.runs.export import Export
from fedtilt.runs.trained_run import Evaluation, TrainedRun
from fedtilt.storage.provenance import recorded_settings
from fedtilt.text_tables import markdown_table, markdown_text
from fedtilt.toml_text import format_toml

_CONFIDENCE = 0.95
_ABOUT = {  # by the main score
    "mae": "mean absolute error (MAE) and root mean squared error (RMSE)",
    "loss": "mean loss of a sample, its exponential and the share of right tokens",
    "label_accuracy": "share of right labels, of samples with all labels right, micro F1 and loss",
}
_MAX_ROWS = 40  # of a table by client or group; beyond, those with the lowest accuracy
# shown even where they have their defaults
_SETTINGS = ("rounds", "participation", "epochs", "local_steps", "batch_size", "lr", "lr_personal", "optimizer",
             "schedule", "server_optimizer", "loss", "seed")  # fmt: skip


class _Figures(NamedTuple):
    """Sums over test samples by client and group, of the exported model."""

    sums: Tensor  # (clients, groups): correct predictions; or errors, (clients, groups, 2)
    total: Tensor  # (clients, groups)
    names: Sequence[str]  # of the groups


def model_card(run: TrainedRun, export: Export) -> str:
    """The card of an exported model of a run, as Markdown."""
    fingerprint, description = run.fingerprint, run.description
    number = None if export.client is None else client_number(export.client, run.clients)
    sections = [_title(run, export), _data(fingerprint, description), _training(fingerprint, export.method)]
    evaluation = run.evaluation(export.method)
    if evaluation is not None:
        main, summary = str(description.get("group", CLASS)), evaluation.summary
        by_group = _figures(evaluation, main, description.get("classes"), number)
        sections.append(_performance(by_group, run.clients if number is None else [run.clients[number]]))
        sections.append(_limits(by_group, summary, number, bool(export.sources), "privacy" in fingerprint["train"]))
    else:
        sections.append(f"## Performance\n\nRound {export.round} was not evaluated, so there are no figures.")
    return "\n\n".join(sections) + "\n"


def write_export(
    run: TrainedRun, export: Export, path: Path, model: ModelSource | str | None = None, *, force: bool = False
) -> tuple[Path, float | None]:
    """Write an export and its card; return the path of the card, and how much an ONNX file differs from PyTorch.

    The card of model.onnx is model.md beside it. `force` replaces existing files.
    """
    card, text = path.with_suffix(".md"), model_card(run, export).encode()
    if path.exists() and not force:
        raise InputError(f"{path} already exists; force=True (--force) replaces it")
    if card.exists() and card.read_bytes() != text and not force:
        raise InputError(f"{card} is not the card of this model; give another name, or --force to replace it")
    difference = export.write(path, model)
    write_bytes(card, text)
    return card, difference


def write_hub_folder(run: TrainedRun, export: Export, folder: Path) -> list[Path]:
    """Write a new folder for the Hugging Face Hub: model.safetensors, config.json, and the card as README.md."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; choose a new folder")
    classes = "target" not in export.metadata
    task = "image" if "mean" in export.metadata else "tabular" if "schema" in export.metadata else None
    front = {
        "library_name": "fedtilt",
        "tags": ["federated-learning", "fairness", "fedtilt"],
        **({} if task is None else {"pipeline_tag": f"{task}-{'classification' if classes else 'regression'}"}),
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in front.items()]  # JSON is YAML
    use = '## Use\n\n```python\nimport fedtilt as ft\n\nmodel = ft.load("model.safetensors")\nmodel.predict(data)\n```'
    card = "---\n" + "\n".join(lines) + f"\n---\n\n{model_card(run, export)}\n{use}\n"
    config = {"fedtilt_version": run.version, "class_names": json.loads(export.metadata.get("classes", "null"))}
    config |= {
        key: export.metadata[key] for key in ("method", "round", "input_shape", "model") if key in export.metadata
    }
    paths = [folder / name for name in ("model.safetensors", "config.json", "README.md")]
    export.write(paths[0])
    write_bytes(paths[1], json.dumps(config, indent=2).encode())
    write_bytes(paths[2], card.encode())
    return paths


def _title(run: TrainedRun, export: Export) -> str:
    client, rounds = export.client, run.fingerprint["train"]["rounds"]
    kind = "shared model" if client is None else f"{'personal ' * export.personal}model of client {_text(client)}"
    count = sum(tensor.numel() for tensor in export.tensors.values())
    lines = [
        f"# Model card: {kind} of {_text(export.method)}",
        f"Trained by federated learning with fedtilt {run.version}, exported after round {export.round} of {rounds}; "
        f"{count:,} parameters.",
        f"```\n{run.fingerprint['architecture']}\n```",
    ]
    if "threshold" in export.metadata:
        decision = Threshold.from_json(json.loads(export.metadata["threshold"])).in_words()
        lines.append(f"Decision: {decision}. The figures below are of the most probable class.")
    lines += [f"It is {note}." for note in export.notes]
    if export.sources:
        lines.append("".join(f"- {part.replace('_', ' ')}: {source}\n" for part, source in export.sources.items()))
    return "\n\n".join(line.strip("\n") for line in lines)


def _data(fingerprint: Mapping[str, Any], description: Mapping[str, Any]) -> str:
    outliers, clients = fingerprint["outliers"], fingerprint["clients"] - len(description.get("left_out", ()))
    lines = [
        "## Training data",
        f"{_text(fingerprint['data'])}, divided among {clients:,} clients. The data is not part of this export.",
    ]
    if outliers["kind"] != "none":
        lines.append(f"Outliers of kind {outliers['kind']} were added to the training data on purpose.")
    if "schema" not in description:
        classes = f"Classes: {', '.join(map(_text, description['classes']))}." if "classes" in description else ""
        return "\n\n".join([*lines, *filter(None, [classes])])
    schema = description["schema"]
    rows = [[name, column["kind"]] for name, column in schema["columns"].items()]
    return "\n\n".join([*lines, f"Target: {_text(schema['target'])}.", _table(["column", "kind"], rows)])


def _training(fingerprint: Mapping[str, Any], method: str) -> str:
    of_method = {k: _without_defaults(k, v) for k, v in fingerprint["methods"][method].items() if k != "name"}
    rows = [[f"method.{k}", format_toml(v) if isinstance(v, dict | list) else v] for k, v in of_method.items() if v]
    train = fingerprint["train"]
    defaults = recorded_settings([], TrainSettings())["train"]
    others = (key for key, v in train.items() if key not in (*_SETTINGS, "eval_every") and v != defaults.get(key))
    rows += [[key, _setting_text(train[key])] for key in (*_SETTINGS, *others) if train.get(key) is not None]
    note = "Settings that are not listed have their defaults."
    return f"## Training\n\n{_table(['setting', 'value'], rows)}\n\n{note}"


def _setting_text(value: Any) -> Any:
    """A training setting; of an object, its name and what is switched on.

    >>> _setting_text({"name": "sgd", "momentum": 0.9, "nesterov": False, "clip_norm": None})
    'sgd, momentum = 0.9'
    """
    if not isinstance(value, dict):
        return format_toml(value) if isinstance(value, list) else value
    named = [str(value[key]) for key in ("name", "rule") if key in value]
    return ", ".join([*named, *(f"{key} = {v}" for key, v in value.items() if v and key not in ("name", "rule"))])


def _as_json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _without_defaults(kind: str, value: Any) -> Any:
    """A component of a fingerprint without the settings that have their defaults; None: it is the default itself."""
    if not isinstance(value, dict) or kind not in COMPONENTS:
        return value
    cls, plain = COMPONENTS[kind].get(value.get("rule", "")), getattr(Method(name="plain"), kind)
    if cls is None:  # the user's own, which need not be installed here
        return value
    defaults = cls().settings(all=True)
    given = {
        key: v
        for key, v in value.items()
        if key != "rule" and v is not None and v != defaults[key] and v != _as_json(defaults[key])
    }
    return None if not given and isinstance(plain, cls) else {"rule": cls.rule, **given}


def _figures(evaluation: Evaluation, main: str, names: Sequence[str] | None, client: int | None) -> dict[str, _Figures]:
    """By grouping, the main one first: the figures of the shared model, or of the model of one client."""
    summary, counts, total = evaluation
    sums = counts.shared if client is None or counts.personal is None else counts.personal
    rows = slice(None) if client is None else slice(client, client + 1)
    names = names or list(map(str, range(total.shape[1])))
    found = {main: _Figures(sums[rows], total[rows], names)}
    if client is None and counts.personal is not None:
        return found  # the other groupings are counted for personal models
    columns = [column for column in summary.groups if column != main]
    for column, group in zip(columns, counts.groups, strict=True):
        present = group.total.sum(0) > 0  # groups without test samples have no name there
        group_sums, group_total = group.sums[:, present], group.total[:, present]
        found[column] = _Figures(group_sums[rows], group_total[rows], list(summary.groups[column].values))
    return found


def _performance(by_group: Mapping[str, _Figures], clients: Sequence[str]) -> str:
    main, figures = next(iter(by_group.items()))
    score, has_shares = scores_of(figures.sums)[0], shares_of(figures.sums) is not None
    what = "accuracy with its 95 % interval (Clopper and Pearson)" if score is ACCURACY else _ABOUT[score.name]
    lines = ["## Performance", f"On test data of the clients: {what}.", _rows("client", clients, figures, dim=1)]
    for column, found in by_group.items():
        if len(found.names) > 1:
            lines.append(_rows(column, found.names, found, dim=0))
    if has_shares and bool(figures.total.any()):
        statement = str(Certificate.of(figures.sums, figures.total, _CONFIDENCE, main))
        lines += ["### Certificate", f"{statement[0].upper()}{statement[1:]}."]
    return "\n\n".join(lines)


def _rows(title: str, names: Sequence[str], figures: _Figures, dim: int) -> str:
    """A table by client (`dim` 1 is summed) or by group (`dim` 0); of many, the worst."""
    sums, total, scores = figures.sums.sum(dim), figures.total.sum(dim), scores_of(figures.sums)
    present = [i for i in range(len(total)) if total[i] > 0]
    main, *_ = values = [score.values(sums, total.clamp(min=1)).tolist() for score in scores]
    worst = sorted(present, key=lambda i: main[i] if scores[0].higher_is_better else -main[i])[:_MAX_ROWS]
    is_long = len(present) > _MAX_ROWS
    columns, rows = [title, *(f"{s.title}{f', {s.unit}' * bool(s.unit)}" for s in scores)], []
    for i in worst if is_long else present:
        cells = [f"{of_score[i]:.4g}" for of_score in values]
        if scores[0] is ACCURACY:
            columns, cells = [title, "accuracy"], [_percent(int(sums[i]), int(total[i]))]
        rows.append([names[i], *cells, int(total[i])])
    more = f"\n\nThe {_MAX_ROWS} worst of {len(present):,}." if is_long else ""
    return _table([*columns, "test samples"], rows) + more


def _percent(correct: int, total: int) -> str:
    """The accuracy and its interval.

    >>> _percent(45, 50)
    '90.0 % (78.2 to 96.7)'
    """
    low, high = clopper_pearson(correct, total, _CONFIDENCE)
    return f"{100 * correct / total:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _limits(
    by_group: Mapping[str, _Figures], summary: RoundMetrics, client: int | None, has_sources: bool, has_privacy: bool
) -> str:
    figures = next(iter(by_group.values()))
    empty = [name for name, samples in zip(figures.names, figures.total.sum(0).tolist(), strict=True) if not samples]
    fewest = min((samples for samples in figures.total.sum(1).tolist() if samples), default=0)
    limits = [
        "The figures hold for new samples of the same clients and for data like theirs; the model has not been tested "
        "on other populations.",
        f"The fewest test samples of a client are {fewest:,}; intervals say how much chance is in a figure.",
    ]
    if client is not None:
        limits.append("A client's model is fitted to its data, and is expected to be worse elsewhere.")
    elif summary.personal is not None:
        limits.append("Clients use their personal models; this is the model that they share.")
    if client is None and summary.never_selected:
        limits.append(f"{summary.never_selected:,} clients were never selected for training.")
    if empty:
        limits.append(f"There was no test data of {', '.join(map(_text, empty))}.")
    if has_sources:
        limits.append("Some parts are not those that clients use: see the list at the top.")
    if summary.privacy is None and has_privacy:
        limits.append("The shared model has differential privacy, see the server's card; a site's own model has none.")
    elif summary.privacy is None:
        limits.append("It was trained without differential privacy: it may reveal properties of the training data.")
    else:
        limits.append(
            f"Differential privacy of clients: epsilon {summary.privacy.epsilon:.3g} at delta {summary.privacy.delta:g}"
            " for the shared model; figures and personal models are not covered."
        )
    return "## Limits\n\n" + "\n".join(f"- {text}" for text in limits)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return markdown_table(columns, ([_text(value) for value in row] for row in rows))


def _text(value: object) -> str:
    return markdown_text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
