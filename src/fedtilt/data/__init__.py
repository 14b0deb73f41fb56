"""Data: load or read a data set, divide it among clients, and add outliers."""

from fedtilt.lazy_imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(globals())
