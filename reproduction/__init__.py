"""Every table and figure of the paper and of others: run one with `python -m reproduction WHAT`, in a clone.

Not part of the installed package.
"""

from reproduction.experiment import NAMES, Case, Experiment, Options, load
from reproduction.runner import ReproductionResult, reproduce

__all__ = ["NAMES", "Case", "Experiment", "Options", "ReproductionResult", "load", "reproduce"]
