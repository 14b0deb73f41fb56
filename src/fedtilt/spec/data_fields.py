"""The keys of `[data]`: a published data set, a table, folders of images or LEAF data."""

import warnings
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from fedtilt.data import names
from fedtilt.data.image_folders.cache import MODES
from fedtilt.errors import InputError
from fedtilt.spec.table import PositiveInt, SpecTable, allowed_text, one_of


def _name_as_text(value: object) -> object:
    """A column may be called 1."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


ColumnName = Annotated[str, BeforeValidator(_name_as_text)]


def _check_channels(value: int) -> int:
    if value not in MODES:
        raise ValueError("not a number of channels")
    return value


class _DataFields(SpecTable):
    """The keys of `[data]` but one, for which pydantic has a method of the same name."""

    name: Annotated[str, one_of(names())] = Field(
        default="digits", description="the data set, unless file, images or leaf is set"
    )
    file: str | None = Field(
        default=None,
        description="your own table; a path relative to the spec; the tables of a folder are named after their clients",
        examples=["patients.csv"],
        json_schema_extra=allowed_text("a CSV, TSV or Parquet file, or a folder of them"),
    )
    target: ColumnName | None = Field(
        default=None,
        description="the column of the labels; required with file, unless the schema names it",
        examples=["diagnosis"],
        json_schema_extra=allowed_text("a column of file"),
    )
    client: ColumnName | None = Field(
        default=None,
        description="the column of the clients",
        examples=["hospital"],
        json_schema_extra=allowed_text("a column of file"),
    )
    group: ColumnName | Annotated[tuple[ColumnName, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None,
        description="the column of groups, such as sex, or several: tau tilts over these groups instead of the "
        "classes, and metrics are given for them; not an input of the model",
        examples=["sex"],
        json_schema_extra=allowed_text("a column of file, or a list of columns"),
    )
    weight: ColumnName | None = Field(
        default=None,
        description="a column of file with the weight of each row in the training loss: 2 counts as two rows",
        examples=["visits"],
        json_schema_extra=allowed_text("a column of file"),
    )
    drop: tuple[ColumnName, ...] = Field(
        default=(),
        strict=False,
        description="columns to leave out",
        json_schema_extra=allowed_text('a list of columns of file, such as ["id"]'),
    )
    split: ColumnName | None = Field(
        default=None,
        description="a column of file with train and test in it; left out: test data is drawn",
        examples=["fold"],
        json_schema_extra=allowed_text("a column of file"),
    )
    split_group: ColumnName | None = Field(
        default=None,
        description="a column of file whose rows with the same value are all training or all test data",
        examples=["patient"],
        json_schema_extra=allowed_text("a column of file"),
    )
    split_time: ColumnName | None = Field(
        default=None,
        description="a column of file with times; the newest rows of each client are test data",
        examples=["admitted"],
        json_schema_extra=allowed_text("a column of file"),
    )
    images: str | None = Field(
        default=None,
        description="your own images: a folder with CLASS/… or CLIENT/CLASS/…, also inside train and test, or a CSV "
        "file with the columns path, label, client and split; a path relative to the spec",
        examples=["photos"],
        json_schema_extra=allowed_text("a folder or a CSV file"),
    )
    image_size: PositiveInt | Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False)] | None = Field(
        default=None,
        description="height and width to resize images to, or one number for both; left out: they all have the same",
        examples=[32],
        json_schema_extra=allowed_text("a whole number ≥ 1, or a list of two"),
    )
    image_channels: Annotated[int, AfterValidator(_check_channels)] | None = Field(
        default=None,
        description="the channels to convert images to: 1 (grey), 3 (colour) or 4 (with transparency); left out: they "
        "all have the same",
        examples=[3],
        json_schema_extra=allowed_text("1, 3 or 4"),
    )
    leaf: str | None = Field(
        default=None,
        description="data in LEAF's JSON layout, with the folders train and test; a path relative to the spec",
        examples=["femnist/data"],
        json_schema_extra=allowed_text("a folder"),
    )
    test_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        allow_inf_nan=False,
        description="the share of each client's rows of file, or images, that is test data; left out: 0.25",
        examples=[0.25],
    )
    exclude: str | None = Field(
        default=None,
        description="training samples to leave out, as fedtilt audit writes them; a path relative to the spec",
        examples=["suspects.csv"],
        json_schema_extra=allowed_text("a CSV file"),
    )
    relabel: str | None = Field(
        default=None,
        description="training samples that get the label they look like, as fedtilt audit writes them; a path relative "
        "to the spec",
        examples=["suspects.csv"],
        json_schema_extra=allowed_text("a CSV file"),
    )
    folder: str = Field(
        default="",
        description="the folder of downloaded data sets; empty: FEDTILT_DATA, else ~/.cache/fedtilt",
        json_schema_extra=allowed_text("a folder"),
    )

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns of groups."""
        return () if self.group is None else (self.group,) if isinstance(self.group, str) else self.group

    @property
    def path(self) -> str | None:
        """The path of the user's own data; None: a data set of the catalogue."""
        return self.file or self.images or self.leaf

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.file is not None and self.target is None and self.schema is None:
            raise InputError(f"data.file = {self.file!r} needs data.target; name the column of the labels")
        for key in ("target", "client", "group", "weight", "drop", "schema", "split", "split_group", "split_time"):
            value = getattr(self, key)
            if self.file is None and value not in (None, ()):
                raise InputError(f"data.{key} = {value!r} needs data.file; name the table it is in")
        for key in ("image_size", "image_channels"):
            if self.images is None and getattr(self, key) is not None:
                raise InputError(f"data.{key} = {getattr(self, key)!r} needs data.images; name the folder they are in")
        sources = [key for key in ("file", "images", "leaf") if getattr(self, key) is not None]
        if len(sources) > 1:
            raise InputError(f"data.{sources[0]} and data.{sources[1]} are two data sets; keep one of them")
        if self.test_share is not None and sources not in (["file"], ["images"]):
            raise InputError(f"data.test_share = {self.test_share} needs data.file or data.images; leave it out")
        return self


_SCHEMA = Field(
    default=None,
    description="what the columns of file are, as `fedtilt data schema` writes it; left out: it is inferred",
    examples=["schema.json"],
    json_schema_extra=allowed_text("a schema file; a path relative to the spec"),
)
if TYPE_CHECKING:

    class DataSpec(_DataFields):
        """`[data]`."""

        schema: str | None = None  # type: ignore[assignment]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the method is deprecated, and specs do not use it
        DataSpec = create_model("DataSpec", __base__=_DataFields, __doc__="`[data]`.", schema=(str | None, _SCHEMA))
