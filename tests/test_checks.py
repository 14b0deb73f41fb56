"""Numbers from Python, NumPy and PyTorch become plain ones; everything else is refused."""

import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedtilt.checks import number, whole
from fedtilt.errors import InputError

INTEGERS = [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
NON_INTEGERS = [3.0, np.float32(3), np.array(3.0), torch.tensor(3.0, requires_grad=True), Fraction(3)]
NOT_NUMBERS = ["3", None, True, np.True_, torch.tensor(True), math.nan, np.float32("nan"), torch.tensor(math.nan), 3j,
             np.str_("3"), Decimal(3), [3], {}, np.array([3]), torch.tensor([3]), int, np.ndarray, 10**400]  # fmt: skip


@pytest.mark.parametrize("value", INTEGERS + NON_INTEGERS, ids=repr)
def test_a_real_number_becomes_a_float(value):
    result = number(value, "q")
    assert type(result) is float
    assert result == 3
    assert number(-math.inf, "q") == -math.inf


@pytest.mark.parametrize("value", INTEGERS, ids=repr)
def test_an_integer_becomes_an_int(value):
    result = whole(value, "rounds", 3)
    assert type(result) is int
    assert json.dumps(result) == "3"
    assert whole(value, "rounds") == 3


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: repr(value)[:20])
def test_non_numbers_are_refused(value):
    with pytest.raises(InputError) as error:
        number(value, "q")
    text = repr(value) if len(repr(value)) <= 60 else "something of type int"
    assert str(error.value) == f"q must be a number, got {text}"


@pytest.mark.parametrize("value", [*NON_INTEGERS, *NOT_NUMBERS[:-1], math.inf], ids=repr)
def test_non_integers_are_refused(value):
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
