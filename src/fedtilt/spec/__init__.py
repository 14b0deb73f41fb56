"""The TOML spec of a run: its keys (`fields`, `method`), how to read it (`read`) and how to write it (`write`)."""

from fedtilt.spec.build import dataset_of, federation_of, known_schema_of, model_of, table_of, train_settings_of
from fedtilt.spec.data_fields import DataSpec
from fedtilt.spec.fields import ModelSpec, Spec, StorageSpec
from fedtilt.spec.json_schema import json_schema
from fedtilt.spec.method import MethodSpec
from fedtilt.spec.read import builtin_names, load, parse
from fedtilt.spec.write import annotated, dump, starter
