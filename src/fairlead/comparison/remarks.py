"""What a reader must know of a method's runs beside their scores: attacks, faults, replies left out, privacy spent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from fairlead.attacks import Attack
from fairlead.catalogue import keywords_of
from fairlead.clients import InProcess, engine, only
from fairlead.core import InputError, Named, Plan, Sgd, Task
from fairlead.core.private import rate, steps
from fairlead.functional.privacy import epsilon, sample_epsilon
from fairlead.methods import WRAPPERS
from fairlead.rounds import draw, federate, held_out
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
        owners = federation.owners
        each = [", ".join(owners[k] for k in attack.hostile(len(owners), job.seed)) for job in jobs]
        said.append(f"attacked on purpose ({experiment.attack}); hostile: {'; '.join(dict.fromkeys(each))}")
    absent = sum(read_run_summary(job.folder)["left_out"] for job in jobs)
    if absent and not experiment.faults:
        said.append(f"{absent} replies of clients were left out; rounds.parquet of the run says whose and why")
    for stage, spent in (("dp", _privacy), ("dp-sgd", _sample_privacy)):
        if stage in jobs[0].name.split("+"):
            said.append(spent(jobs[0], searched))
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
        return f"differential privacy: {error}"
    more = MORE if searched else ""
    return f"differential privacy of a client: epsilon {spent:.3g} at delta {delta:g}, after {e.rounds} rounds{more}"


MOST_NAMED = 12  # clients whose epsilon is told one by one
MORE = "; the search for a step size and further trainings spend more"


def _sample_privacy(job: Job, searched: bool) -> str:
    """The privacy that a run spends of each client's single samples."""
    e, federation = job.experiment, job.federation
    noise = float((keywords_of(WRAPPERS["dp-sgd"]) | dict(e.options.get("dp-sgd", {})))["noise"])
    seen = held_out(e.unseen, federation.clients, job.seed)[0]
    cohorts = [seen[draw(e.participation, len(seen), job.seed, t)] for t in range(1, e.rounds + 1)]
    rounds = torch.cat(cohorts).bincount(minlength=federation.clients).tolist()
    sizes = federation.train.sizes.tolist()
    delta = min(1e-5, 0.1 / max(sizes))
    calls = _private_steps(job)

    @cache
    def spent(size: int, rounds: int) -> float:
        taken: dict[float, int] = {}
        for how in calls:
            at = rate(how, size)
            taken[at] = taken.get(at, 0) + rounds * steps(how, size)
        return sample_epsilon(noise, taken, delta)

    owners = federation.owners
    try:
        found = [(spent(sizes[k], rounds[k]), owners[k]) for k in seen.tolist() if sizes[k] and rounds[k]]
    except InputError as error:
        return f"differential privacy: {error}"
    shown = found if len(found) <= MOST_NAMED else [min(found), max(found)]
    each = ", ".join(f"{value:.3g} ({owner})" for value, owner in shown)
    some = "" if shown is found else f", the least and the most of {len(found)} clients"
    return (
        f"differential privacy of a sample: epsilon at delta {delta:g} after {e.rounds} rounds: {each}{some}"
        f"{MORE if searched else ''}"
    )


def _private_steps(job: Job) -> list[Sgd]:
    """What a client does with noise in a round, tried by the smallest of them."""
    method, found = job.entry.method, list[Sgd]()

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        made = method.client(state, message, task)
        found.extend(task.work.private)
        return made

    sizes = job.federation.train.sizes
    smallest = int(sizes.where(sizes > 0, sizes.max()).argmin())
    with InProcess(only(job.federation, smallest), job.experiment.training, engine("loop")) as clients:
        plan = Plan(rounds=1, select="last")
        next(federate(method._replace(client=client), clients, job.module, plan, average=job.entry.average))
    return found
