"""fedtilt: federated learning that is fair to clients and classes, and robust to bad data."""

from fedtilt.lazy_imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(globals())
