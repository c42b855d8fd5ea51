"""Commands for studies between machines: flower and nvflare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.command import app, console
from fairlead.cli.options import MOST_SEEDS, complete_method, settings_from, whole, with_settings
from fairlead.core.errors import InputError, require

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
