"""A training history: the rounds that follow from each other, without those that were left when the server went back.

Sites store what they keep under the id of a history. Going back to a round starts a new one: a site finds in the
earlier ones what it kept of the rounds up to there, and uses nothing of the rounds after it.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Any, Self

from fedtilt.errors import InputError


@dataclass(frozen=True)
class TrainingHistory:
    """The id of a history, and those that it started from.

    >>> TrainingHistory("00000000000000aa").branch(4).earlier
    (('00000000000000aa', 4),)
    """

    id: str
    earlier: tuple[tuple[str, int], ...] = ()  # (id, the last round that counts), oldest first

    def __post_init__(self) -> None:
        for id in (self.id, *(id for id, _ in self.earlier)):
            if not isinstance(id, str) or not re.fullmatch(r"[0-9a-f]{16}", id):
                raise InputError(f"the server's history id must be 16 hexadecimal digits, got {str(id)[:40]!r}")

    @classmethod
    def new(cls) -> Self:
        """A history without a round."""
        return cls(secrets.token_hex(8))

    def branch(self, round: int) -> Self:
        """A new history that starts after a round of this one."""
        return type(self)(secrets.token_hex(8), (*self.earlier, (self.id, round)))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"history": self.id} | ({"earlier": [list(entry) for entry in self.earlier]} if self.earlier else {})

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The inverse of `to_json`."""
        match values:
            case {"history": id, **rest}:
                earlier = rest.get("earlier", [])
                if isinstance(earlier, list) and all(isinstance(e, list) and len(e) == 2 for e in earlier):
                    return cls(id, tuple((name, int(round)) for name, round in earlier))
        raise InputError(f"this is no training history: {str(values)[:80]!r}")
