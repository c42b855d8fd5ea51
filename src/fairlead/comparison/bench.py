"""What all runs of a comparison on a user's own data have in common, and the rows of each fold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairlead.catalogue import Entry
from fairlead.clients import Engine
from fairlead.comparison.decisions import cut
from fairlead.core import Federation
from fairlead.effort import Choice, Effort
from fairlead.methods.voices import LeftOut
from fairlead.runs.identity import fingerprint
from fairlead.runs.material import Factory, Material
from fairlead.runs.run import Job, Progress, Run
from fairlead.settings import Experiment

TWIN = 1_000_003  # what is added to a seed for a twin
FOLD = 10_007  # what is added to a seed for each further fold


class Fold(NamedTuple):
    """One division into rows to learn from and rows to test on."""

    number: int
    chooses: Federation  # train, validation and test rows
    refit: Federation  # the validation rows have joined the train rows


@dataclass(frozen=True)
class Bench:
    """What all runs of an assessment have in common."""

    folder: Path
    entries: Mapping[str, Entry]
    experiment: Experiment
    engine: Engine
    factory: Factory | None  # of the user's own model
    effort: Effort
    seed: int
    tell: Callable[[str, int], Progress | None]  # what to report a run's progress to: method, its rounds at most
    _materials: dict[int, Material] = field(default_factory=dict, repr=False)  # by the id of their federation
    _methods: dict[str, str] = field(default_factory=dict, repr=False)  # fingerprints by name
    _parts: dict[tuple[int, bool, int, bool], list[Federation]] = field(default_factory=dict, repr=False)
    # By the folder of a method's trials, and what the step size is below.
    _choices: dict[tuple[Path, float], Choice] = field(default_factory=dict, repr=False)

    def material(self, federation: Federation) -> Material:
        """What all runs on these rows share; a federation is looked at once, however many runs it is for."""
        return self._materials.setdefault(id(federation), Material(self.experiment, federation, self.factory))

    def job(self, place: str, name: str, federation: Federation, seed: int) -> Job:
        """A run of the method, its step size and rounds still open."""
        asked = self.experiment.alone() if name == "local" else self.experiment
        # How a run was found is no part of it: with more effort, or in another comparison, it is the same run.
        e = dataclasses.replace(asked, effort=None, folds=None, metric=None)
        folder = self.folder / "runs" / place / name
        job = self.material(federation).job(Run(folder, name, self.entries[name], e, seed), self.engine)
        # Taken once for all of the comparison's runs: hundreds of them would take it hundreds of times.
        if name not in self._methods:
            self._methods[name] = fingerprint(self.entries[name])
        return dataclasses.replace(job, made=job.made | {"method": self._methods[name]})

    def seed_in(self, fold: Fold, repeat: int = 0) -> int:
        """The seed of trainings in a fold.

        Folds with the same first weights would be lucky or unlucky together, and their differences would not show it.
        Who is new, hostile or failing is drawn from the seed too, and stays the same in all folds.
        """
        e = self.experiment
        drawn = bool(e.unseen or e.attack or e.faults)
        return self.seed + TWIN * repeat + (0 if drawn else FOLD * fold.number)

    def parts(self, fold: Fold, how: LeftOut, validated: bool) -> list[Federation]:
        """The fold's rows without each of their parts, cut once for all methods; see `decisions.cut`."""
        key = (fold.number, validated, how.of, how.halved)
        if key not in self._parts:
            train, validation = (int(split.sizes.sum()) for split in (fold.chooses.train, fold.chooses.validation))
            share = validation / max(train + validation, 1) if validated else 0.0
            self._parts[key] = cut(fold.refit, how, self.seed, share)
        return self._parts[key]


def inside(bench: Bench, folder: Path) -> str:
    """A folder inside the comparison's, as its summary names it."""
    return folder.relative_to(bench.folder).as_posix()
