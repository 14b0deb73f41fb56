"""Data: load or read a data set, divide it among clients, and spoil it with outliers."""

from fedtilt.data.catalog import data_folder, names, where
from fedtilt.data.dataset import Dataset
from fedtilt.data.download import check, get
from fedtilt.data.features import Features
from fedtilt.data.federation import Federation
from fedtilt.data.outliers import Outliers
from fedtilt.data.readers import load
from fedtilt.data.tables import rows, table

__all__ = [
    "Dataset",
    "Features",
    "Federation",
    "Outliers",
    "check",
    "data_folder",
    "get",
    "load",
    "names",
    "rows",
    "table",
    "where",
]
