"""FEDORA (Wu et al., KDD 2023): what its slides say of costs, from the meter and the clock."""

from __future__ import annotations

import time
from typing import Any

import torch

from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine
from fairlead.core import Cohort, Federation, Method, Named, Plan, Server, Training
from fairlead.data import Scenario, from_tensors
from fairlead.functional import propagate
from fairlead.methods.fedora import nearest_only
from fairlead.models import build
from fairlead.reproduce.fedora import ROUNDS
from fairlead.reproduce.study import Budget, Claim, Column, Computed, Entry, Key, Result, Study
from fairlead.rounds import federate

# Slide "Communication Costs": parameters per client over all rounds, on Rotated MNIST.
PARAMETERS = {"FedAvg": 118_282_000, "FEDORA": 118_282_784}


def communication(budget: Budget) -> Study:
    """Parameters per client over 500 rounds, from the meter."""
    column = Column("parameters", "parameters per client", "Rotated MNIST", decimals=0)
    methods = {"FedAvg": ("fedavg", None), "FEDORA": ("fedora", "paper"), "FEDORA (released)": ("fedora", "released")}
    entries: dict[Key, Entry] = {}
    for row, (method, variant) in methods.items():
        cell = Computed("communication", count_parameters, {"method": method, "variant": variant})
        entries[row, "parameters"] = Entry(cell, "parameters", PARAMETERS.get(row))
    notes = (
        "Two rounds are metered (36 clients, MLP 784-128-128-10) and the second one counted 499 times: every later "
        "round sends the same shapes. Blank images stand for MNIST, since the meter sees sizes alone.",
        "The released code appends ten label entries to the vector that FEDORA sends once.",
    )
    pairs = ((("FEDORA", "parameters"), ("FedAvg", "parameters")),)
    small = Claim("FEDORA sends more than FedAvg by one vector per client", pairs)
    return Study(
        "fedora-communication",
        "Communication on Rotated MNIST",
        "slide 'Communication Costs'",
        (column,),
        entries,
        (small,),
        notes,
    )


def blank_images(clients: int, samples: tuple[int, int, int]) -> Federation:
    """Images of MNIST's shape and random labels: enough where only sizes and times count."""
    n = clients * sum(samples)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 1, 28, 28, generator=generator)
    source = from_tensors(x, torch.arange(n) % 10, name="blank images")
    return Scenario(clients=clients, samples=samples).build(0, source=source)


def count_parameters(method: str, variant: str | None, seed: int) -> Result:
    """Numbers that a client sends and receives over all rounds, from two metered ones."""
    entry = parse(method, {method: {"variant": variant}} if variant else {})
    federation = blank_images(36, (10, 2, 2))
    module = build("mlp", (1, 28, 28), 10, seed)
    happened = federate(
        entry.method,
        InProcess(federation, Training(batch_size=10), engine("threads")),
        module,
        Plan(rounds=2, evaluate_every=2, seed=seed),
    )
    first, second = ((r.bytes_up + r.bytes_down) // 4 for r, _ in happened)
    total = first + (ROUNDS - 1) * second
    return {"values": {"parameters": total // federation.clients}, "remainder": total % federation.clients}


def efficiency(budget: Budget) -> Study:
    """Server time of the methods that relate clients."""
    size = {"quick": {"clients": 12, "rounds": 3, "samples": (32, 16, 8)}}.get(
        budget, {"clients": 36, "rounds": 10, "samples": (128, 64, 32)}
    )
    rows: dict[str, dict[str, Any]] = {
        "FedAvg": {"method": "fedavg"},
        "FedFOMO": {"method": "fedfomo"},
        "FedU": {"method": "fedu"},
        "FedAMP": {"method": "fedamp"},
        "FEDORA": {"method": "fedora", "variant": "released"},
    }
    columns = (
        Column("server", "server, ms a round", "Rotated MNIST sizes", 1000.0, 2),
        Column("round", "whole round, ms", "Rotated MNIST sizes", 1000.0, 1),
    )
    entries = {
        (row, column.key): Entry(Computed("efficiency", time_server, {**which, **size}), column.key)
        for row, which in rows.items()
        for column in columns
    }
    relation = ("FedFOMO", "FedU", "FedAMP")
    claims = tuple(
        Claim(
            f"FEDORA's {what} is shorter than each of FedFOMO's, FedU's and FedAMP's",
            tuple(((row, key), ("FEDORA", key)) for row in relation),
        )
        for what, key in (("server time", "server"), ("whole round", "round"))
    )
    notes = (
        "Times of this machine, with whatever else ran on it; the slides draw theirs without printing numbers.",
        "Sending is not timed: FedFOMO's server chooses five models for each client, which mixes them itself; the "
        "others' servers mix, and send one.",
    )
    return Study(
        "fedora-efficiency",
        "Server time of methods that relate clients",
        "slide 'Computational Efficiency'",
        columns,
        entries,
        claims,
        notes,
        {"quick": 1, "standard": 3, "full": 3}[budget],
    )


def time_server(
    method: str, clients: int, rounds: int, samples: tuple[int, int, int], seed: int, variant: str | None = None
) -> Result:
    """Median seconds of the server's update and of a round; the first round, which warms up, is left out."""
    seconds: list[float] = []
    timed = _timed(parse(method, {method: {"variant": variant}} if variant else {}).method, seconds)
    federation = blank_images(clients, (samples[0], samples[1], samples[2]))
    training = Training(lr=0.005, epochs=5, batch_size=64, momentum=0.9)
    happened = federate(
        timed,
        InProcess(federation, training, engine("threads+vectorised")),
        build("mlp", (1, 28, 28), 10, seed),
        Plan(rounds=rounds + 1, evaluate_every=rounds + 1, seed=seed),
    )
    each = [r.seconds for r, _ in happened]
    return {"values": {"server": _median(seconds[1:]), "round": _median(each[1:])}}


def _median(seconds: list[float]) -> float:
    return float(torch.tensor(seconds).median())


def _timed(method: Method, seconds: list[float]) -> Method:
    """The method with a stop-watch around its server's updates."""

    def server(average: Server) -> Server:
        inner = method.server(average)

        def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
            began = time.perf_counter()
            after = inner.update(state, rows, cohort)
            seconds.append(time.perf_counter() - began)
            return after

        return inner._replace(update=update)

    return method._replace(server=server)


STEPS = (1, 10, 30, 100)
SPREADS = (0.5, 0.8, 0.9)


def iteration(budget: Budget) -> Study:
    """The server's iteration beside its closed form."""
    columns = tuple(Column(f"{k}", f"{k} steps", "largest difference to the closed form", decimals=9) for k in STEPS)
    entries: dict[Key, Entry] = {}
    for a in SPREADS:
        cell = Computed("iteration", iterate, {"a": a})
        entries |= {(f"a = {a:g}", f"{k}"): Entry(cell, f"{k}") for k in STEPS}
    claims = (
        *(
            Claim(
                f"a = {a:g}: after k steps it is aᵏ times the first difference at most, and a few rounding errors",
                tuple((a**k * LARGEST + ROUNDING, (f"a = {a:g}", f"{k}")) for k in STEPS),
            )
            for a in SPREADS
        ),
        Claim("after 100 steps it is the closed form, to 1e-4", tuple((1e-4, (f"a = {a:g}", "100")) for a in SPREADS)),
    )
    notes = (
        "36 clients with random models of 1,000 numbers between 0 and 1, joined by the released graph of random "
        "similarities: exp(10 cos) to the two nearest. Float64.",
    )
    title = "FEDORA's fixed-point iteration and its closed form"
    return Study("fedora-iteration", title, "slide 'Adaptive Parameter Propagation'", columns, entries, claims, notes)


LARGEST = 1.0  # no two models of numbers between 0 and 1 are further apart in any of them
ROUNDING = 1e-12


def iterate(a: float, seed: int) -> Result:
    """The largest difference between so many steps of the iteration and the closed form."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.rand(36, 1000, generator=generator, dtype=torch.float64)
    cosines = torch.rand(36, 36, generator=generator, dtype=torch.float64)
    graph = nearest_only((10 * (cosines + cosines.T) / 2).exp(), torch.ones(36, 1, dtype=torch.bool), 2)
    exact = propagate(theta, graph, a)
    steps = {f"{k}": propagate(theta, graph, a, iterations=k) for k in STEPS}
    return {"values": {k: float((found - exact).abs().max()) for k, found in steps.items()}}


STUDIES = {
    "fedora-communication": communication,
    "fedora-efficiency": efficiency,
    "fedora-iteration": iteration,
}
