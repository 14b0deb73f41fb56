"""What every table of a spec is, and the marks on its keys that sentences and documents are made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict


class Table(BaseModel):
    """One table of a spec: frozen, and no key that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class OneOf:
    """Refuses every text but these."""

    choices: tuple[str, ...]

    def __call__(self, value: str) -> str:
        """The value, if it is one of them."""
        if value not in self.choices:
            raise ValueError("not one of the choices")  # becomes a sentence that lists them
        return value


def one_of(choices: Iterable[str]) -> AfterValidator:
    """A check that `sentences.allowed` can read back."""
    return AfterValidator(OneOf(tuple(choices)))


def says(allowed: str) -> dict[str, Any]:
    """The allowed values in words, where type and limits do not say it all."""
    return {"allowed": allowed}
