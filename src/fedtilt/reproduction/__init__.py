"""The paper's tables and figures as data, and the code that runs and reports them (`fedtilt reproduce`)."""

from fedtilt.reproduction.experiment import NAMES, Case, Experiment, Options, load
from fedtilt.reproduction.published import published_for
from fedtilt.reproduction.runner import ReproductionResult, reproduce

__all__ = ["NAMES", "Case", "Experiment", "Options", "ReproductionResult", "load", "published_for", "reproduce"]
