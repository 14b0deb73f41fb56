"""Numbers of every kind that people pass become plain ones; what is no number is refused in one sentence."""

import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedtilt.checks import number, whole
from fedtilt.errors import InputError

WHOLE = [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
BROKEN = [3.0, np.float32(3), np.array(3.0), torch.tensor(3.0, requires_grad=True), Fraction(3)]
NO_NUMBER = ["3", None, True, np.True_, torch.tensor(True), math.nan, np.float32("nan"), torch.tensor(math.nan), 3j,
             np.str_("3"), Decimal(3), [3], {}, np.array([3]), torch.tensor([3]), int, np.ndarray, 10**400]  # fmt: skip


@pytest.mark.parametrize("value", WHOLE + BROKEN, ids=repr)
def test_a_real_number_becomes_a_float(value):
    found = number(value, "q")
    assert type(found) is float
    assert found == 3
    assert number(-math.inf, "q") == -math.inf


@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_an_integer_becomes_an_int(value):
    found = whole(value, "rounds", 3)
    assert type(found) is int
    assert json.dumps(found) == "3"
    assert whole(value, "rounds") == 3


@pytest.mark.parametrize("value", NO_NUMBER, ids=lambda value: repr(value)[:20])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputError) as error:
        number(value, "q")
    shown = repr(value) if len(repr(value)) <= 60 else "something of type int"
    assert str(error.value) == f"q must be a number, got {shown}"


@pytest.mark.parametrize("value", [*BROKEN, *NO_NUMBER[:-1], math.inf], ids=repr)
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(InputError) as error:
        whole(value, "rounds")
    assert str(error.value) == f"rounds must be a whole number, got {value!r}"


@pytest.mark.parametrize("value", [0, np.int64(0), torch.tensor(-1)], ids=repr)
def test_an_integer_below_the_least_is_refused(value):
    with pytest.raises(InputError) as error:
        whole(value, "rounds", 1)
    assert str(error.value) == f"rounds must be a whole number ≥ 1, got {value!r}"


def test_integers_keep_all_their_digits():
    assert whole(2**200 + 1, "seed") == 2**200 + 1
