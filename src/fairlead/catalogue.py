"""Names to methods: `parse("fedrep+confree")` builds the method and the stage that averages for it.

A name is a method, then stages after plus signs: `ft` wraps the method, the others act on what it averages, in the
order written. `guard` and `stack` come last: they decide after training between the method before them and LOCAL.
Keywords come from the factories' own signatures.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fairlead.core import InputError, Method, Server, nearest, require
from fairlead.core.errors import check_kind
from fairlead.methods import CONVOYS, DECISIONS, METHODS, WRAPPERS, Decision
from fairlead.methods.dp_sgd import WORKS_WITH
from fairlead.methods.voices import voices_together
from fairlead.servers import AFTER_AVERAGE, STAGES, chain, reduces

# Methods whose clients send nothing in a round but what the averaging stage takes: +dp covers all of it.
COVERED: tuple[str, ...] = ("fedavg", "fedprox", "fedsam", "per-fedavg", "ditto", "apfl", "pfedme", "plgu-lf", "fedala")
COVERED += ("fedrep", "fedper", "plgu-grep", "lg-fedavg", "fedrod")

Options = Mapping[str, Mapping[str, Any]]


class Entry(NamedTuple):
    """A method ready to run, and the stage that takes the place of its averaging, if any."""

    method: Method
    average: Server | None


def parse(name: str, options: Options | None = None) -> Entry:
    """The method and averaging stage of a name such as `fedavg`, `fedavg+ft` or `fedrep+clip+confree`.

    >>> parse("fedavg+median").average is None
    False
    """
    check_kind("a method's name", name, str)
    options = options or {}
    decided = decision(name, options)
    if decided is not None:
        voices = [parse(voice, options).method for voice in decided.voices]
        return Entry(voices_together(voices, distilled=decided.distil), None)
    base, *extras = name.split("+")
    if base not in METHODS:
        raise InputError(f"method '{base}' is unknown; {nearest(base, [*METHODS, *CONVOYS])}")
    method: Method = call(base, METHODS[base], options)
    for extra in extras:
        if extra in WRAPPERS:
            require(
                extra != "dp-sgd" or base in WORKS_WITH,
                f"{name}: {base} uses samples in ways that +dp-sgd does not cover; {nearest(base, WORKS_WITH)}",
            )
            method = call(extra, WRAPPERS[extra], options, method)
        elif extra not in STAGES:
            raise InputError(
                f"stage '+{extra}' of {name} is unknown; {nearest(extra, [*STAGES, *WRAPPERS, *DECISIONS])}"
            )
    stages = [extra for extra in extras if extra in STAGES]
    return Entry(method, _average(name, method.average, stages, options) if stages else None)


def _average(name: str, usual: Server | None, extras: list[str], options: Options) -> Server:
    """The named stages in the place of the method's own averaging, which fills the gap where none leaves one row."""
    base, first = name.split("+")[0], extras[0]
    if usual is None:
        raise InputError(f"{name}: {base} averages nothing, so +{first} has nothing to replace")
    covered = "dp" not in extras or base in COVERED
    require(covered, f"{name}: {base} sends more than +dp covers; {nearest(base, COVERED)}")
    stages: list[Server] = []
    one_row = False  # whether the stages so far leave one row for everybody
    for extra in extras:
        last = extra in AFTER_AVERAGE
        require(last or not one_row, f"{name}: +{extra} comes after a stage that leaves one row; put it before")
        if last and not one_row:
            stages.append(usual)
        stages.append(call(extra, STAGES[extra], options))
        one_row = reduces(extra)
    if not one_row:
        stages.append(usual)
    return chain(*stages) if len(stages) > 1 else stages[0]


def decision(name: str, options: Options | None = None) -> Decision | None:
    """How a name such as `fedavg+guard` decides after training, and between whom; None where nothing is decided.

    >>> decision("fedrep+confree+guard").voices
    ('local', 'fedrep+confree')
    """
    if name in CONVOYS:
        alone: Decision = call(name, CONVOYS[name], options or {})
        return alone
    base, _, last = name.rpartition("+")
    require(base not in CONVOYS, f"{name}: {base} decides by itself what is deployed; leave +{last} out")
    early = [extra for extra in name.split("+")[1:-1] if extra in DECISIONS]
    require(not early, f"{name}: +{''.join(early[:1])} decides what is deployed, so nothing comes after it")
    if not base or last not in DECISIONS:
        return None
    require(base != "local", f"{name}: LOCAL cannot be worse than alone; put +{last} behind another method")
    parse(base, options)  # says what is wrong with it
    made: Decision = call(last, DECISIONS[last], options or {}, ("local", base))
    return made


def with_voices(names: Iterable[str], options: Options | None = None) -> list[str]:
    """The names, each with those it decides between before it.

    >>> with_voices(["ditto+guard", "fedavg"])
    ['local', 'ditto', 'ditto+guard', 'fedavg']
    """
    found: dict[str, None] = {}
    for name in names:
        decided = decision(name, options)
        found |= dict.fromkeys([*(decided.voices if decided else ()), name])
    return list(found)


def parts_of(name: str) -> set[str]:
    """All whose options count for a name: method, stages, and those it decides between."""
    tracks = decision(name).voices if name in CONVOYS else ()  # type: ignore[union-attr]
    return {part for one in (name, *tracks) for part in one.split("+")}


def call(name: str, factory: Callable[..., Any], options: Options, *args: object) -> Any:
    """Call a factory with its options, each checked against the signature's type."""
    keywords = keywords_of(factory)
    hints = get_type_hints(factory)
    chosen = {}
    for key, value in options.get(name, {}).items():
        check_key(name, key, keywords)
        try:
            chosen[key] = TypeAdapter(hints[key], config=ConfigDict(allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise InputError(f"option {name}.{key}={value}: {reason}; the default is {keywords[key]}") from error
    return factory(*args, **chosen)


def keywords_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """A factory's keywords and their defaults."""
    parameters = inspect.signature(factory).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_options(options: Options) -> None:
    """Refuse options that no method or stage has, even of one that is not asked for: they are misspelt."""
    known: dict[str, Callable[..., Any]] = {**METHODS, **STAGES, **WRAPPERS, **DECISIONS, **CONVOYS}
    for name, values in options.items():
        if name not in known:
            raise InputError(
                f"option '{name}.{next(iter(values), '')}': no method or stage '{name}'; {nearest(name, known)}"
            )
        for key in values:
            check_key(name, key, keywords_of(known[name]))


def check_key(name: str, key: str, keywords: Mapping[str, Any]) -> None:
    """Refuse a keyword the factory does not have."""
    if key not in keywords:
        raise InputError(
            f"option '{name}.{key}' is unknown; {nearest(key, keywords) if keywords else f'{name} has none'}"
        )


class About(NamedTuple):
    """What a method's docstring says of it."""

    name: str
    title: str  # name, citation and one line of what it is
    cost: str
    keywords: dict[str, Any]
    text: str


def about(name: str) -> About:
    """A method or stage, described by its own docstring."""
    factory: Callable[..., Any] = {**STAGES, **WRAPPERS, **DECISIONS, **METHODS, **CONVOYS}[name]
    # A method's story is its module's docstring; a stage shares its module with others and tells its own.
    text = inspect.getdoc(factory if name in STAGES else sys.modules[factory.__module__]) or ""
    cost = re.split(r"\.\s", text.partition("\nCost: ")[2] + " ")[0].replace("\n", " ") + "."
    return About(name, text.partition("\n")[0], cost, keywords_of(factory), text)
