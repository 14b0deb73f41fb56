"""How a data set is divided among clients: keywords of `Federation.build`, and the table `[clients]` of a spec."""

from dataclasses import dataclass
from typing import Any

from fedtilt import checks, seeds
from fedtilt.config.setting_fields import check_table, check_used, documented, setting, settings_of
from fedtilt.data.dataset import Dataset
from fedtilt.data.naming import client_number
from fedtilt.data.outliers import KINDS, Outliers
from fedtilt.data.partition import PARTITIONS, Partition, TooManyClients, by_classes, by_column, dirichlet, iid
from fedtilt.errors import InputError, NoEffect

_CLIENTS, _CLASSES_PER_CLIENT = 100, 2  # of the paper


@documented
@dataclass(frozen=True, kw_only=True)
class Division:
    """How a data set is divided among clients, and which of their samples are used.

    >>> Division(count=10, partition="dirichlet").alpha
    0.5
    """

    count: int | None = setting(
        None, 'the number of clients; default: the data\'s own with partition "column", else 100', ge=1, example=100
    )
    partition: str | None = setting(
        None,
        "how the data is divided: a few classes each (classes), unequal shares of every class (dirichlet), shuffled "
        'and split evenly (iid), or the data\'s own clients (column); default: "column" if it has clients of its own, '
        'else "classes"',
        choices=PARTITIONS,
        example="dirichlet",
    )
    classes_per_client: int | None = setting(
        None,
        'the number of classes of each client, with partition "classes"; default: 2',
        ge=1,
        example=2,
        only_with={"partition": ["classes", None]},  # with None, it depends on the data
    )
    alpha: float = setting(
        0.5,
        'how equal the clients are, with partition "dirichlet"; small is unequal',
        gt=0,
        only_with={"partition": ["dirichlet"]},
    )
    max_train: int | None = setting(None, "the most training samples per client; default: all", ge=1, example=600)
    leave_out: tuple[str, ...] = setting(
        (),
        "clients that are not part of the run, by name; the others have the samples and random numbers that they have "
        "with them",
        allowed='a list of names, such as ["north"]',
    )
    validation: float = setting(
        0.0, "the share of each client's training data used for validation, drawn as data.split says", ge=0, lt=1
    )
    validation_outliers: bool = setting(
        False,
        "whether validation data has outliers too, drawn once, and the labels of annotators, as in practice; otherwise "
        "it is clean",
        only_with={"outliers.kind": KINDS[1:]},  # a search draws validation data itself
    )

    def __post_init__(self) -> None:
        check_table(self)

    @property
    def sites(self) -> int:
        """The number of sites of a deployment."""
        if self.count is None:
            raise InputError("clients.count is missing; give the number of sites of the deployment")
        return self.count

    def check_used(self, partition: str, outliers: Outliers, *, noisy_labels: bool = False) -> None:
        """Raise NoEffect for a setting without effect beside the partition that is used, outliers and noisy labels."""
        declared = settings_of(type(self))
        values = {key: getattr(self, key) for key in declared}
        if noisy_labels:
            values["validation_outliers"] = False  # it has an effect: the labels of annotators
        beside = {"partition": partition, "outliers.kind": outliers.kind}
        check_used(values | beside, declared, lambda key: key.removesuffix(".kind"))
        if self.validation_outliers and not self.validation:
            text = "validation_outliers = True has no effect here; set validation, or leave it out"
            raise NoEffect(text, key="validation_outliers")


def resolve_division(clients: int | Division | None, settings: dict[str, Any]) -> Division:
    """The division from a number of clients and settings, or from a `Division`."""
    if not isinstance(clients, Division):
        return Division(count=None if clients is None else checks.whole(clients, "clients", 1), **settings)
    for key, value in settings.items():
        raise InputError(f"{key} = {value!r} does not apply to {clients}; use Division({key}={value!r})")
    return clients


def resolve_clients(data: Dataset, division: Division) -> tuple[str, int]:
    """The partition and the number of clients; their defaults depend on the data."""
    own, count = data.client_names, division.count
    if division.partition not in (None, "column") or own is None:
        default = "classes" if data.target is None else "iid"
        return division.partition or default, _CLIENTS if count is None else count
    if count is not None and count != len(own):
        raise InputError(
            f"clients = {count} differs from the {len(own)} clients that {data.name!r} has of its own; leave it out, "
            "or set partition to classes, dirichlet or iid"
        )
    return "column", len(own)


def divide(
    data: Dataset, division: Division, partition: str, clients: int, seed: int
) -> tuple[Partition, tuple[str, ...]]:
    """Each client's samples, and the clients' names, with the partition and the number of `resolve_clients`.

    Clients to leave out are drawn like the others, who so have the same samples, and then have none.
    """
    rng = seeds.generator(seeds.key(seed, "partition"))
    labels = data.labels("train"), data.labels("test")
    try:
        if partition == "classes":
            indices = by_classes(*labels, clients, division.classes_per_client or _CLASSES_PER_CLIENT, rng)
        elif partition == "dirichlet":
            indices = dirichlet(*labels, clients, division.alpha, rng)
        elif partition == "iid":
            indices = iid(*labels, clients, rng)
        elif data.client_train is None or data.client_test is None or data.client_names is None:
            raise InputError(
                f"partition = 'column' needs a client column, and {data.name!r} has none; use classes, dirichlet or iid"
            )
        else:
            indices = by_column(data.client_train, data.client_test, len(data.client_names))
    except TooManyClients as error:
        if data.client_names is None:
            raise
        count = len(data.client_names)
        raise InputError(f"{error}, or partition = 'column' for the data's own {count} clients") from None
    own_names = data.client_names if partition == "column" else None
    names = own_names or tuple(str(number) for number in range(len(indices.train)))
    for name in division.leave_out:
        number = client_number(name, names)
        indices.train[number], indices.test[number] = indices.train[number][:0], indices.test[number][:0]
    if not any(map(len, indices.train)):
        raise InputError(f"leave_out = {list(division.leave_out)} leaves no client; remove some")
    for client, rows in zip(names, indices.train, strict=True):
        if not len(rows) and client not in division.leave_out:
            raise InputError(
                f"client {client!r} has no training data in {data.name!r}; add some or leave the client out"
            )
    if not any(len(rows) for rows in indices.test):
        raise InputError(f"no client has test data in {data.name!r}; add test samples, or choose fewer clients")
    return indices, names
