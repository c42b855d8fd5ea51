"""What a reader must know of a method's runs beside their scores: attacks, faults, replies left out, privacy spent."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.attacks import Attack
from fairlead.catalogue import keywords_of
from fairlead.core import InputError
from fairlead.functional.privacy import epsilon
from fairlead.rounds import draw, held_out
from fairlead.runs.run import Job
from fairlead.runs.summary import read_run_summary
from fairlead.servers import STAGES


def remarks(jobs: Sequence[Job], searched: bool = False) -> list[str]:
    """Sentences on the runs of one method; `searched`: other runs were trained before, to choose a step size."""
    experiment, said = jobs[0].experiment, []
    if experiment.faults:
        said.append(f"clients failed on purpose: {experiment.faults}")
    if experiment.attack:
        federation, attack = jobs[0].federation, Attack.of(experiment.attack)
        owners = federation.names or tuple(map(str, range(federation.clients)))
        each = [", ".join(owners[k] for k in attack.hostile(len(owners), job.seed)) for job in jobs]
        said.append(f"attacked on purpose ({experiment.attack}); hostile: {'; '.join(dict.fromkeys(each))}")
    absent = sum(read_run_summary(job.folder)["left_out"] for job in jobs)
    if absent and not experiment.faults:
        said.append(f"{absent} replies of clients were left out; rounds.parquet of the run says whose and why")
    if "dp" in jobs[0].name.split("+"):
        said.append(_privacy(jobs[0], searched))
    return said


def _privacy(job: Job, searched: bool) -> str:
    """The privacy that a run spends."""
    e = job.experiment
    options = keywords_of(STAGES["dp"]) | dict(e.options.get("dp", {}))
    seen = len(held_out(e.unseen, job.federation.clients, job.seed)[0])
    cohort, delta = len(draw(e.participation, seen, job.seed, 1)), min(1e-5, 0.1 / seen)
    try:
        spent = epsilon(float(options["noise"]), e.rounds, seen, cohort, delta)
    except InputError as error:
        return str(error)
    more = "; the search for a step size and further trainings spend more" if searched else ""
    return f"differential privacy of a client: epsilon {spent:.3g} at delta {delta:g}, after {e.rounds} rounds{more}"
