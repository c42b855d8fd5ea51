"""ConFREE: Conflict-free Client Update Aggregation (Zheng et al., AAAI 2025): its three tables and two figures."""

from __future__ import annotations

import statistics
from itertools import pairwise, product
from typing import Any

import torch

from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine
from fairlead.core import Plan, Training
from fairlead.data import Scenario, from_tensors
from fairlead.models import build
from fairlead.reproduce.study import (
    Budget,
    Cell,
    Claim,
    Column,
    Computed,
    Entry,
    Gain,
    Key,
    Picture,
    Result,
    Study,
    above,
    numbers,
)
from fairlead.rounds import federate

HOSTS = {
    "Per-FedAvg": "per-fedavg",
    "LG-FedAvg": "lg-fedavg",
    "APFL": "apfl",
    "FedROD": "fedrod",
    "FedRep": "fedrep",
    "FedCP": "fedcp",
    "FedALA": "fedala",
    "FedPAC": "fedpac",
}
SIX = ["APFL", "FedROD", "FedRep", "FedCP", "FedALA", "FedPAC"]

# Table 1: Flowers-102 and CIFAR-100 pathological; CIFAR-10, CIFAR-100, Tiny-ImageNet and Flowers-102 at Dirichlet(0.1);
# then MB and seconds of an iteration on CIFAR-100. Each host is followed by the host with ConFREE.
TABLE1 = numbers("""
67.04 61.77 87.76 41.49 25.62 55.33 151.72 66.86
67.64 62.45 88.23 41.76 27.42 55.96 148.19 67.38
63.89 63.32 89.23 47.63 33.75 51.48 148.39 46.71
64.09 63.48 89.52 47.88 33.96 52.72 144.86 46.94
68.87 63.53 89.45 54.18 41.16 63.65 292.85 56.27
70.79 63.71 89.64 55.44 41.97 65.11 289.32 56.66
69.21 63.79 89.93 51.02 39.74 61.02 159.55 54.30
69.56 64.02 90.80 52.57 40.98 61.52 156.02 54.81
68.62 67.41 90.40 51.33 41.72 57.52 151.52 56.90
68.92 67.92 90.61 51.41 42.31 57.81 147.99 56.97
71.38 70.47 91.30 55.33 44.87 60.73 539.17 99.49
71.73 70.98 91.72 55.68 45.62 61.51 535.64 99.59
68.82 67.33 90.67 57.24 44.56 62.92 683.23 55.91
70.64 67.52 91.32 57.70 45.01 63.94 679.72 56.39
74.48 72.60 90.86 61.94 46.63 68.56 160.01 110.67
74.68 73.01 91.42 62.85 46.83 69.10 156.48 147.20
""")

# Table 2: CIFAR-100 then Flowers-102; 20 clients at 30% and 60%, then 60 clients at 30% and 60%.
TABLE2 = numbers("""
52.85 53.64 43.56 44.02 62.92 63.94 45.88 50.31
53.49 54.11 44.90 44.46 64.14 64.48 49.30 52.53
53.91 53.06 52.49 50.59 61.41 61.46 56.87 55.28
54.18 53.29 53.23 52.29 62.41 62.69 57.74 56.34
50.95 51.03 44.36 44.04 58.44 57.42 49.40 48.72
51.11 51.39 44.66 44.37 58.93 58.10 49.93 49.16
56.25 56.10 50.20 48.95 62.19 61.31 53.30 51.81
56.38 56.20 50.29 49.02 63.03 61.80 53.69 52.29
56.62 56.97 58.01 58.15 62.19 62.48 56.54 58.71
56.98 57.45 58.40 58.60 63.50 63.70 59.33 60.88
61.45 61.61 61.93 62.84 67.49 68.08 58.95 59.04
62.09 62.23 62.63 63.34 67.83 68.86 60.20 60.78
""")

# Table 3: Flowers-102, 60 clients; six hosts at 30% then at 60%; without ConFREE, then c = 0.1 to 0.9.
TABLE3 = numbers("""
45.88 47.13 48.63 48.87 49.30 48.14 47.13 46.16 45.15 44.38
56.87 57.12 57.31 57.31 57.26 57.69 57.74 57.36 57.26 56.78
49.40 49.93 49.59 49.59 49.73 49.93 49.69 49.59 49.78 49.20
53.30 53.35 53.50 53.64 53.69 53.64 53.59 53.35 53.35 53.55
56.54 57.79 58.51 58.61 58.85 59.04 59.33 59.09 59.00 58.90
58.95 59.43 60.20 59.91 60.11 59.77 59.82 59.86 59.53 58.19
50.31 51.62 52.39 52.53 51.81 50.27 48.67 46.64 45.30 44.72
55.28 55.57 55.76 56.01 56.05 55.91 56.05 55.48 56.34 55.19
48.72 49.16 48.82 49.11 49.06 49.11 48.67 48.91 48.63 48.67
51.81 52.05 51.95 52.05 51.95 52.19 52.29 52.00 51.76 51.91
58.71 58.66 59.77 59.29 59.72 59.82 60.35 60.64 60.88 60.15
59.04 59.58 59.91 60.78 60.35 59.91 60.20 59.72 59.48 59.36
""")

C = 0.5  # where the authors start their search
GRID = tuple(round(0.1 * i, 1) for i in range(1, 10))
RATES = (0.3, 0.6)
USUAL = {"clients": 20, "participation": 1.0, "beta": 0.1}  # of the scenarios with a Dirichlet split
# Train images a client and timed rounds of the costs; CIFAR-100 has 2,250 for each of twenty.
SIZES: dict[Budget, dict[str, int]] = {
    "quick": {"samples": 5, "rounds": 1},
    "standard": {"samples": 100, "rounds": 3},
    "full": {"samples": 2250, "rounds": 3},
}
SEEDS: dict[Budget, int] = {"quick": 1, "standard": 1, "full": 3}
ATTRIBUTION = (
    "Beside ConFREE stand three servers without any treatment of conflicts: the uniform mean, since ConFREE counts "
    "every client alike where hosts weigh by samples; that mean made as long as ConFREE's change; and that mean times "
    "(1+c)/(1+c²), to which the released code comes down at usual update sizes. A gain that they share is not due to "
    "conflicts."
)
SETTING = (
    f"Where c is not named it is {C:g} for every host; the paper searches for the best. Standard budget: LeNet, a "
    "quarter of the network's work, in place of 500 rounds of an epoch at 0.005: 25 rounds of 10 batches at 0.02 with "
    "200 train and 100 test samples per client; on Flowers-102 40 rounds of 10 batches at 0.05 with all its samples. "
    "Flowers-102 and Tiny-ImageNet are brought to 32x32 pixels. These are models in the middle of their training, for "
    "which a longer step is worth more than at the end. FedRep and FedPAC train the head for 10 batches and then the "
    "body for 10."
)


def variants(c: float = C) -> dict[str, tuple[str, dict[str, Any]]]:
    """What may stand in place of the host's average: row suffix -> stage suffix and options."""
    factor = (1 + c) / (1 + c * c)
    return {
        "": ("", {}),
        " + ConFREE": ("+confree", {"confree": {"c": c}}),
        " + ConFREE, released": ("+confree", {"confree": {"c": c, "variant": "released"}}),
        " + uniform mean": ("+uniform", {}),
        " + uniform mean as long": ("+confree", {"confree": {"c": c, "variant": "length"}}),
        " + uniform mean × (1+c)/(1+c²)": ("+scaled", {"scaled": {"factor": factor}}),
    }


def settings(scenario: str, budget: Budget, **changes: Any) -> dict[str, Any]:
    """A column's settings: the published protocol at full budget, fewer rounds and batches below.

    A change to what the scenario has anyhow is none, so that tables and figures share their runs.
    """
    changes = {k: v for k, v in changes.items() if v != USUAL.get(k)}
    plan: dict[str, Any] = {"scenario": scenario, "evaluate_every": 10, "rounds": 500} | changes
    if budget == "standard":
        flowers = scenario.startswith("flowers102-")
        plan |= {"model": "lenet", "steps": 10}
        plan |= (
            {"rounds": 40, "lr": 0.05, "evaluate_every": 20, "image_size": 32}
            if flowers
            else {"rounds": 25, "lr": 0.02, "evaluate_every": 25, "samples": (200, 0, 100)}
        )
        plan |= {"image_size": 32} if scenario.startswith("tiny-imagenet-") else {}
    if budget == "quick":
        # A small network: with the real one, writing a checkpoint takes longer than training.
        few = 4 if plan.get("clients", 20) == 20 else 6
        plan |= {"model": "mlp", "clients": few, "samples": (8, 0, 8), "rounds": 1, "steps": 1, "batch_size": 4}
    return plan


def cell(host: str, stage: str, options: dict[str, Any], plan: dict[str, Any]) -> Cell:
    """A host with a stage in place of its average."""
    return Cell(HOSTS[host] + stage, {**plan, **({"set": options} if options else {})})


def gains(hosts: list[str], columns: list[str]) -> tuple[Claim, ...]:
    """The claims that matter: ConFREE helps every host, and by more than a longer step does."""
    *_, long, scaled = variants()
    return (
        *(above(f"ConFREE improves {host}", f"{host} + ConFREE", [host], columns) for host in hosts),
        *(
            Claim(
                f"ConFREE gains more than the uniform mean {what} (not a claim of the paper)",
                tuple(((f"{host} + ConFREE", c), (f"{host}{row}", c)) for host in hosts for c in columns),
            )
            for what, row in (("made as long", long), ("times (1+c)/(1+c²)", scaled))
        ),
    )


GLOBAL_MINDED = ["APFL", "FedPAC", "FedALA"]  # "based on selectively aggregating more global knowledge"
LOCAL_MINDED = ["FedROD", "FedRep", "FedCP"]  # "designing specific layers to retain more local information"


def gain(host: str, column: str) -> Gain:
    """How much ConFREE adds to a host."""
    return Gain(f"{host} + ConFREE", host, column)


def more_classes(fewer: str, more: list[str]) -> Claim:
    """That the gain is larger on data sets with more classes."""
    pairs = [(gain(host, column), gain(host, fewer)) for host in HOSTS for column in more]
    return Claim("ConFREE gains more on data sets with more classes than on CIFAR-10", tuple(pairs))


def by_participation(group: str, columns: list[str]) -> tuple[Claim, ...]:
    """What the paper says of rising participation; `columns` go up in it."""
    steps = list(pairwise(columns))
    some, others = " and ".join([", ".join(GLOBAL_MINDED[:2]), GLOBAL_MINDED[2]]), ", ".join(LOCAL_MINDED)
    return (
        Claim(
            f"{group}: {some} get better as more clients take part",
            tuple(((host, b), (host, a)) for host in GLOBAL_MINDED for a, b in steps),
        ),
        Claim(
            f"{group}: their gain from ConFREE falls",
            tuple((gain(host, a), gain(host, b)) for host in GLOBAL_MINDED for a, b in steps),
        ),
        Claim(
            f"{group}: {others} stay as good, within a point, or get worse as more clients take part",
            tuple(((host, a), (host, b)) for host in LOCAL_MINDED for a, b in steps),
            slack=1.0,
        ),
        Claim(
            f"{group}: their gain from ConFREE rises",
            tuple((gain(host, b), gain(host, a)) for host in LOCAL_MINDED for a, b in steps),
        ),
    )


def table1(budget: Budget) -> Study:
    """Eight hosts with and without ConFREE."""
    places = {
        "Flowers-102, pathological": "flowers102-pathological",
        "CIFAR-100, pathological": "cifar100-pathological",
        "CIFAR-10, Dirichlet(0.1)": "cifar10-dirichlet",
        "CIFAR-100, Dirichlet(0.1)": "cifar100-dirichlet",
        "Tiny-ImageNet, Dirichlet(0.1)": "tiny-imagenet-dirichlet",
        "Flowers-102, Dirichlet(0.1)": "flowers102-dirichlet",
    }
    plans = {place: settings(scenario, budget) for place, scenario in places.items()}
    columns = [Column(place, "accuracy, %", place, 100.0, 2) for place in places]
    columns += [Column("MB", "MB", "CIFAR-100, an iteration", 1.0, 2)]
    columns += [Column("seconds", "seconds", "CIFAR-100, an iteration", 1.0, 2)]
    entries: dict[Key, Entry] = {}
    for i, host in enumerate(HOSTS):
        for suffix, (stage, options) in variants().items():
            printed = TABLE1[2 * i + ("ConFREE" in suffix)] if "mean" not in suffix else [None] * 8
            for j, place in enumerate(places):
                one = cell(host, stage, options, plans[place])
                entries[host + suffix, place] = Entry(one, "accuracy", printed[j])
            if suffix in ("", " + ConFREE"):
                costs = Computed("confree-costs", iteration, {"method": HOSTS[host] + stage, **SIZES[budget]})
                entries[host + suffix, "MB"] = Entry(costs, "megabytes", printed[6])
                entries[host + suffix, "seconds"] = Entry(costs, "seconds", printed[7])
    notes = (
        ATTRIBUTION,
        SETTING,
        "An iteration is one round of 20 clients with the paper's network and random images of CIFAR-100's size, as "
        "neither the meter nor the clock asks what is on them. MB: both directions; ConFREE sends nothing "
        f"more. Seconds: the median round on this machine, the first left out, an epoch of {SIZES[budget]['samples']} "
        "images a client.",
    )
    many = ["Tiny-ImageNet, Dirichlet(0.1)", "Flowers-102, Dirichlet(0.1)"]
    claims = (*gains(list(HOSTS), list(places)), more_classes("CIFAR-10, Dirichlet(0.1)", many))
    plain, paper, released, _, long, scaled = variants()
    rows = ((paper, plain), (paper, long), (paper, scaled), (released, plain))
    pairs = [(f"{host}{a}", f"{host}{b}") for host in HOSTS for a, b in rows]
    return Study(
        "confree-table1",
        "ConFREE with eight hosts",
        "Table 1",
        tuple(columns),
        entries,
        claims,
        notes,
        {"quick": 1, "standard": 3, "full": 3}[budget],
        gains=tuple(pairs),
    )


def iteration(method: str, samples: int, rounds: int, seed: int) -> Result:
    """Bytes and seconds of a round with the network and sizes of CIFAR-100; the first, which warms up, is not timed."""
    n, random = 20 * (samples + 2), torch.Generator().manual_seed(seed)
    images, labels = torch.randn(n, 3, 32, 32, generator=random), torch.arange(n) % 100
    source = from_tensors(images, labels, classes=[str(k) for k in range(100)])
    federation = Scenario(clients=20, samples=(samples, 1, 1)).build(seed, source=source)
    entry = parse(method)
    happened = federate(
        entry.method,
        InProcess(federation, Training(lr=0.005, batch_size=10), engine("threads")),
        build("cnn", (3, 32, 32), 100, seed),
        Plan(rounds=rounds + 1, evaluate_every=rounds + 1, seed=seed),
        average=entry.average,
    )
    timed = [done for done, _ in happened][1:]
    megabytes = (timed[-1].bytes_up + timed[-1].bytes_down) / 1e6
    return {"values": {"megabytes": megabytes, "seconds": statistics.median(done.seconds for done in timed)}}


def table2(budget: Budget) -> Study:
    """Numbers of clients and participation."""
    columns, plans = [], {}
    scenarios = {"CIFAR-100": "cifar100-dirichlet", "Flowers-102": "flowers102-dirichlet"}
    for group, clients, rate in product(scenarios, (20, 60), RATES):
        key = f"{group}, C = {clients}, P = {rate:.0%}"
        columns.append(Column(key, f"C = {clients}, P = {rate:.0%}", group, 100.0, 2))
        plans[key] = settings(scenarios[group], budget, clients=clients, participation=rate)
    entries = {}
    for (i, host), (suffix, (stage, options)) in product(enumerate(SIX), variants().items()):
        printed = [None] * 8 if "mean" in suffix else TABLE2[2 * i + ("ConFREE" in suffix)]
        for (key, plan), value in zip(plans.items(), printed, strict=True):
            entries[host + suffix, key] = Entry(cell(host, stage, options, plan), "accuracy", value)
    title = "ConFREE by number of clients and participation"
    claims, notes = (*gains(SIX, list(plans)), *_largest_gains(list(plans))), (ATTRIBUTION, SETTING)
    return Study("confree-table2", title, "Table 2", tuple(columns), entries, claims, notes, SEEDS[budget])


def _largest_gains(columns: list[str]) -> tuple[Claim, ...]:
    """What the paper says of Table 2: who gains most, and where."""
    hardest = "Flowers-102, C = 60, P = 30%"
    others = [column for column in columns if column != hardest]
    flowers = [column for column in columns if column.startswith("Flowers-102, C = 60")]
    return (
        Claim(
            f"the two largest gains, of APFL and FedALA, are at {hardest}",
            tuple((gain(top, hardest), gain(*place)) for top in ("APFL", "FedALA") for place in product(SIX, others)),
        ),
        Claim(
            "with 60 clients on Flowers-102, APFL, FedPAC and FedALA gain more than FedROD, FedRep and FedCP",
            tuple((gain(a, c), gain(b, c)) for a, b, c in product(GLOBAL_MINDED, LOCAL_MINDED, flowers)),
        ),
    )


def table3(budget: Budget) -> Study:
    """The hyperparameter c."""
    columns, entries, claims = [], {}, []
    grid = GRID[::2] if budget == "standard" else GRID
    for p, rate in enumerate(RATES):
        group = f"C = 60, P = {rate:.0%}"
        plan = settings("flowers102-dirichlet", budget, clients=60, participation=rate)
        columns.append(Column(f"{group}, base", "base", group, 100.0, 2))
        columns += [Column(f"{group}, c = {c}", f"c = {c}", group, 100.0, 2) for c in grid]
        for i, host in enumerate(SIX):
            printed = TABLE3[6 * p + i]
            entries[host, f"{group}, base"] = Entry(cell(host, "", {}, plan), "accuracy", printed[0])
            for c in grid:
                key, scaled = f"{group}, c = {c}", list(variants())[-1]
                paper, longer = variants(c)[" + ConFREE"], variants(c)[scaled]
                entries[host, key] = Entry(cell(host, *paper, plan), "accuracy", printed[GRID.index(c) + 1])
                entries[host + scaled, key] = Entry(cell(host, *longer, plan), "accuracy")
            text = f"{host}, {group}: accuracy is higher at c = 0.5 than at c = 0.9"
            claims.append(Claim(text, (((host, f"{group}, c = 0.5"), (host, f"{group}, c = 0.9")),)))
            best = max(grid[1:-1], key=lambda c, line=printed: line[GRID.index(c) + 1] or 0.0)  # type: ignore[misc]
            ends = [(host, f"{group}, c = {c}") for c in (grid[0], grid[-1])]
            text = f"{host}, {group}: accuracy rises with c and then falls, with its peak in print at c = {best}"
            claims.append(Claim(text, tuple(((host, f"{group}, c = {best}"), end) for end in ends)))
    title = "ConFREE by the hyperparameter c, Flowers-102"
    return Study(
        "confree-table3",
        title,
        "Table 3",
        tuple(columns),
        entries,
        tuple(claims),
        (ATTRIBUTION, SETTING, "At standard budget every other c of the paper's."),
        SEEDS[budget],
        Picture("columns", title, "accuracy, %", "c"),
    )


def figure1(budget: Budget) -> Study:
    """Participation rates."""
    plans = {f"P = {rate:.0%}": {"participation": rate} for rate in (0.3, 0.6, 1.0)}
    title = "ConFREE by participation"
    return _figure("confree-figure1", title, "Figure 1", "participation", plans, budget)


def figure2(budget: Budget) -> Study:
    """Heterogeneity."""
    plans = {f"β = {beta:g}": {"beta": beta} for beta in (0.05, 0.1, 0.5, 1.0)}
    return _figure("confree-figure2", "ConFREE by heterogeneity", "Figure 2", "Dirichlet β", plans, budget)


def by_round(budget: Budget) -> Study:
    """How the gain changes as training goes on: is it one of length, which a longer training would give as well?"""
    place = "CIFAR-10, Dirichlet(0.1)"
    plan = settings("cifar10-dirichlet", budget) | ({"rounds": 200} if budget == "standard" else {})
    plain, paper, _, _, long, scaled = variants().items()
    hosts = ["APFL", "FedALA"]
    entries = {
        (host + suffix, place): Entry(cell(host, stage, options, plan), "accuracy")
        for host in hosts
        for suffix, (stage, options) in (plain, paper, long, scaled)
    }
    columns = (Column(place, "accuracy, %", place, 100.0, 2),)
    notes = (ATTRIBUTION, SETTING, "Here with 200 rounds at standard budget, scored every 25.")
    picture = Picture("rounds", "ConFREE and longer steps by round", "accuracy, %")
    title = "ConFREE's gain as training goes on"
    claims = gains(hosts, [place])
    return Study(
        "confree-rounds", title, "no table of the paper", columns, entries, claims, notes, SEEDS[budget], picture
    )


NEGATIVE = {"PTR, %": ("ptr", 100.0, 1), "clients worse off": ("worse", 1.0, 1), "lowest 5%": ("low5", 100.0, 2)}


def negative_transfer(budget: Budget) -> Study:
    """What ConFREE is for: who is worse off than alone, host by host, with and without it."""
    places = {"CIFAR-10, Dirichlet(0.1)": "cifar10-dirichlet", "Flowers-102, Dirichlet(0.1)": "flowers102-dirichlet"}
    plans = {place: settings(scenario, budget) for place, scenario in places.items()}
    columns = [Column(f"{p}, {title}", title, p, *NEGATIVE[title][1:]) for p in places for title in NEGATIVE]
    plain, paper, *_ = variants().items()
    entries = {
        (host + suffix, column.key): Entry(cell(host, stage, options, plans[column.group]), NEGATIVE[column.title][0])
        for host, (suffix, (stage, options)), column in product(HOSTS, (plain, paper), columns)
    }

    def pairs(title: str) -> list[tuple[Key, Key]]:
        return [((f"{host} + ConFREE", f"{p}, {title}"), (host, f"{p}, {title}")) for host in HOSTS for p in places]

    above_local, fewer = tuple(pairs("PTR, %")), tuple((low, high) for high, low in pairs("clients worse off"))
    claims = (
        Claim("ConFREE lowers no host's share of clients above LOCAL", above_local, slack=1e-9),
        Claim("ConFREE leaves no more clients worse off", fewer, slack=1e-9),
        Claim("ConFREE raises the lowest 5% of clients", tuple(pairs("lowest 5%"))),
    )
    notes = (SETTING, "Each client is compared with the same client trained alone, with the same budget.")
    title = "Negative transfer with and without ConFREE"
    seeds = {"quick": 1, "standard": 3, "full": 3}[budget]
    source = "the paper's claim; it prints no such table"
    return Study("confree-negative-transfer", title, source, tuple(columns), entries, claims, notes, seeds)


def _figure(name: str, title: str, source: str, axis: str, plans: dict[str, dict[str, Any]], budget: Budget) -> Study:
    scenarios = {"CIFAR-100": "cifar100-dirichlet", "Flowers-102": "flowers102-dirichlet"}
    columns, entries = [], {}
    shown = list(variants().items())[:2]
    for group, scenario in scenarios.items():
        for point, changes in plans.items():
            key = f"{group}, {point}"
            columns.append(Column(key, point, group, 100.0, 2))
            plan = settings(scenario, budget, **changes)
            for host in SIX:
                for suffix, (stage, options) in shown:
                    entries[host + suffix, key] = Entry(cell(host, stage, options, plan), "accuracy")
    keys = [c.key for c in columns]
    claims = tuple(above(f"ConFREE improves {host}", f"{host} + ConFREE", [host], keys) for host in SIX)
    if axis == "participation":
        claims += tuple(c for group in scenarios for c in by_participation(group, [f"{group}, {p}" for p in plans]))
    notes = (SETTING, "The paper draws these numbers without printing them.")
    picture = Picture("columns", title, "accuracy, %", axis)
    return Study(name, title, source, tuple(columns), entries, claims, notes, SEEDS[budget], picture)


STUDIES = {
    "confree-table1": table1,
    "confree-table2": table2,
    "confree-table3": table3,
    "confree-figure1": figure1,
    "confree-figure2": figure2,
    "confree-rounds": by_round,
    "confree-negative-transfer": negative_transfer,
}
