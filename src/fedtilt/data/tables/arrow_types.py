"""The types of a table's columns in Arrow."""

from collections.abc import Sequence

import pyarrow as pa

TEXT = pa.dictionary(pa.int32(), pa.string())  # the different texts, and which of them each row has


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type has text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type has whole numbers or fractions."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def decoded(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of categories by their values, unless these are text."""
    if pa.types.is_dictionary(array.type) and not is_text(array.type):
        return array.cast(array.type.value_type)
    return array


def one_type(arrays: Sequence[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    """Columns of several files, cast to one type: float64 for numbers, text if they differ otherwise."""
    known = [array.type for array in arrays if not pa.types.is_null(array.type)]
    if len(set(known)) == 1:
        target = known[0]
    elif all(is_number(kind) for kind in known):
        target = pa.float64()
    elif all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in known):
        target = pa.timestamp("us")
    else:
        target = pa.string()
    return [array.cast(target) for array in arrays]
