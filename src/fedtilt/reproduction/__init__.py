"""Every table and figure of the paper as data, and what runs and tells them; `fedtilt reproduce` is its command."""

from fedtilt.reproduction.experiment import NAMES, Case, Experiment, Options, load
from fedtilt.reproduction.published import published_for
from fedtilt.reproduction.runner import ReproductionResult, reproduce

__all__ = ["NAMES", "Case", "Experiment", "Options", "ReproductionResult", "load", "published_for", "reproduce"]
