"""Data: load or read a data set, divide it among clients, and add outliers."""

from typing import TYPE_CHECKING

from fedtilt.lazy_imports import lazy_names

if TYPE_CHECKING:
    from fedtilt.data.dataset import Dataset
    from fedtilt.data.federation import Federation
    from fedtilt.data.image_folders.folder import images
    from fedtilt.data.outliers import Outliers
    from fedtilt.data.published.catalog import find_folder, load, names
    from fedtilt.data.published.download import download, verify
    from fedtilt.data.published.entry import data_folder
    from fedtilt.data.sources.huggingface import from_huggingface
    from fedtilt.data.sources.leaf_json import leaf
    from fedtilt.data.sources.torch_dataset import from_torch
    from fedtilt.data.tables.column import Column
    from fedtilt.data.tables.schema import Schema
    from fedtilt.data.tables.table import table, transform
else:
    __getattr__, __dir__ = lazy_names(
        globals(),
        {
            "Column": "fedtilt.data.tables.column:Column",
            "Dataset": "fedtilt.data.dataset:Dataset",
            "Federation": "fedtilt.data.federation:Federation",
            "Outliers": "fedtilt.data.outliers:Outliers",
            "Schema": "fedtilt.data.tables.schema:Schema",
            "data_folder": "fedtilt.data.published.entry:data_folder",
            "download": "fedtilt.data.published.download:download",
            "find_folder": "fedtilt.data.published.catalog:find_folder",
            "from_huggingface": "fedtilt.data.sources.huggingface:from_huggingface",
            "from_torch": "fedtilt.data.sources.torch_dataset:from_torch",
            "images": "fedtilt.data.image_folders.folder:images",
            "leaf": "fedtilt.data.sources.leaf_json:leaf",
            "load": "fedtilt.data.published.catalog:load",
            "names": "fedtilt.data.published.catalog:names",
            "table": "fedtilt.data.tables.table:table",
            "transform": "fedtilt.data.tables.table:transform",
            "verify": "fedtilt.data.published.download:verify",
        },
    )

__all__ = [
    "Column",
    "Dataset",
    "Federation",
    "Outliers",
    "Schema",
    "data_folder",
    "download",
    "find_folder",
    "from_huggingface",
    "from_torch",
    "images",
    "leaf",
    "load",
    "names",
    "table",
    "transform",
    "verify",
]
