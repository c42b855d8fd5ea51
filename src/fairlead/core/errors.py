"""What can go wrong, as a tree.

FairleadError
├── InputError      what the caller gave cannot work: an unknown name, a value out of range, data that does not fit
│   └── NeedsValidationError   the method looks at validation samples while it trains, and there are none
├── DataError       a data set is missing or unreadable
├── DivergedError   every client's update was NaN or infinite: the step size is too large
├── EngineError     this engine cannot run this model; the message names one that can
└── RunError        a run folder is damaged or belongs to other settings

Every message says what came, what was expected and what to do. The command line prints it as one sentence and exits
with code 2; no traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class FairleadError(Exception):
    """The root of everything the library raises on purpose."""


class InputError(FairleadError, ValueError):
    """What the caller gave cannot work."""


class NeedsValidationError(InputError):
    """The method looks at validation samples while it trains, and a client has none."""


class DataError(FairleadError):
    """A data set is missing or unreadable."""


class DivergedError(FairleadError):
    """Training ended in numbers that are not finite."""


class EngineError(FairleadError):
    """This engine cannot run this model."""


class RunError(FairleadError):
    """A run folder is damaged or belongs to other settings."""


def require(condition: bool, message: str) -> None:
    """Check at the front door: raise `InputError(message)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def check_kind(what: str, value: object, kind: type) -> None:
    """Refuse a value of another kind, before it is used.

    >>> check_kind("plan", 3, str)
    Traceback (most recent call last):
    fairlead.core.errors.InputError: plan must be of type str, got an object of type int
    """
    found = f"an object of type {type(value).__name__}"
    require(isinstance(value, kind), f"{what} must be of type {kind.__name__}, got {found}")


def quoted(text: object, most: int = 500) -> str:
    """What others wrote, as part of a message: nothing that steers a terminal, and not without end.

    >>> quoted("no rows\\x1b[2J; see\\nabove"), quoted("a" * 99, most=3)
    ('no rows [2J; see above', 'aaa...')
    """
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    return plain if len(plain) <= most else f"{plain[:most]}..."


def nearest(name: str, valid: Iterable[str]) -> str:
    """The hint that ends an unknown-name message.

    >>> nearest("fedrpe", ["fedavg", "fedrep"])
    "did you mean 'fedrep'? Valid: fedavg, fedrep"
    """
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    listing = f"Valid: {', '.join(names)}"
    return f"did you mean '{close[0]}'? {listing}" if close else listing
