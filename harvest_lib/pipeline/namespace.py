"""Which messages a writer gets: those whose namespace a regular expression finds something in, by default all.

As in Transporter a match anywhere counts: write `^` and `$` where the whole namespace is meant.
"""

import re
from dataclasses import dataclass, field

EVERYTHING = ".*"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFilter:
    """A compiled one. Remembers its verdicts: there are few namespaces and many messages."""

    pattern: re.Pattern[str]
    _verdicts: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, expression: str = EVERYTHING) -> "NamespaceFilter":
        """Compile one. Raises ValueError, which says where it is off."""
        return cls(pattern=compiled(expression))

    def __str__(self) -> str:
        """Return the expression."""
        return self.pattern.pattern

    def matches(self, namespace: str) -> bool:
        """Tell whether messages of this namespace pass."""
        verdict = self._verdicts.get(namespace)
        if verdict is None:
            verdict = self._verdicts[namespace] = self.pattern.search(namespace) is not None
        return verdict


def compiled(expression: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises ValueError, which says where it is off."""
    try:
        return re.compile(expression)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise ValueError(f"is not a regular expression: {error.msg}{where}") from error
    except (OverflowError, RecursionError) as error:
        raise ValueError("is a regular expression too large to compile") from error
