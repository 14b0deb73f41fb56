"""A data set in memory: training and test samples, their targets and, optionally, their clients."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedtilt import checks
from fedtilt.data.dataset_checks import OPTIONAL, SIDES, as_group_names, as_names, check_contents, check_tensors
from fedtilt.data.groups import GroupColumn, group_columns
from fedtilt.data.inputs import Inputs, Shape, named_tensors, sample_shape, take, to_device
from fedtilt.data.sampling import GIVEN, DrawnRows
from fedtilt.data.targets import LabelTarget, NumericTarget, Target, TokenTarget
from fedtilt.errors import InputError

if TYPE_CHECKING:  # Arrow is for tables alone
    from fedtilt.data.tables.schema import Schema

_TENSORS = (*(f"{key}_{side}" for key in ("x", "y", *OPTIONAL) for side in SIDES), "noisy_train")


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and test samples with their targets: classes, numbers, tokens or sets of labels, by `task`.

    Args:
        name: the name of the data set
        x_train: training samples: images, uint8 in 0..255 or float32 in [0, 1], shape (N, channels, height, width);
            anything else as float32, or as int64 if a model looks it up (tokens); a dictionary of such tensors is
            passed to the model by name, as in model(input_ids=…, attention_mask=…)
        y_train: training labels, int64 in [0, classes); with "regression", numbers, float32; with "language", for each
            position the token that the model's output there predicts, int64 (N, T), or −100 for none, such as padding;
            with "multilabel", 0 or 1 for each label, float32 (N, labels)
        x_test: test samples, of the shapes and dtypes of the training samples
        y_test: test labels or targets
        classes: the number of classes; of other tasks, the number of groups that follow from the targets: the ranges of
            numbers, else one group
        class_names: a name for each class; default: their numbers; of other tasks, the names of these groups
        task: "classification", "regression", "language" or "multilabel"
        target: what targets are, if they are no classes: a `NumericTarget`, `TokenTarget` or `LabelTarget`; default:
            the scale of `y_train`, the tokens that occur in the data, or labels that are named by their numbers
        image: whether the samples are images; these are scaled to [-1, 1] for the model
        client_train: the number of each training sample's client, int64; default: a partition makes the clients
        client_test: the number of each test sample's client
        client_names: a name for each client
        group_train: by column, such as "sex", the number of each training sample's group, int64; default: the data
            has no groups besides its classes
        group_test: by column, the number of each test sample's group
        group_names: by column, a name for each group
        weight_train: the weight of each training sample in the loss, float32: 2 counts as two samples; default: all
            count the same
        weight_test: the weight of each test sample; metrics count every sample once
        noisy_train: the labels that a model is trained with, int64, some of them wrong; `y_train` has the true
            ones, by which samples are divided among clients; default: `y_train`
        schema: of a table: what its columns are, and how they become the model's input
        split: how a client's rows are drawn, for validation and, where none is given, test data: "random",
            "proportional" or "time", see `ft.data.table`
        split_group_train: the number of a group, such as a patient, of each training sample; those of one number stay
            on one side of a random split
        split_time_train: the time of each training sample, with split "time"
        test_drawn: whether the test samples were drawn so; otherwise they are given, such as published ones
        fixed_shares: whether the shares of classes in given test samples of each client are fixed
        generated: whether another seed draws new samples rather than divides the same ones again
        rows_train: the position of each training sample in its source, int64, such as the row of a table
        rows_test: the position of each test sample
        row_names: the name of each position, such as `row 17` of a table
        warnings: sentences about the source that the user should read
        notes: sentences about how the source was read, for reports

    >>> x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    >>> Dataset(name="mine", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    Dataset('mine': 3 training and 3 test samples of shape (2,), 2 classes)
    """

    name: str
    x_train: Inputs
    y_train: Tensor
    x_test: Inputs
    y_test: Tensor
    classes: int = 0
    class_names: tuple[str, ...] = ()
    task: str = "classification"
    target: Target | None = None
    image: bool = False
    client_train: Tensor | None = None
    client_test: Tensor | None = None
    client_names: tuple[str, ...] | None = None
    group_train: dict[str, Tensor] | None = None
    group_test: dict[str, Tensor] | None = None
    group_names: Mapping[str, tuple[str, ...]] | None = None
    weight_train: Tensor | None = None
    weight_test: Tensor | None = None
    noisy_train: Tensor | None = None
    schema: "Schema | None" = None
    split: str = "random"
    split_group_train: Tensor | None = None
    split_time_train: Tensor | None = None
    test_drawn: bool = False
    fixed_shares: bool = False
    generated: bool = False
    rows_train: Tensor | None = None
    rows_test: Tensor | None = None
    row_names: Sequence[str] | None = None
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_tensors(self)
        if self.task != "classification":
            self._set_target()
        self._set_names()
        check_contents(self)

    def _default_target(self) -> Target:
        """What the targets of a task are, by the data."""
        if self.task == "regression":
            return NumericTarget.of(self.y_train, self.name)
        if self.task == "multilabel":
            return LabelTarget(labels=tuple(map(str, range(self.y_train.shape[1]))))
        inputs = [t for x in (self.x_train, self.x_test) for t in named_tensors(x, "x").values()]
        return TokenTarget.of([self.y_train, self.y_test, *(t for t in inputs if t.dtype == torch.int64)])

    def _set_target(self) -> None:
        """Set what the targets are, and their groups in place of classes."""
        target = self.target or self._default_target()
        names = target.names
        if self.classes not in (0, len(names)) or (self.class_names and tuple(self.class_names) != names):
            raise InputError(
                f"data set {self.name!r} has classes = {self.classes} and task = {self.task!r}; leave out classes and "
                f"class_names{'; labels have their names in target' * (self.task == 'multilabel')}"
            )
        for key, value in (("target", target), ("classes", len(names)), ("class_names", names)):
            object.__setattr__(self, key, value)

    def _set_names(self) -> None:
        """Set the names of classes, clients and groups, as text."""
        classes = checks.whole(self.classes, f"classes of data set {self.name!r}", 1)
        object.__setattr__(self, "classes", classes)
        for key in ("class_names", "client_names"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, as_names(self, key, getattr(self, key)))
        if self.group_names is not None:
            object.__setattr__(self, "group_names", as_group_names(self, self.group_names))
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(str(k) for k in range(classes)))
        if len(self.class_names) != self.classes:
            raise InputError(
                f"data set {self.name!r} has {len(self.class_names)} class_names for classes = {self.classes}; "
                "give one name per class"
            )

    def to(self, device: torch.device) -> "Dataset":
        """The same data on another device."""
        moved = copy.copy(self)  # copied, so that it is not checked again
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _TENSORS and value is not None:
                object.__setattr__(moved, field.name, to_device(value, device))
        return moved

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self.y_train)} training and {len(self.y_test)} test samples of shape "
            f"{self.input_shape}, {f'{self.classes} classes' if self.target is None else self.target.words})"
        )

    @property
    def outputs(self) -> int:
        """The number of a model's outputs: one per class, token or label, or one number."""
        return self.classes if self.target is None else self.target.outputs

    def labels(self, side: str) -> Tensor:
        """The class of each "train" or "test" sample or, of other tasks, the group of its target, int64."""
        y = self.y_train if side == "train" else self.y_test
        return y if self.target is None else self.target.groups(y)

    def drawn_rows(self, *, own_clients: bool = True, fixed_shares: bool = False) -> DrawnRows:
        """How the test rows of clients came about, with the data's own clients or with those of a partition."""
        is_proportional = self.test_drawn and self.split == "proportional"
        fixed = fixed_shares or (own_clients and (self.fixed_shares or is_proportional))
        return DrawnRows(self.split if self.test_drawn else GIVEN, fixed, self.generated)

    @property
    def input_shape(self) -> Shape:
        """The shape of one sample; of a dictionary, the shape of each of its tensors."""
        return sample_shape(self.x_train)

    @property
    def groups(self) -> dict[str, GroupColumn]:
        """The columns of groups by name, such as sex; of several also their combination, the last.

        The groups that follow from targets that are no classes, such as ranges of numbers, are the first.
        """
        of_targets = {}
        if self.target is not None:
            of_targets[self.target.group] = GroupColumn(self.class_names, self.labels("train"), self.labels("test"))
        if self.group_names is None or self.group_train is None or self.group_test is None:
            return of_targets
        return of_targets | group_columns(self.group_names, self.group_train, self.group_test)


def split_dataset(columns: Mapping[str, Inputs | None], sides: Mapping[str, Tensor | slice], **others: Any) -> Dataset:
    """A data set from all samples: the `columns` x, y, client, group, weight and rows, and the rows of each side."""
    parts: dict[str, Any] = {
        f"{key}_{side}": take(values, rows)
        for key, values in columns.items()
        if values is not None
        for side, rows in sides.items()
    }
    return Dataset(**parts, **others)
