"""The summary of one site's table."""

import numpy as np

from fedtilt.data import Schema
from fedtilt.data.tables.summary import summarise_sites


def summarise(reader, names, *, site="", schema=None, classes=(), rows=None):
    rows = np.arange(len(reader)) if rows is None else rows
    return summarise_sites(reader, names, {site: rows}, {site: classes}, schema or Schema(columns=()))[0]
