"""Data: load or read a data set, divide it among clients, and add outliers."""

from fedtilt.data.dataset import Dataset
from fedtilt.data.federation import Federation
from fedtilt.data.image_folders.folder import images
from fedtilt.data.outliers import Outliers
from fedtilt.data.published.catalog import find_folder, load, names
from fedtilt.data.published.download import check, get
from fedtilt.data.published.entry import data_folder
from fedtilt.data.sources.huggingface import from_huggingface
from fedtilt.data.sources.leaf_json import leaf
from fedtilt.data.sources.torch_dataset import from_torch
from fedtilt.data.tables.column import Column
from fedtilt.data.tables.schema import Schema
from fedtilt.data.tables.table import rows, table

__all__ = [
    "Column",
    "Dataset",
    "Federation",
    "Outliers",
    "Schema",
    "check",
    "data_folder",
    "find_folder",
    "from_huggingface",
    "from_torch",
    "get",
    "images",
    "leaf",
    "load",
    "names",
    "rows",
    "table",
]
