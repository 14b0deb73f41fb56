"""Every table and figure of the paper as data, and what runs and tells them; `fedtilt reproduce` is its command."""

from fedtilt.reproduction.experiment import NAMES, Cell, Experiment, Options, load
from fedtilt.reproduction.published import published_for
from fedtilt.reproduction.runner import Outcome, reproduce

__all__ = ["NAMES", "Cell", "Experiment", "Options", "Outcome", "load", "published_for", "reproduce"]
