"""Commands that look at data and train: compare, run, data, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.command import app, going_on, tracking
from fairlead.cli.options import (
    MOST_SEEDS,
    Config,
    Fresh,
    Out,
    Track,
    complete_method,
    read_config,
    settings_from,
    whole,
    with_settings,
)
from fairlead.cli.progress import watch
from fairlead.cli.show import show, show_data
from fairlead.comparison.compare import compare, resume
from fairlead.core.errors import require
from fairlead.data import survey
from fairlead.data.files import stem_of
from fairlead.runs.identity import digest
from fairlead.settings import check, resolve


@app.command(name="compare", epilog="Example: `fairlead compare fedavg fedrep+confree --rounds 20 --seeds 3`")
@with_settings
def compare_command(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Methods; LOCAL is always trained as the control.", autocompletion=complete_method),
    ] = None,
    *,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds to repeat with.", metavar="N", show_default="1")
    ] = None,
    out: Out = None,
    config: Config = None,
    fresh: Fresh = False,
    track: Track = None,
    **options: Any,
) -> None:
    """Compare methods client by client with training alone."""
    chosen = read_config(config) | {k: v for k, v in options.items() if v not in (None, [])}
    methods = methods or chosen.pop("methods", None)
    chosen.pop("methods", None)
    require(bool(methods), "no method given; try: fairlead compare local fedavg fedrep+confree")
    count = whole("seeds", seeds if seeds is not None else chosen.pop("seeds", 1), most=MOST_SEEDS)
    chosen.pop("seeds", None)
    given, track = chosen.pop("out", None), track or chosen.pop("track", None)
    chosen.pop("track", None)
    settings = settings_from(chosen)
    folder = out or Path(given or default_folder(settings))
    with tracking(track, folder):
        execute(list(methods or []), list(range(count)), folder, settings, fresh)


@app.command(name="run", epilog="Example: `fairlead run fedora --clients 12 --rounds 40 --set fedora.a=0.8`")
@with_settings
def run_command(
    method: Annotated[
        str, typer.Argument(help="A method, with stages after plus signs.", autocompletion=complete_method)
    ],
    *,
    seed: Annotated[str, typer.Option(help="Seed of split, weights and batches.", metavar="N")] = "0",
    out: Out = None,
    config: Config = None,
    fresh: Fresh = False,
    track: Track = None,
    **options: Any,
) -> None:
    """Train one method, and LOCAL beside it."""
    settings = settings_from(read_config(config) | {k: v for k, v in options.items() if v not in (None, [])})
    folder = out or default_folder(settings, f"{method}-")
    with tracking(track, folder):
        execute([method], [whole("seed", seed, least=0)], folder, settings, fresh)


@app.command(
    name="data", epilog="Example: `fairlead data patients.csv --label outcome --column hospital --drop visit,notes`"
)
@with_settings
def data_command(
    file: Annotated[str, typer.Argument(help="A table, a folder of tables, or the name of a data set.")],
    *,
    config: Config = None,
    **options: Any,
) -> None:
    """Show whose data it is, what is done with each column, and what looks wrong; nothing is trained."""
    chosen = read_config(config) | {k: v for k, v in options.items() if v not in (None, [])} | {"data": file}
    experiment = resolve(check(settings_from(chosen)))
    show_data(survey(experiment.scenario, experiment.scenario.load(experiment.data_dir)))


@app.command(name="resume", epilog="Example: `fairlead resume runs/demo --rounds 80`")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A comparison's or a run's folder.")],
    *,
    rounds: Annotated[
        str | None, typer.Option(help="Go on to so many rounds.", metavar="N", show_default="as before")
    ] = None,
    track: Track = None,
) -> None:
    """Go on with an interrupted comparison, or to more rounds; it ends with the bits it would have had."""
    count = None if rounds is None else whole("rounds", rounds)
    with tracking(track, folder):
        with going_on(folder), watch() as progress:
            result = resume(folder, rounds=count, progress=progress)
        show(result.folder, noted=True)


def default_folder(settings: dict[str, Any], before: str = "") -> Path:
    """The folder of a comparison that names none: its data's name, and a short text for what was asked of them.

    Options, the engine and the methods have no part in it, so that methods can be added to a comparison.
    """
    experiment = resolve(check(settings))
    asked = {k: v for k, v in experiment.to_json().items() if k not in ("engine", "options")}
    data = Path(experiment.scenario.data)
    if data.exists():
        asked["scenario"]["data"] = str(data.resolve())
    stem = stem_of(data) if experiment.name == "custom" else experiment.name
    return Path("runs") / f"{before}{stem}-{digest(asked)}"


def execute(methods: list[str], seeds: list[int], folder: Path, settings: dict[str, Any], fresh: bool) -> None:
    """Compare, with progress, then show the verdict."""
    with going_on(folder), watch() as progress:
        compare(methods, seeds=seeds, out=folder, fresh=fresh, progress=progress, **settings)
    show(folder, noted=True)
