"""Commands on a comparison's folder: report, watch, predict, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fairlead.cli.command import app, console, tracking
from fairlead.cli.options import Fold, Method, Run, Track, whole
from fairlead.cli.show import show, show_check
from fairlead.comparison.recheck import recheck
from fairlead.core.errors import InputError
from fairlead.prediction.export import export
from fairlead.prediction.predict import predict
from fairlead.report import write_page


@app.command(epilog="Example: `fairlead report runs/demo --owner va`")
def report(
    folder: Run,
    *,
    owner: Annotated[
        str | None,
        typer.Option(help="Write a page for this owner, without the others' names and numbers.", show_default="all"),
    ] = None,
    track: Track = None,
) -> None:
    """Print a finished comparison's table and write its page again, or the page of one owner."""
    with tracking(track, folder):
        if owner is None:
            show(folder)
        else:
            page = write_page(folder, owner)
            console.print(escape(f"Report for {owner}: {page}"), highlight=False, soft_wrap=True)


@app.command(name="watch", epilog="Example: `fairlead watch runs/demo`, while `fairlead compare --out runs/demo` runs")
def watch_command(
    folder: Run,
    *,
    port: Annotated[
        str, typer.Option(help="Port on this machine.", metavar="N", show_default="any that is free")
    ] = "0",
) -> None:
    """Show a comparison's page while it is trained: how far it is, then the verdict. For this machine alone."""
    from fairlead.report.live import watching_server

    with watching_server(folder, whole("port", port, least=0)) as server:
        console.print(f"Open {server.address} in a browser; Ctrl-C ends this.", highlight=False, soft_wrap=True)
        server.serve_forever()


@app.command(name="predict", epilog="Example: `fairlead predict runs/heart --owner va new.csv --out predictions.csv`")
def predict_command(
    folder: Run,
    rows: Annotated[Path | None, typer.Argument(metavar="FILE", help="A table of raw rows.")] = None,
    *,
    owner: Annotated[str | None, typer.Option(help="Whose model.", show_default="by the file's owner column")] = None,
    method: Method = None,
    fold: Fold = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the predictions (CSV).", metavar="FILE", show_default="standard output"),
    ] = None,
    check_scores: Annotated[
        bool, typer.Option("--check", help="Score the run's test rows again, from the raw file.", show_default="off")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(help="Where the raw file lies now, for --check.", metavar="FILE", show_default="where it lay"),
    ] = None,
) -> None:
    """Predict with a comparison's models: classes and probabilities, labels or quantities of raw rows."""
    if check_scores:
        show_check(recheck(folder, data))
        return
    if rows is None:
        raise InputError("no table given; try: fairlead predict RUN --owner NAME new.csv")
    notes: list[str] = []
    found = predict(folder, rows, owner, method, None if fold is None else whole("fold", fold, least=0), notes)
    for sentence in notes:
        print(f"fairlead: {sentence}", file=sys.stderr)
    text = found.to_csv(index=False)
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, encoding="utf-8")


@app.command(name="export", epilog="Example: `fairlead export runs/heart va-model --owner va`")
def export_command(
    folder: Run,
    to: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    *,
    owner: Annotated[str, typer.Option(help="Whose model.")],
    method: Method = None,
    fold: Fold = None,
) -> None:
    """Write one owner's model with its preparation and a model card as a folder."""
    _, notes = export(folder, owner, to, method, None if fold is None else whole("fold", fold, least=0))
    for sentence in [*notes, f"Written: {to}"]:
        console.print(escape(sentence), highlight=False, soft_wrap=True)
