"""Commands that list what there is, and run published tables again: methods, scenarios, reproduce."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fairlead.catalogue import about
from fairlead.cli.command import app, console, going_on
from fairlead.cli.options import MOST_SEEDS, whole
from fairlead.core.errors import InputError, nearest
from fairlead.data import ABOUT, PRESETS
from fairlead.methods import CONVOYS, DECISIONS, METHODS, WRAPPERS
from fairlead.servers import STAGES
from fairlead.settings import protocol_of


@app.command(name="methods", epilog="Example: `fairlead methods fedora`")
def methods_command(
    name: Annotated[str | None, typer.Argument(help="Show one in full: symbols, cost, differences.")] = None,
) -> None:
    """List the methods and stages, with citation and cost."""
    known = {**METHODS, **CONVOYS, **STAGES, **WRAPPERS, **DECISIONS}
    if name is not None:
        if name not in known:
            raise InputError(f"method '{name}' is unknown; {nearest(name, known)}")
        one = about(name)
        console.print(escape(one.text), highlight=False)
        for key, default in one.keywords.items():
            console.print(f"  --set {name}.{key}={default}", highlight=False)
        return
    table = Table("method", "what it is", "cost", title="Methods", show_lines=True)
    for method in {**METHODS, **CONVOYS}:
        one = about(method)
        table.add_row(method, escape(one.title), escape(one.cost))
    console.print(table)
    stages = Table("after a plus", "what it does", "options", title="Stages, as in fedrep+confree", show_lines=True)
    for stage in {**STAGES, **WRAPPERS, **DECISIONS}:
        one = about(stage)
        stages.add_row(stage, escape(one.title), " ".join(f"{k}={v}" for k, v in one.keywords.items()))
    console.print(stages)


@app.command(epilog="Example: `fairlead scenarios`")
def scenarios() -> None:
    """List the named scenarios and the settings they bring along."""
    table = Table("scenario", "what it is", "training")
    for name, text in ABOUT.items():
        plan = protocol_of(name)
        brief = f"{plan['model']}, {plan['rounds']} rounds, lr {plan['lr']}, batch {plan['batch_size']}"
        table.add_row(name, escape(text), brief)
    console.print(table)
    changed = {k for preset in PRESETS.values() for k in asdict(preset)}
    console.print(f"Any part can be replaced: --{', --'.join(sorted(k.replace('_', '-') for k in changed - {'big'}))}")


@app.command(name="reproduce", epilog="Example: `fairlead reproduce fedora-communication --budget quick`")
def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="A published table or figure; --list names them.")] = None,
    *,
    budget: Annotated[str, typer.Option(help="quick, standard or full.", metavar="NAME")] = "standard",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder that holds data sets.", metavar="DIR", show_default="fetched by name")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for cells and tables.", metavar="DIR")] = Path("runs/reproduce"),
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds to repeat with.", metavar="N", show_default="the budget's")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Rows or columns that contain this, or are called =this.", metavar="TEXT", show_default="all"
        ),
    ] = None,
    jobs: Annotated[str, typer.Option(help="Cells to train side by side, on as many cores.", metavar="N")] = "1",
    list_names: Annotated[bool, typer.Option("--list", help="List the names.", show_default="off")] = False,
) -> None:
    """Run a published table or figure again, beside the paper's numbers."""
    from fairlead.reproduce import reproduce
    from fairlead.reproduce.console import Watch, listing, show

    if list_names or name is None:
        console.print(listing())
        return
    count = None if seeds is None else whole("seeds", seeds, most=MOST_SEEDS)
    with going_on(None), Watch(console) as progress:
        result = reproduce(
            name,
            budget=budget,
            data_dir=data_dir,
            out=out,
            seeds=count,
            only=only or (),
            jobs=whole("jobs", jobs),
            progress=progress,
        )
    show(console, result)
