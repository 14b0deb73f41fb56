"""The base of all tables of a spec, and annotations of keys that error messages and docs are written from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]


class SpecTable(BaseModel):
    """One table of a spec: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class OneOf:
    """A validator that accepts only these values."""

    choices: tuple[str, ...]
    optional: bool = False  # whether None is one of them

    def __call__(self, value: str | None) -> str | None:
        """Return the value, or raise."""
        if value not in self.choices and not (value is None and self.optional):
            raise ValueError("not one of the choices")  # the error message lists them
        return value


def one_of(choices: Iterable[str], *, optional: bool = False) -> AfterValidator:
    """A validator from which `allowed_values` lists the choices."""
    return AfterValidator(OneOf(tuple(choices), optional))


def allowed_text(text: str) -> dict[str, Any]:
    """The allowed values in words, for a key whose type and limits are not enough."""
    return {"allowed": text}
