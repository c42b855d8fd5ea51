"""How to Prevent the Poor Performance Clients (Qu et al., CVPR 2023): the tables and the figure of its slides."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from fairlead.reproduce.study import Budget, Cell, Claim, Column, Entry, Key, Picture, Study, above, numbers

STATISTICS = {"mean": "accuracy", "lowest 5%": "low5", "top 5%": "top5"}
PLACES = {
    "CIFAR-10, C = 10": ("cifar10-dirichlet", 10),
    "CIFAR-10, C = 100": ("cifar10-dirichlet", 100),
    "CIFAR-100, C = 10": ("cifar100-dirichlet", 10),
    "CIFAR-100, C = 100": ("cifar100-dirichlet", 100),
    "Tiny-ImageNet, C = 20": ("tiny-imagenet-dirichlet", 20),
}
AT_THETA = "PLGU-LF, gradient at θ + ε"  # the other reading of Algorithm 1, line 7
TABLE1_METHODS = {
    "FedAvg": "fedavg",
    "FedSAM": "fedsam",
    "Ditto": "ditto",
    "pFedMe": "pfedme",
    "PLGU-LF": "plgu-lf",
    AT_THETA: "plgu-lf",
}
TABLE2_METHODS = {
    "Ditto": "ditto",
    "pFedMe": "pfedme",
    "FedRep": "fedrep",
    "pFedHN": "pfedhn",
    "PLGU-LF": "plgu-lf",
    "PLGU-GRep": "plgu-grep",
    "PLGU-GHN": "plgu-ghn",
    AT_THETA: "plgu-lf",
}

# Table 1: the global model. Per place a line of means, then a line of lowest and top 5% for each method.
TABLE1 = numbers("""
64.79 67.57 64.15 64.36 69.36
60.69 68.45 64.76 69.93 62.08 69.45 61.13 70.46 67.34 71.69
67.15 69.49 68.24 68.31 71.48
65.99 71.80 67.04 71.12 61.64 71.08 65.25 71.64 68.92 73.57
55.86 57.19 56.35 55.17 59.74
51.21 60.75 54.82 59.55 52.73 59.28 50.41 58.35 56.85 61.49
58.00 59.39 58.93 57.24 61.07
55.16 60.67 56.73 61.20 56.64 60.79 52.96 60.53 58.25 62.25
37.78 38.42 38.09 36.43 40.61
32.26 43.73 34.61 42.02 34.75 42.84 31.79 42.90 35.41 43.56
""")

# Table 2: the personal models, laid out alike.
TABLE2 = numbers("""
69.21 66.43 71.32 71.66 71.18 72.87 72.64
65.33 72.86 62.97 71.10 68.15 74.04 68.06 73.95 68.22 73.27 69.98 74.91 69.70 74.63
71.23 69.19 75.30 74.95 74.23 76.94 76.17
69.93 74.46 66.84 71.58 73.11 77.74 73.23 77.58 72.66 75.87 74.23 77.61 73.79 77.82
59.17 56.58 62.92 63.25 62.33 64.61 65.37
57.81 63.06 52.92 60.14 59.70 65.95 59.86 65.79 60.08 65.24 62.58 66.62 63.02 66.94
62.52 58.57 65.08 65.54 64.67 66.79 66.30
59.48 64.81 55.79 61.73 62.60 67.96 63.30 68.09 63.72 67.75 64.81 68.59 64.27 68.02
39.41 37.22 41.68 41.96 41.39 42.84 42.45
35.88 43.49 32.76 42.91 37.53 45.07 37.94 45.19 37.46 44.57 40.29 45.18 39.92 44.89
""")

# Tables 3 and 4: PLGU-LF's global and personal models, PLGU-GRep and PLGU-GHN on CIFAR-10, C = 10. Per method a line of
# means, then a line of lowest and top 5% for each K or ρ.
SCHEMES = {"PLGU-LF (G)": "plgu-lf", "PLGU-LF (P)": "plgu-lf", "PLGU-GRep": "plgu-grep", "PLGU-GHN": "plgu-ghn"}
EPOCHS = (1, 5, 10)
TABLE3 = numbers("""
65.31 69.36 68.42
62.08 68.20 67.24 71.13 66.23 71.39
67.43 71.18 70.40
64.25 70.01 68.22 73.17 65.76 73.54
70.82 72.87 71.65
67.25 73.28 69.98 74.91 68.04 74.11
69.93 72.64 72.91
66.89 73.15 69.70 74.63 72.91 75.48
""")
RADII = (0.05, 0.1, 0.5)
TABLE4 = numbers("""
69.36 68.62 66.73
67.24 71.13 65.71 71.88 63.95 68.31
71.18 70.96 69.05
68.22 73.17 69.15 74.68 66.89 73.50
72.87 72.01 70.80
69.98 74.91 71.49 75.93 66.73 73.65
72.64 70.49 67.30
69.70 74.63 68.18 74.73 64.84 74.69
""")

SETTING = (
    "The slides give C, K = 5 and ρ = 0.05; clients (100), Dirichlet(0.3), 70% train and 30% test samples, the network "
    "of four layers, SGD at 0.01 with batches of 32 and the rounds are chosen here. Standard budget: LeNet, 60 clients "
    "with 64 train and 50 test samples each, a step size of 0.05, and 80 rounds with C = 10 or 20; C = 100 is all 60 "
    "clients for 25 rounds; Tiny-ImageNet is brought to 32x32 pixels."
)
READINGS = (
    "Line 7 of Algorithm 1 can be read in two ways: the gradient that moves the global model is taken at w + ε, as in "
    "the row PLGU-LF, or at θ + ε, as in the last row."
)
SEEDS: dict[Budget, int] = {"quick": 1, "standard": 1, "full": 3}


def settings(scenario: str, cohort: int, budget: Budget, epochs: int = 5) -> dict[str, Any]:
    """A place's settings."""
    plan: dict[str, Any] = {"scenario": scenario, "clients": 100, "beta": 0.3, "participation": cohort, "lr": 0.01}
    plan |= {"batch_size": 32, "epochs": epochs, "rounds": 500, "evaluate_every": 10}
    if budget == "standard":
        plan |= {"model": "lenet", "clients": 60, "samples": (64, 0, 50), "lr": 0.05}
        plan |= {"participation": 60, "rounds": 25} if cohort == 100 else {"rounds": 80}
        plan |= {"image_size": 32} if scenario.startswith("tiny-imagenet-") else {}
    if budget == "quick":
        plan |= {"clients": 8, "participation": 3 if cohort < 100 else 8, "samples": (10, 0, 10)}
        plan |= {"model": "mlp", "rounds": 2, "batch_size": 10, "epochs": min(epochs, 2)}
    return plan


def cell(method: str, plan: Mapping[str, Any], budget: Budget, shared: bool = False, **options: Any) -> Cell:
    """A method at a place; `shared` scores the server's model too."""
    if method in ("pfedhn", "plgu-ghn"):
        # Of full width, the hypernetwork of the network of four layers is 88 million numbers.
        options = options | ({"hidden": 4} if budget == "quick" else {})
    more: dict[str, Any] = {"set": {method: options}} if options else {}
    # One run serves the tables of both models.
    if shared or method in ("plgu-lf", "ditto", "pfedme"):
        more["evaluate_global"] = True
    return Cell(method, {**plan, **more})


class _Printed(NamedTuple):
    """A table of accuracies by method and place."""

    numbers: list[list[float | None]]
    methods: Mapping[str, str]
    shared: bool  # of the global model
    places: tuple[str, ...] = tuple(PLACES)

    def values(self, row: str, place: str) -> list[float | None]:
        """Mean, lowest and top 5% in print."""
        if row == AT_THETA:
            return [None] * 3
        i, p = list(self.methods).index(row), 2 * list(PLACES).index(place)
        return [self.numbers[p][i], *self.numbers[p + 1][2 * i : 2 * i + 2]]

    def entries(self, budget: Budget) -> dict[Key, Entry]:
        """All its numbers, method by method."""
        plans = {place: settings(*PLACES[place], budget) for place in self.places}
        prefix = "global." if self.shared else ""
        found: dict[Key, Entry] = {}
        for (row, method), place in product(self.methods.items(), self.places):
            reading = {"at": "theta"} if row == AT_THETA else {}
            one = cell(method, plans[place], budget, self.shared, **reading)
            for (statistic, measure), value in zip(STATISTICS.items(), self.values(row, place), strict=True):
                found[row, f"{place}, {statistic}"] = Entry(one, prefix + measure, value)
        return found


def _table(
    name: str, title: str, source: str, printed: _Printed, budget: Budget, picture: Picture | None = None
) -> Study:
    entries, places = printed.entries(budget), printed.places
    columns = tuple(
        Column(f"{place}, {statistic}", statistic, place, 100.0, 2) for place in places for statistic in STATISTICS
    )
    means, lowest = ([f"{place}, {what}" for place in places] for what in ("mean", "lowest 5%"))
    claims = _claims(printed.methods, means, lowest)
    if "PLGU-GHN" in printed.methods:
        claims += tuple(_best(entries, places, statistic) for statistic in STATISTICS)
    return Study(name, title, source, columns, entries, claims, (SETTING, READINGS), SEEDS[budget], picture)


def _claims(methods: Mapping[str, str], means: list[str], lowest: list[str]) -> tuple[Claim, ...]:
    if "PLGU-GHN" not in methods:
        others = [row for row in methods if row not in ("PLGU-LF", AT_THETA)]
        return (
            above("PLGU-LF's global model has the highest mean", "PLGU-LF", others, means),
            above("PLGU-LF's global model has the highest lowest 5%", "PLGU-LF", others, lowest),
        )
    pairs = (("PLGU-LF", ["Ditto", "pFedMe"]), ("PLGU-GRep", ["FedRep"]), ("PLGU-GHN", ["pFedHN"]))
    return tuple(
        above(f"{row} is above {' and '.join(others)} in {what}", row, others, columns)
        for what, columns in (("the mean", means), ("the lowest 5%", lowest))
        for row, others in pairs
    )


def _best(entries: Mapping[Key, Entry], places: tuple[str, ...], statistic: str) -> Claim:
    """That the scheme of PLGU which is best in print is above every method it is compared with."""
    pairs = []
    for place in places:
        key = f"{place}, {statistic}"
        best = max(("PLGU-LF", "PLGU-GRep", "PLGU-GHN"), key=lambda row, key=key: entries[row, key].published or 0.0)  # type: ignore[misc]
        pairs += [((best, key), (row, key)) for row in ("Ditto", "pFedMe", "FedRep", "pFedHN")]
    return Claim(f"PLGU, by its scheme that is best in print, has the highest {statistic}", tuple(pairs))


def table1(budget: Budget) -> Study:
    """The global model."""
    title = "PLGU: accuracy of the global model"
    return _table("plgu-table1", title, "Table 1", _Printed(TABLE1, TABLE1_METHODS, shared=True), budget)


def table2(budget: Budget) -> Study:
    """The personal models."""
    title = "PLGU: accuracy of the personal models"
    return _table("plgu-table2", title, "Table 2", _Printed(TABLE2, TABLE2_METHODS, shared=False), budget)


def figure(budget: Budget) -> Study:
    """Accuracy by round."""
    places = ("CIFAR-10, C = 10", "CIFAR-100, C = 10", "Tiny-ImageNet, C = 20")
    title = "PLGU: accuracy by round"
    picture = Picture("rounds", "Mean test accuracy of the personal models by round", "accuracy, %")
    printed = _Printed(TABLE2, TABLE2_METHODS, shared=False, places=places)
    return _table("plgu-figure", title, "the figure after Table 2", printed, budget, picture)


def _sweep(
    name: str,
    title: str,
    source: str,
    printed: list[list[float | None]],
    points: Mapping[str, Mapping[str, Any]],
    claims: tuple[Claim, ...],
    budget: Budget,
) -> Study:
    columns = [
        Column(f"{point}, {statistic}", statistic, point, 100.0, 2) for point in points for statistic in STATISTICS
    ]
    entries: dict[Key, Entry] = {}
    for i, (row, method) in enumerate(SCHEMES.items()):
        for p, (point, change) in enumerate(points.items()):
            plan = settings(*PLACES["CIFAR-10, C = 10"], budget, **{k: v for k, v in change.items() if k == "epochs"})
            options = {k: v for k, v in change.items() if k != "epochs"}
            values = [printed[2 * i][p], *printed[2 * i + 1][2 * p : 2 * p + 2]]
            for j, (statistic, measure) in enumerate(STATISTICS.items()):
                shared = "global." if row.endswith("(G)") else ""
                entry = Entry(cell(method, plan, budget, **options), shared + measure, values[j])
                entries[row, f"{point}, {statistic}"] = entry
    return Study(name, title, source, tuple(columns), entries, claims, (SETTING,), SEEDS[budget])


def table3(budget: Budget) -> Study:
    """Local epochs K."""
    points = {f"K = {k}": {"epochs": k} for k in EPOCHS}
    claims = (
        *(
            Claim(f"{row} is better at K = 5 than at K = 1", (((row, "K = 5, mean"), (row, "K = 1, mean")),))
            for row in SCHEMES
        ),
        *(
            Claim(f"{row} falls from K = 5 to K = 10", (((row, "K = 5, mean"), (row, "K = 10, mean")),))
            for row in SCHEMES
            if row != "PLGU-GHN"  # which rises, in print
        ),
    )
    return _sweep("plgu-table3", "PLGU: local epochs K", "Table 3", TABLE3, points, claims, budget)


def table4(budget: Budget) -> Study:
    """The radius ρ."""
    points: dict[str, dict[str, Any]] = {f"ρ = {rho:g}": {"rho": rho} for rho in RADII}
    points["ρ = 0.05"] = {}  # the default, so that the run is shared with the other tables
    claims = (
        *(
            Claim(f"{row} is better at ρ = 0.05 than at ρ = 0.5", (((row, "ρ = 0.05, mean"), (row, "ρ = 0.5, mean")),))
            for row in SCHEMES
        ),
        *(
            Claim(f"{row} is better at ρ = 0.05 than at ρ = 0.1", (((row, "ρ = 0.05, mean"), (row, "ρ = 0.1, mean")),))
            for row in SCHEMES
        ),
    )
    return _sweep("plgu-table4", "PLGU: radius ρ of the perturbation", "Table 4", TABLE4, points, claims, budget)


STUDIES = {
    "plgu-table1": table1,
    "plgu-table2": table2,
    "plgu-table3": table3,
    "plgu-table4": table4,
    "plgu-figure": figure,
}
