"""Mutated values: the same from the same seed, whatever was mutated before."""

import random

from chaos.fuzz.mutate import ODD_VALUES, dump_json, mutated_json

VALUES = {"a": [1, {"b": "c"}], "d": {"e": None}}


def test_a_mutation_does_not_change_the_values_that_others_use() -> None:
    odd = dump_json(list(ODD_VALUES))
    texts = [dump_json(mutated_json(VALUES, random.Random(seed))) for seed in range(3000)]
    assert dump_json(list(ODD_VALUES)) == odd
    assert texts == [dump_json(mutated_json(VALUES, random.Random(seed))) for seed in range(3000)]
