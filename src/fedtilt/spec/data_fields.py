"""The keys of `[data]`: a published data set, a table, folders of images or LEAF data."""

from dataclasses import dataclass

from fedtilt.config.setting_fields import default_of, setting, settings_of
from fedtilt.data import names
from fedtilt.data.published.catalog import CATALOG
from fedtilt.data.sources.image_cache import MODES
from fedtilt.data.tables.settings import OF_TABLE, TableSettings
from fedtilt.errors import InputError

_ANNOTATIONS = tuple(
    label for entry in CATALOG.values() if entry.annotations is not None for label in entry.annotations.labels
)
_ONLY_OF = {  # key → the data that it is about, and what to do without
    **dict.fromkeys((*(key for key in OF_TABLE if key != "split"), "schema"), (("file",), "name the table it is in")),
    **dict.fromkeys(("image_size", "image_channels"), (("images",), "name the folder they are in")),
    "test_share": (("file", "images"), "leave it out"),
}


@dataclass(frozen=True, kw_only=True)
class _DataSource:
    """The first keys of `[data]`."""

    name: str = setting(
        "digits",
        "the data set, unless file, images or leaf is set",
        choices=names(),
        only_with={"file": [None], "images": [None], "leaf": [None]},
    )
    labels: str | None = setting(
        None,
        "the labels of CIFAR-N's annotators for the training samples, some of them wrong; default: the true ones",
        choices=_ANNOTATIONS,
        example="worse_label",
        only_with={"name": [entry.name for entry in CATALOG.values() if entry.annotations]},
    )
    file: str | None = setting(
        None,
        "your own table; a path relative to the spec; the tables of a folder are named after their clients",
        example="patients.csv",
        allowed="a CSV (also .gz), TSV, Parquet or .xlsx file, or a folder of them",
    )


@dataclass(frozen=True, kw_only=True)
class DataSpec(TableSettings, _DataSource):
    """`[data]`."""

    images: str | None = setting(
        None,
        "your own images: a folder with CLASS/… or CLIENT/CLASS/…, also inside train and test, or a CSV file with the "
        "columns path, label, client and split; a path relative to the spec",
        example="photos",
        allowed="a folder or a CSV file",
    )
    image_size: int | tuple[int, int] | None = setting(
        None,
        "height and width to resize images to, or one number for both; default: they all have the same",
        ge=1,
        example=32,
        allowed="a whole number ≥ 1, or a list of two",
    )
    image_channels: int | None = setting(
        None,
        "the channels to convert images to: 1 (grey), 3 (colour) or 4 (with transparency); default: they all have the "
        "same",
        choices=MODES,
        example=3,
        allowed="1, 3 or 4",
    )
    leaf: str | None = setting(
        None,
        "data in LEAF's JSON layout, with the folders train and test; a path relative to the spec",
        example="femnist/data",
        allowed="a folder",
    )
    test_share: float | None = setting(
        None,
        "the share of each client's rows of file, or images, that is test data; default: 0.25",
        gt=0,
        lt=1,
        example=0.25,
    )
    exclude: str | None = setting(
        None,
        "training samples to exclude, as fedtilt audit writes them; a path relative to the spec",
        example="suspects.csv",
        allowed="a CSV file",
    )
    relabel: str | None = setting(
        None,
        "training samples that get the label they look like, as fedtilt audit writes them; a path relative to the spec",
        example="suspects.csv",
        allowed="a CSV file",
    )
    folder: str = setting(
        "", "the folder of downloaded data sets; empty: FEDTILT_DATA, else ~/.cache/fedtilt", allowed="a folder"
    )
    schema: str | None = setting(
        None,
        "what the columns of file are, as `fedtilt data schema` writes it; default: it is inferred",
        example="schema.json",
        allowed="a schema file; a path relative to the spec",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.file is not None and self.target is None and self.schema is None:
            raise InputError(f"data.file = {self.file!r} needs data.target; name the column of the labels")
        for key in self._without_source():
            value, (sources, remedy) = getattr(self, key), _ONLY_OF[key]
            if value != default_of(settings_of(type(self))[key]):
                needed = " or ".join(f"data.{source}" for source in sources)
                raise InputError(f"data.{key} = {value!r} needs {needed}; {remedy}")
        given = [key for key in ("file", "images", "leaf") if getattr(self, key) is not None]
        if len(given) > 1:
            raise InputError(f"data.{given[0]} and data.{given[1]} are two data sets; keep one of them")

    def _without_source(self) -> tuple[str, ...]:
        """The keys about data of another kind than this."""
        return tuple(key for key, (sources, _) in _ONLY_OF.items() if not any(getattr(self, each) for each in sources))

    @property
    def unused(self) -> tuple[str, ...]:
        """The keys without effect beside the others."""
        is_downloaded = self.path is None and bool(CATALOG[self.name].files)
        return self._without_source() + (() if self.images or is_downloaded else ("folder",))

    @property
    def path(self) -> str | None:
        """The path of the user's own data; None: a data set of the catalogue."""
        return self.file or self.images or self.leaf
