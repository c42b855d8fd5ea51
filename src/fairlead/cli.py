"""The command line: flags from `Settings`, then compare and report. The only place that prints."""

from __future__ import annotations

import inspect
import logging
import os
import shlex
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fairlead.catalogue import about
from fairlead.comparison.compare import compare, resume
from fairlead.comparison.recheck import Rechecked, recheck
from fairlead.core.errors import FairleadError, InputError, nearest, require
from fairlead.data import ABOUT, PRESETS, Survey, survey
from fairlead.methods import CONVOYS, DECISIONS, METHODS, WRAPPERS
from fairlead.prediction.export import export
from fairlead.prediction.predict import predict
from fairlead.report import data_notes, opening_lines, verdict_lines, verdict_table, write_page
from fairlead.runs.identity import digest
from fairlead.runs.summary import read_summary
from fairlead.servers import STAGES
from fairlead.settings import Settings, check, default_of, protocol_of, resolve

app = typer.Typer(
    help="Personalized federated learning in which no participant ends up worse off than alone.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
# Without a terminal the width is unknown; the verdict table wants 100 columns.
console = Console(width=None if sys.stdout.isatty() else 100)
LINE_SECONDS = 10.0  # between progress lines where there is no terminal
MOST_COLUMNS = 24  # lines of a table that `compare` shows; `data` shows all
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


def complete_method(begun: str) -> list[str]:
    """Names the shell offers for one that is begun: methods, and after a plus sign stages."""
    before, plus, _ = begun.rpartition("+")
    names = [f"{before}+{stage}" for stage in {**STAGES, **WRAPPERS, **DECISIONS}] if plus else [*METHODS, *CONVOYS]
    return [name for name in names if name.startswith(begun)]


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


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A comparison's folder.")]
Method = Annotated[
    str | None, typer.Option(help="Whose models.", show_default="the one recommended to the owner, else local")
]
Fold = Annotated[
    str | None,
    typer.Option(help="Use the model of this fold.", metavar="K", show_default="the model of all rows, else fold 0"),
]


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
    from fairlead.report.live import HOST, watching_server

    with watching_server(folder, whole("port", port, least=0)) as server:
        address = f"http://{HOST}:{server.server_address[1]}/"
        console.print(f"Open {address} in a browser; Ctrl-C ends this.", highlight=False, soft_wrap=True)
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


flower = typer.Typer(help="Studies on Flower (`pip install 'fairlead[flower]'`).", no_args_is_help=True)
app.add_typer(flower, name="flower")


StudyMethods = Annotated[
    list[str], typer.Argument(help="Methods; every site trains alone as well.", autocompletion=complete_method)
]
Sites = Annotated[str, typer.Option(help="Names of the sites, with commas between them.", metavar="NAME,NAME")]
Seeds = Annotated[str, typer.Option(help="How many trainings of each method.", metavar="N")]
StudyOut = Annotated[Path, typer.Option(help="The study's folder on the coordinator's machine.", metavar="DIR")]
SiteData = Annotated[Path, typer.Option("--data", help="A folder with SITE.csv or SITE/ for each site.", metavar="DIR")]


def study_from(methods: list[str], sites: str, seeds: str, options: dict[str, Any]) -> Any:
    """The study that a command's words describe."""
    from fairlead.machines.study import Study

    settings = settings_from({k: v for k, v in options.items() if v not in (None, [])})
    names = tuple(name.strip() for name in sites.split(",") if name.strip())
    return Study(names, tuple(methods), settings, whole("seeds", seeds, most=MOST_SEEDS))


def show_verdicts(told: dict[str, str], out: Path) -> None:
    """What each site is told; on a try-out all are on this machine."""
    for site, text in told.items():
        console.print(f"\n[{site}]", markup=False, highlight=False)
        console.print(text.rstrip(), markup=False, highlight=False)
    console.print(f"\nResults: {out / 'results.json'}", highlight=False, soft_wrap=True)


@flower.command(
    name="init", epilog="Example: `fairlead flower init study fedrep+confree --sites a,b,c --label outcome`"
)
@with_settings
def flower_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the app to write.")],
    methods: StudyMethods,
    *,
    sites: Sites,
    seeds: Seeds = "1",
    out: StudyOut = Path("fairlead-study"),
    **options: Any,
) -> None:
    """Write a study as an app for `flwr run`."""
    from fairlead.machines.flower.write import write_app

    study = study_from(methods, sites, seeds, options)
    write_app(folder, study, out.resolve())
    console.print(f"Written: {folder}. Try it here: fairlead flower run {folder} --data DIR", highlight=False)
    if study.effort is not None:
        told = "Step size and rounds are searched for, which takes some hundred exchanges of seconds each with Flower"
        console.print(f"{told}; --lr and --rounds give them.", highlight=False, soft_wrap=True)


@flower.command(name="run", epilog="Example: `fairlead flower run study --data sites`")
def flower_run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the app.")],
    *,
    data: SiteData,
    out: Annotated[Path, typer.Option(help="Folder for all that is written.", metavar="DIR")] = Path("runs/flower"),
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS and node authentication.", show_default="off")
    ] = False,
) -> None:
    """Try an app on this machine: a SuperLink and a SuperNode for every site, on loopback."""
    from fairlead.machines.flower.tryout import try_out

    told = try_out(folder, data, out, insecure=insecure, say=lambda line: console.print(line, highlight=False))
    show_verdicts(told, out)


@flower.command(name="certificates", epilog="Example: `fairlead flower certificates keys --host study.example.org`")
def flower_certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    *,
    host: Annotated[list[str], typer.Option(help="A name or address by which sites reach the SuperLink.")],
    days: Annotated[str, typer.Option(help="How long they are valid.", metavar="N")] = "365",
) -> None:
    """Make a certificate authority and a certificate for the SuperLink."""
    made = folder / "ca.key"
    require(
        not made.exists(), f"{made} exists, and sites may trust it; choose another folder, or remove it for a new one"
    )
    flower_keys().write_certificates(folder, host, whole("days", days))
    told = "ca.pem goes to every site; ca.key and server.key stay here"
    console.print(f"Written: {folder}. {told}.", highlight=False, soft_wrap=True)


@flower.command(name="key", epilog="Example: `fairlead flower key keys/hospital-a`")
def flower_key(path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write.")]) -> None:
    """Make a site's key pair for SuperNode authentication."""
    flower_keys().write_key(path)
    told = "stays at the site; the file that ends in .pub goes to the coordinator"
    console.print(f"Written: {path}, which {told}.", highlight=False, soft_wrap=True)


def flower_keys() -> Any:
    """What makes certificates and keys, if what it needs is installed."""
    try:
        from fairlead.machines.flower import keys
    except ImportError as error:
        raise InputError("Flower is not installed here; pip install 'fairlead[flower]'") from error
    return keys


nvflare = typer.Typer(
    help="Studies between machines on NVFlare (`pip install 'fairlead[nvflare]'`).", no_args_is_help=True
)
app.add_typer(nvflare, name="nvflare")


@nvflare.command(name="run", epilog="Example: `fairlead nvflare run fedora --sites a,b,c --data sites --label outcome`")
@with_settings
def nvflare_run(
    methods: StudyMethods,
    *,
    sites: Sites,
    seeds: Seeds = "1",
    out: Annotated[Path, typer.Option(help="Folder for all that is written.", metavar="DIR")] = Path("runs/nvflare"),
    **options: Any,
) -> None:
    """Try a study on this machine, in NVFlare's simulator; it opens ports on loopback alone."""
    from fairlead.machines.places import data_of

    folder = options.pop("data", None)
    require(bool(folder), "no data given; --data DIR is a folder with SITE.csv or SITE/ for each site")
    study = study_from(methods, sites, seeds, options)
    where = {site: data_of(Path(str(folder)), site) for site in study.sites}
    show_verdicts(flare().simulate(study, where, out), out)


@nvflare.command(name="job", epilog="Example: `fairlead nvflare job job fedora --sites a,b,c --label outcome`")
@with_settings
def nvflare_job(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    methods: StudyMethods,
    *,
    sites: Sites,
    seeds: Seeds = "1",
    out: StudyOut = Path("fairlead-study"),
    **options: Any,
) -> None:
    """Write a study as a job that is submitted to a provisioned federation of NVFlare."""
    flare().export(study_from(methods, sites, seeds, options), folder, out.resolve())
    console.print(f"Written: {folder}. Submit it from NVFlare's admin console.", highlight=False)


def flare() -> Any:
    """The adapter to NVFlare, if that is installed."""
    try:
        from fairlead.machines import flare as found
    except ImportError as error:
        raise InputError("NVFlare is not installed here; pip install 'fairlead[nvflare]'") from error
    return found


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


def default_folder(settings: dict[str, Any], before: str = "") -> Path:
    """The folder of a comparison that names none: its data's name, and a short text for what was asked of them.

    Options, the engine and the methods have no part in it, so that methods can be added to a comparison.
    """
    experiment = resolve(check(settings))
    asked = {k: v for k, v in experiment.to_json().items() if k not in ("engine", "options")}
    data = Path(experiment.scenario.data)
    if data.exists():
        asked["scenario"]["data"] = str(data.resolve())
    stem = data.stem if experiment.name == "custom" else experiment.name
    return Path("runs") / f"{before}{stem}-{digest(asked)}"


def execute(methods: list[str], seeds: list[int], folder: Path, settings: dict[str, Any], fresh: bool) -> None:
    """Compare, with progress, then show the verdict."""
    with going_on(folder), watch() as progress:
        compare(methods, seeds=seeds, out=folder, fresh=fresh, progress=progress, **settings)
    show(folder, noted=True)


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


def show(folder: Path, noted: bool = False) -> None:
    """The verdict on the terminal, and the page beside it; `noted` says that notes on a table were shown before."""
    summary = read_summary(folder)
    page = write_page(folder)
    known = data_notes(summary) if noted and summary["data"].get("columns") else []
    for line in opening_lines(summary):
        if line not in known:
            console.print(escape(line), highlight=False)
    console.print(verdict_table(summary))
    for line in verdict_lines(summary):
        console.print(escape(line), highlight=False)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)


def show_data(found: Survey) -> None:
    """Owners, columns and warnings on the terminal."""
    console.print(escape(about_data(found)), highlight=False)
    owners = Table("owner", "rows", "what they hold")
    for owner in found.owners:
        mix = [f"{name}: {count:,}" for name, count in owner.get("classes", {}).items() if count]
        if "events" in owner:
            events = f"{owner['events']:,} {'event' if owner['events'] == 1 else 'events'}"
            mix = [f"{events}, median time {four_digits(owner['median_time'])}"]
        mix = mix or [f"mean {four_digits(owner['mean'])}, deviation {four_digits(owner['sd'])}"]
        owners.add_row(escape(owner["name"]), f"{owner['rows']:,}", escape(", ".join(mix)))
    console.print(owners)
    if found.columns:
        show_columns(found)
    show_notes(found)


def show_briefly(found: Survey) -> None:
    """The data before training: what is done with each column, or counts of it if there are many, and what is odd."""
    console.print(escape(about_data(found)), highlight=False)
    if len(found.column_groups()) > MOST_COLUMNS:
        counts = Counter((c["role"], c["done"].partition(";")[0]) for c in found.columns)
        told = ", ".join(f"{n} {role} ({done})" for (role, done), n in counts.most_common())
        console.print(escape(f"Columns: {told}. `fairlead data` shows each."), highlight=False)
    elif found.columns:
        show_columns(found)
    show_notes(found)


def four_digits(x: float) -> str:
    """A number with four digits, or all before the decimal point.

    >>> four_digits(113427.4), four_digits(5.40912)
    ('113,427', '5.409')
    """
    return f"{x:,.0f}" if abs(x) >= 9999.5 else f"{x:.4g}"


def about_data(found: Survey) -> str:
    """The data in one line."""
    sizes = [owner["rows"] for owner in found.owners]
    who = "one owner"
    if len(sizes) > 1:
        rows = f"{min(sizes):,} to {max(sizes):,} rows" if min(sizes) < max(sizes) else f"{sizes[0]:,} rows each"
        who = f"{len(sizes)} owners with {rows}"
    return f"{found.name}: {found.rows:,} rows, {who}; to predict: {found.target}"


def show_columns(found: Survey) -> None:
    """What each column is, and what is done with it."""
    columns = Table("column", "is", "empty", "what is done", "why")
    for name, column in found.column_groups():
        columns.add_row(*map(escape, (name, column["role"], str(column["missing"]), column["done"], column["why"])))
    console.print(columns)


def show_notes(found: Survey) -> None:
    """What looks wrong, a line each."""
    for sentence in found.notes:
        console.print(escape(f"Note: {sentence}."), highlight=False)


def show_check(found: Rechecked) -> None:
    """Whether the scores are those of the page, owner by owner; a difference ends the command with code 1."""
    for one in found.scores:
        told = "equal" if one.equal else f"NOT EQUAL: {one.now} from the raw file"
        console.print(escape(f"{one.method}, {one.owner}: {one.metric} {one.before}: {told}"), highlight=False)
    equal = sum(one.equal for one in found.scores)
    console.print(f"{equal} of {len(found.scores)} scores equal those of summary.json in every bit.", highlight=False)
    console.print(f"Models used alone differ from the engine's outputs by {found.apart:.1e} at most.", highlight=False)
    if equal < len(found.scores):
        raise typer.Exit(1)


class watch:
    """Progress with time left: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: Any = None
        self._key: tuple[str, int] | None = None
        self._began = self._said = time.monotonic()
        self._first = 0

    def __enter__(self) -> watch:
        if console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if console.is_terminal:
            self._bar.stop()

    def data(self, found: Survey) -> None:
        """Show a table before training."""
        if found.columns:
            show_briefly(found)

    def __call__(self, method: str, seed: int, round: int, rounds: int) -> None:
        """Show how far a run is."""
        now = time.monotonic()
        if self._key != (method, seed):
            self._key, self._began, self._first = (method, seed), now, round
            if console.is_terminal:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(f"{method}, seed {seed}", total=rounds)
        if console.is_terminal:
            self._bar.update(self._task, completed=round)
        elif now - self._said > LINE_SECONDS:
            self._said = now
            left = (now - self._began) / max(round - self._first, 1) * (rounds - round)
            console.print(f"{method}, seed {seed}: round {round} of {rounds}, {left:.0f} s left", highlight=False)


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
