"""Data: load or read a data set, divide it among clients, and add outliers."""

from fedtilt.data.catalog import find_folder, load, names
from fedtilt.data.dataset import Dataset
from fedtilt.data.download import check, get
from fedtilt.data.entry import data_folder
from fedtilt.data.federation import Federation
from fedtilt.data.huggingface import from_huggingface
from fedtilt.data.image_folder import images
from fedtilt.data.leaf_json import leaf
from fedtilt.data.outliers import Outliers
from fedtilt.data.schema import Column, Schema
from fedtilt.data.tables import rows, table
from fedtilt.data.torch_dataset import from_torch

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
