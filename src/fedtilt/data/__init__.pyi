"""The public names of fedtilt.data."""

from fedtilt.data.dataset import Dataset as Dataset
from fedtilt.data.division import Division as Division
from fedtilt.data.federation import Federation as Federation
from fedtilt.data.outliers import Outliers as Outliers
from fedtilt.data.published.catalog import find_folder as find_folder
from fedtilt.data.published.catalog import load as load
from fedtilt.data.published.catalog import names as names
from fedtilt.data.published.download import download as download
from fedtilt.data.published.download import verify as verify
from fedtilt.data.published.entry import data_folder as data_folder
from fedtilt.data.sources.huggingface import from_huggingface as from_huggingface
from fedtilt.data.sources.images import images as images
from fedtilt.data.sources.leaf_json import leaf as leaf
from fedtilt.data.sources.torch_dataset import from_torch as from_torch
from fedtilt.data.tables.schema import Column as Column
from fedtilt.data.tables.schema import Schema as Schema
from fedtilt.data.tables.table import table as table
from fedtilt.data.tables.table import transform as transform
from fedtilt.data.targets import LabelTarget as LabelTarget
from fedtilt.data.targets import NumericTarget as NumericTarget
from fedtilt.data.targets import TokenTarget as TokenTarget
