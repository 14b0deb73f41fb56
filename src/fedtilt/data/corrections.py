"""Corrections of training data from a file of samples, such as `fedtilt audit` writes: exclude them, or relabel them.

The file is a CSV with a header. `row` names the sample as `Federation.row_names` does, `label` is the label that it
has, and `looks_like` the label that it gets. Other columns are for the reader. To keep a sample, delete its line.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from fedtilt.data.client_data import classes_by_client
from fedtilt.data.federation import Federation
from fedtilt.data.outliers import Outliers
from fedtilt.errors import InputError
from fedtilt.text_tables import original_text

_COLUMNS = ("row", "label", "looks_like")


class LabelCorrection(NamedTuple):
    """A line of the file."""

    line: int
    row: str
    label: str
    looks_like: str


class _Place(NamedTuple):
    """Where a training sample is."""

    client: int
    position: int  # among the client's training samples
    sample: int  # its position in the data set


def corrected(federation: Federation, *, exclude: str | None = None, relabel: str | None = None) -> Federation:
    """A federation without the training samples in the file `exclude`, and with other labels of those in `relabel`.

    Samples that are test or validation data here, with another seed, stay as they are. Flips that are drawn once, and
    the labels of annotators, become the labels of the data, so that the other samples keep theirs.
    """
    if exclude is None and relabel is None:
        return federation
    if exclude is not None and relabel is not None and Path(exclude).resolve() == Path(relabel).resolve():
        raise InputError(f"{exclude} is given both to exclude and to relabel; choose one")
    if federation.target is not None:
        raise InputError(
            f"{exclude or relabel} corrects labels, and {federation.dataset.name!r} has {federation.target.words}"
        )
    federation = _keep_labels(federation)
    places = {
        name: _Place(client, position, int(index[position]))
        for client, index in enumerate(federation.train_index)
        for position, name in enumerate(federation.row_names(client))
    }
    y = federation.dataset.y_train.clone()
    if relabel is not None:
        for correction, place in _find(federation, places, relabel):
            y[place.sample] = _class_number(federation, relabel, correction)
    keep = [torch.ones(len(index), dtype=torch.bool) for index in federation.train_index]
    if exclude is not None:
        for _, place in _find(federation, places, exclude):
            keep[place.client][place.position] = False
    for client, kept in enumerate(keep):
        if len(kept) and not kept.any():
            raise InputError(
                f"{exclude} leaves client {federation.client_names[client]} without training data; delete some of its "
                f"{len(kept)} lines"
            )
    train_index = [index[kept] for index, kept in zip(federation.train_index, keep, strict=True)]
    return replace(
        federation,
        dataset=replace(federation.dataset, y_train=y),
        train_index=train_index,
        client_classes=classes_by_client(y, train_index, federation.classes),
    )


def _keep_labels(federation: Federation) -> Federation:
    """The federation with the labels that stay as those of its data: flips that are drawn once, and noisy ones."""
    kind, data = federation.outliers.kind, federation.dataset
    drawn_once = kind != "none" and federation.outliers.redraw == "once"
    if not drawn_once and data.noisy_train is None:
        return federation
    if drawn_once and kind != "flips":
        raise InputError(
            f"outliers = {kind!r} that are drawn once depend on the number of samples, so samples cannot be excluded "
            "or relabelled; use flips, or data without planted outliers"
        )
    y = data.y_train.clone()
    for client in range(federation.clients):
        y[federation.train_index[client]] = federation.stored_train(client)[1]
        rows = federation.validation_index[client]
        if federation.validation_outliers and drawn_once:
            y[rows] = federation.validation(client)[1]
        elif federation.validation_outliers and data.noisy_train is not None:
            y[rows] = data.noisy_train[rows]
    kept = replace(federation, dataset=replace(data, y_train=y, noisy_train=None))
    if kind != "none" and not drawn_once:
        return kept
    no_outliers = torch.zeros_like(federation.has_outliers)
    return replace(kept, outliers=Outliers(), validation_outliers=False, has_outliers=no_outliers)


def _find(federation: Federation, places: dict[str, _Place], path: str) -> Iterator[tuple[LabelCorrection, _Place]]:
    """The corrections of a file that are about training samples, with their places."""
    other: set[str] | None = None
    for correction in read_corrections(Path(path)):
        place = places.get(correction.row)
        if place is None:
            other = _names_of_all(federation) if other is None else other
            if correction.row not in other:
                raise InputError(
                    f"{path}, line {correction.line}: {correction.row!r} is no sample of {federation.dataset.name!r}; "
                    "use the file that fedtilt audit wrote for this data"
                )
            continue
        label = federation.class_names[int(federation.dataset.y_train[place.sample])]
        if label != correction.label:
            raise InputError(
                f"{path}, line {correction.line}: {correction.row} was labelled {correction.label!r}, and is "
                f"{label!r} now; audit the data again"
            )
        yield correction, place


def _names_of_all(federation: Federation) -> set[str]:
    """The names of all samples of the data, whatever they are used for."""
    data = federation.dataset
    if data.row_names is not None:
        return set(data.row_names[:])
    return {f"training sample {row}" for row in range(len(data.y_train))}


def _class_number(federation: Federation, path: str, correction: LabelCorrection) -> int:
    if correction.looks_like not in federation.class_names:
        raise InputError(
            f"{path}, line {correction.line}: looks_like = {correction.looks_like!r} is no class; choose one of "
            f"{', '.join(federation.class_names[:20])}"
        )
    return federation.class_names.index(correction.looks_like)


def read_corrections(path: Path) -> list[LabelCorrection]:
    """The lines of a file of samples; raise InputError if it is damaged, or names a sample twice."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [key for key in _COLUMNS if key not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path} has no column {missing[0]!r}; use a file that fedtilt audit wrote")
            lines = [
                LabelCorrection(reader.line_num, *(original_text(entry[key] or "") for key in _COLUMNS))
                for entry in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); use a file that fedtilt audit wrote") from error
    seen: dict[str, int] = {}
    for correction in lines:
        if correction.row in seen:
            raise InputError(
                f"{path} names {correction.row!r} in line {seen[correction.row]} and in line {correction.line}; "
                "delete one of them"
            )
        seen[correction.row] = correction.line
    return lines
