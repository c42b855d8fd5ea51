"""The command as a whole: what it prints on, how it ends, and in which words it fails."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fairlead.core.errors import FairleadError

app = typer.Typer(
    help="Personalized federated learning in which no participant ends up worse off than alone.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
# Without a terminal the width is unknown; the verdict table wants 100 columns.
console = Console(width=None if sys.stdout.isatty() else 100)


def print_version(wanted: bool) -> None:
    """What `--version` does."""
    if wanted:
        print(f"fairlead {metadata.version('fairlead')}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before a command."""


class Stopped(Exception):
    """The user stopped the command; says how to go on."""


@contextmanager
def going_on(folder: Path | None) -> Iterator[None]:
    """Turn Ctrl-C into a sentence on how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if folder is None:
            raise Stopped("stopped; the same command goes on from the last checkpoint") from stop
        if not (folder / "settings.json").exists():
            raise Stopped("stopped before training began; nothing was written") from stop
        name = shlex.quote(str(folder))
        raise Stopped(f"stopped; `fairlead resume {name}` goes on from the last checkpoint") from stop


@contextmanager
def tracking(tracker: str | None, folder: Path) -> Iterator[None]:
    """Log the finished comparison to a tracker, where one is named; one that is not there is refused at once."""
    from fairlead.report.track import check_tracker, track

    if tracker is not None:
        check_tracker(tracker)
    yield
    if tracker is not None:
        console.print(escape(track(folder, tracker)), highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; what goes wrong on purpose is one sentence and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="fairlead: %(message)s")
    logging.getLogger("fairlead.clients.auto").setLevel(logging.INFO)
    try:
        code = app(standalone_mode=False)
    except FairleadError as error:
        sys.exit(fail(str(error)))
    except Stopped as stop:
        sys.exit(fail(str(stop), 130))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(fail("stopped", 130))
    except BrokenPipeError:  # whoever read the output has gone
        sys.stderr.close()
        os._exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(fail(f"{where}{error.strerror or error}; check the path, its permissions and the room on the disk"))
    except MemoryError:
        sys.exit(fail("not enough memory; use fewer clients, seeds or samples, or a smaller model"))
    except Exception as error:
        # The option parser's own errors, wherever it keeps its classes, can say themselves in a sentence.
        if hasattr(error, "format_message"):
            sys.exit(fail(error.format_message().replace("\n", " ")))
        raise
    sys.exit(code if isinstance(code, int) else 0)


def fail(sentence: str, code: int = 2) -> int:
    """Say what went wrong, on standard error."""
    print(f"fairlead: {sentence}", file=sys.stderr)
    return code
