"""A comparison as it is asked for; an argument of the wrong kind is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from fairlead.catalogue import Entry, check_options, parse, parts_of, with_voices
from fairlead.core import InputError, Method, require
from fairlead.core.targets import Criterion
from fairlead.data import Source
from fairlead.methods import DECISIONS
from fairlead.metrics import METRICS, Metric
from fairlead.runs.material import Factory
from fairlead.settings import Experiment, shown

CONTROL = "local"


@dataclass(frozen=True)
class Asked:
    """A comparison as it is asked for, each part checked for its kind."""

    methods: Sequence[str] | Mapping[str, Method]
    experiment: Experiment
    seeds: list[int]
    factory: Factory | None
    source: Source | None
    metric: Metric | None = None  # of the user's own

    def own(self) -> list[str]:
        """What comes from the caller's program and cannot be had from a file."""
        named: dict[str, object] = {"methods": isinstance(self.methods, Mapping), "model": self.factory}
        named |= {"source": self.source, "loss": self.experiment.training.criterion, "metric": self.metric}
        return [name for name, given in named.items() if given]


def check_source(source: object) -> None:
    """Refuse samples of a kind that cannot be used."""
    if source is not None and not isinstance(source, Source):
        raise InputError(
            f"source must come from fairlead.data.from_tensors(x, y) or from_dataset(dataset), got {shown(source)}; "
            "for a table write a .csv or .parquet file and give data='FILE'"
        )


def check_progress(progress: object) -> None:
    """Refuse what cannot be told of progress."""
    fits = progress is None or callable(progress)
    require(fits, f"progress must be a function of method, seed, round and rounds, got {shown(progress)}")


def own_functions(settings: dict[str, Any]) -> tuple[Criterion | None, Metric | None]:
    """The caller's own loss and metric, taken out of the settings; a metric's name stays there."""
    loss = settings.pop("loss", None)
    if loss is not None and not callable(loss):
        raise InputError(
            f"loss must be a function of outputs (n, ...) and targets (n, ...) that gives one number per sample (n,), "
            f"got {shown(loss)}"
        )
    metric = settings.get("metric")
    if metric is None or isinstance(metric, str):
        return loss, None
    if not isinstance(metric, Metric):
        raise InputError(
            f"metric must be a name or a fairlead.metrics.Metric, got {shown(metric)}; write Metric('name', 'title', "
            "'classes', higher=True, score=function), where function(y, outputs) gives a number"
        )
    del settings["metric"]
    require(metric.name not in METRICS, f"metric '{metric.name}' has the name of another; give yours a new one")
    return loss, metric


def with_loss(experiment: Experiment, loss: Criterion | None) -> Experiment:
    """The experiment with the caller's own loss."""
    return replace(experiment, training=replace(experiment.training, criterion=loss))


MOST_SEEDS = 1000


def folder_of(out: object) -> Path | None:
    """A folder from what the caller gave."""
    require(out is None or isinstance(out, str | Path), f"a folder must be a path, got {shown(out)}")
    folder = None if out is None else Path(out)  # type: ignore[arg-type]
    require("\0" not in str(out), "a folder must be a path, got one with a zero byte in it")
    require(folder is None or not folder.is_file(), f"{folder} is a file, expected a folder or a new path")
    return folder


def seeds_of(seeds: object) -> list[int]:
    """The seeds as a list; a number stands for so many."""
    most = not isinstance(seeds, int) or seeds <= MOST_SEEDS
    require(most, f"seeds must be at most {MOST_SEEDS}, got {shown(seeds)}; for one seed in particular give a list")
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds) if isinstance(seeds, Iterable) else None
    fits = chosen is not None and all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in chosen)
    require(fits, f"seeds must be a number of seeds or a list of whole numbers, got {shown(seeds)}")
    require(bool(chosen), "seeds must be at least 1; with 3 the table shows a spread")
    return list(dict.fromkeys(chosen or []))


def factory_of(model: object) -> Factory | None:
    """The caller's own function that makes the model; None where it is a name or left out."""
    if model is None or isinstance(model, str):
        return None
    if isinstance(model, nn.Module) or not callable(model):
        raise InputError(
            f"model must be a name, or a function of sample shape and number of classes that makes a module, "
            f"got {shown(model)}; write model=lambda shape, classes: ..."
        )
    return model


def entries_of(methods: Sequence[str] | Mapping[str, Method], experiment: Experiment) -> dict[str, Entry]:
    """The methods by name, LOCAL first and always."""
    check_options(experiment.options)
    if isinstance(methods, Mapping):
        named = {name: Entry(_own(name, method), None) for name, method in methods.items()}
        used = {CONTROL}
    else:
        # What decides between methods stands beside them.
        names = with_voices(_names(methods), experiment.options)
        named = {name: parse(name, experiment.options) for name in names}
        used = {part for name in (CONTROL, *names) for part in parts_of(name)}
    require(len(named) >= 1, "no method given; try local fedavg fedrep+confree")
    entries = {CONTROL: parse(CONTROL, experiment.options)} | named
    for owner, values in experiment.options.items():
        require(
            owner in used,
            f"option {owner}.{next(iter(values), '')} has no effect: {owner} is not among {', '.join(entries)}",
        )
    return entries


def _names(methods: object) -> list[str]:
    """The names of methods, as a caller gave them."""
    fits = isinstance(methods, Iterable) and not isinstance(methods, str | Method)
    names: list[Any] = list(methods) if fits else [methods]  # type: ignore[call-overload]
    odd = next((n for n in names if not isinstance(n, str)), None)
    kind = "a Method" if isinstance(odd, Method) else shown(odd)
    require(odd is None, f"methods must be names, got {kind}; give your own as {{'mine': Method(...)}}")
    require(fits, f"methods must be a list of names, got {shown(methods)}; write [{methods!r}]")
    return names


def _own(name: object, method: object) -> Method:
    """A method of the user's own under a name that can be a folder's."""
    if not isinstance(method, Method):
        hint = f"; call it: {{{name!r}: {getattr(method, '__name__', 'f')}()}}" if callable(method) else ""
        raise InputError(f"methods[{name!r}] must be a fairlead.Method, got {shown(method)}{hint}")
    fits = isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\")
    require(fits, f"a method's name must be text without slashes, got {name!r}")
    last = str(name).rpartition("+")[2]
    require(
        "+" not in str(name) or last not in DECISIONS,
        f"'{name}': +{last} is for methods of the catalogue, by their names; give yours another name",
    )
    require(name != CONTROL, f"'{CONTROL}' is the control, which is always trained; give your method another name")
    return method
