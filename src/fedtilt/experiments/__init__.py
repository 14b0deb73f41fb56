"""Every table and figure of the paper as data, and what runs and tells them; `fedtilt reproduce` is its command."""

from fedtilt.experiments.beside import beside
from fedtilt.experiments.experiment import NAMES, Cell, Experiment, Options, load
from fedtilt.experiments.runner import Outcome, reproduce

__all__ = ["NAMES", "Cell", "Experiment", "Options", "Outcome", "beside", "load", "reproduce"]
