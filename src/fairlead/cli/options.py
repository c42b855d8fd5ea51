"""What stands behind a command on the line, from text to values; one option per field of `Settings`."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.core.errors import InputError, require
from fairlead.methods import CONVOYS, DECISIONS, METHODS, WRAPPERS
from fairlead.servers import STAGES
from fairlead.settings import Settings, default_of

MOST_SEEDS = 10_000
METAVARS = {"int": "N", "float": "X", "Path": "DIR", "Counts": "N,N,N", "Triple": "X,X,X"}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of `Settings`, in place of its `**options`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    extra = []
    for name, field in Settings.model_fields.items():
        kind = str(Settings.__annotations__[name]).split(" ")[0]
        # Values stay text here: `settings.check` converts them and says what is wrong in one sentence.
        default: dict[str, Any] = {"help": field.description, "show_default": default_of(name)}
        option = typer.Option(f"--{name.replace('_', '-')}", metavar=METAVARS.get(kind, "NAME"), **default)
        hint: Any = str | None
        if kind == "bool":
            hint, option = bool | None, typer.Option(f"--{name.replace('_', '-')}", **default)
        if name == "set":
            default["help"] = "e.g. fedora.a=0.8"
            hint, option = list[str] | None, typer.Option("--set", metavar="NAME.KEY=VALUE", **default)
        annotation = Annotated[hint, option]
        extra.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    command.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
    command.__annotations__ |= {p.name: p.annotation for p in extra}
    return command


Config = Annotated[
    Path | None,
    typer.Option(help="Settings file (TOML) with the same names.", metavar="FILE", show_default="none"),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder for the results.", metavar="DIR", show_default="runs/DATA-xxxxxx, by what is asked"),
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Delete what this comparison left in the folder; train anew.", show_default="off"),
]
Track = Annotated[
    str | None,
    typer.Option(
        help="Log the finished runs to tensorboard, mlflow or wandb as well.", metavar="NAME", show_default="none"
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A comparison's folder.")]
Method = Annotated[
    str | None, typer.Option(help="Whose models.", show_default="the one recommended to the owner, else local")
]
Fold = Annotated[
    str | None,
    typer.Option(help="Use the model of this fold.", metavar="K", show_default="the model of all rows, else fold 0"),
]


def complete_method(begun: str) -> list[str]:
    """Names the shell offers for one that is begun: methods, and after a plus sign stages."""
    before, plus, _ = begun.rpartition("+")
    names = [f"{before}+{stage}" for stage in {**STAGES, **WRAPPERS, **DECISIONS}] if plus else [*METHODS, *CONVOYS]
    return [name for name in names if name.startswith(begun)]


def read_config(path: Path | None) -> dict[str, Any]:
    """A settings file's values; dashes and underscores are the same."""
    if path is None:
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror or error}; expected a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path} is not valid TOML: {error}") from error
    return {k.replace("-", "_"): v for k, v in values.items()}


def settings_from(values: dict[str, Any]) -> dict[str, Any]:
    """`--set a.b=c` texts become nested options; everything else passes."""
    pairs = values.get("set")
    if isinstance(pairs, list):
        nested: dict[str, dict[str, str]] = {}
        for pair in pairs:
            name, _, value = pair.partition("=")
            owner, _, key = name.partition(".")
            require(bool(owner and key and value), f"--set {pair}: expected NAME.KEY=VALUE, e.g. fedora.a=0.8")
            nested.setdefault(owner, {})[key] = value
        values["set"] = nested
    return values


def whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """A whole number from text."""
    try:
        number = int(str(value))
    except ValueError as error:
        raise InputError(f"--{name} must be a whole number, got '{value}'") from error
    require(number >= least, f"--{name} must be at least {least}, got {number}")
    require(most is None or number <= most, f"--{name} must be at most {most}, got {number}")
    return number
