"""Beside the public record: tables that other projects publish on the same work; and a shift between domains."""

from __future__ import annotations

from typing import Any

from fairlead.reproduce.study import Budget, Cell, Claim, Column, Entry, Key, Study, above, in_order
from fairlead.reproduce.where import PLACES, searched

SEEDS: dict[Budget, int] = {"quick": 1, "standard": 1, "full": 3}
MEASURES = {"Acc, %": ("accuracy", 100.0, 2), "gain over LOCAL, %": ("r_accuracy", 100.0, 2)}
MEASURES |= {"PTR, %": ("ptr", 100.0, 1), "clients worse off": ("worse", 1.0, 1)}

# PFLlib's leaderboard, Fashion-MNIST: 20 clients, Dirichlet(0.1), 2,000 rounds, the best round on test data.
PFLLIB: dict[str, tuple[str, float | None]] = {
    "LOCAL": ("local", None),
    "FedAvg": ("fedavg", 85.85),
    "FedProx": ("fedprox", 85.63),
    "Per-FedAvg": ("per-fedavg", 95.10),
    "pFedMe": ("pfedme", 97.25),
    "Ditto": ("ditto", 97.47),
    "APFL": ("apfl", 97.25),
    "FedAMP": ("fedamp", 97.20),
    "FedALA": ("fedala", 97.66),
    "FedPer": ("fedper", 97.44),
    "FedRep": ("fedrep", 97.56),
    "FedROD": ("fedrod", 97.52),
    "FedBABU": ("fedbabu", 97.46),
    "FedCP": ("fedcp", 97.89),
    "FedProto": ("fedproto", 97.40),
}
# FLamby, Fed-Heart-Disease: means over four hospitals and five seeds.
FLAMBY: dict[str, tuple[str, float | None]] = {
    "LOCAL": ("local", 73.0),
    "FedAvg": ("fedavg", 68.5),
    "FedProx": ("fedprox", 68.5),
    "SCAFFOLD": ("scaffold", 68.4),
    "FedAdam": ("fedavg+fedadam", None),
    "FedAdagrad": ("fedavg+fedadagrad", 73.2),
    "FedYogi": ("fedavg+fedyogi", 73.2),
    "Ditto": ("ditto", None),
}
# FLamby, Fed-TCGA-BRCA: c-index, mean over six regions and five seeds.
SURVIVAL: dict[str, tuple[str, float | None]] = {
    "LOCAL": ("local", 0.689),
    "FedAvg": ("fedavg", 0.732),
    "FedProx": ("fedprox", 0.729),
    "SCAFFOLD": ("scaffold", 0.687),
    "FedAdam": ("fedavg+fedadam", 0.815),
    "FedYogi": ("fedavg+fedyogi", None),
    "FedAvg+FT": ("fedavg+ft", None),
    "Ditto": ("ditto", None),
    "pooled": ("pooled", 0.676),
}
DOMAINS = {
    "LOCAL": "local",
    "FedAvg": "fedavg",
    "FedAvg + ConFREE": "fedavg+confree",
    "FedAvg+FT": "fedavg+ft",
    "FedBN": "fedbn",
    "FedPer": "fedper",
    "FedRep": "fedrep",
    "LG-FedAvg": "lg-fedavg",
    "Ditto": "ditto",
    "FedRes": "fedres",
}


def _scores(
    rows: dict[str, tuple[str, float | None]], plan: dict[str, Any], group: str
) -> tuple[tuple[Column, ...], dict[Key, Entry]]:
    """Accuracy, gain over LOCAL and who is worse off, the published accuracy beside ours."""
    columns = tuple(Column(title, title, group, scale, places) for title, (_, scale, places) in MEASURES.items())
    entries: dict[Key, Entry] = {}
    for row, (method, published) in rows.items():
        for title, (measure, _, _) in MEASURES.items():
            if row != "LOCAL" or measure == "accuracy":
                entries[row, title] = Entry(Cell(method, plan), measure, published if measure == "accuracy" else None)
    return columns, entries


def pfllib(budget: Budget) -> Study:
    """PFLlib's leaderboard on Fashion-MNIST, with the control that it lacks."""
    plan: dict[str, Any] = {"scenario": "fashion-mnist-dirichlet", "rounds": 2000, "evaluate_every": 100}
    if budget == "standard":
        plan |= {
            "model": "lenet",
            "rounds": 50,
            "steps": 10,
            "lr": 0.02,
            "samples": (200, 0, 100),
            "evaluate_every": 50,
        }
    if budget == "quick":
        plan |= {"model": "mlp", "clients": 4, "samples": (8, 0, 8), "rounds": 1, "steps": 1, "batch_size": 4}
    columns, entries = _scores(PFLLIB, plan, "Fashion-MNIST, Dirichlet(0.1), 20 clients")
    personal = [row for row in PFLLIB if row not in ("LOCAL", "FedAvg", "FedProx")]
    claims = (
        Claim(
            "every personalized method is above FedAvg", tuple(((r, "Acc, %"), ("FedAvg", "Acc, %")) for r in personal)
        ),
        above("FedCP is best", "FedCP", [row for row in personal if row != "FedCP"], ["Acc, %"]),
        Claim(
            "every personalized method is above LOCAL (not in the leaderboard, which has no LOCAL)",
            tuple(((row, "Acc, %"), ("LOCAL", "Acc, %")) for row in personal),
        ),
    )
    notes = (
        "The leaderboard reports the best round on test data after 2,000 rounds; here the last round of the budget. "
        "Standard budget: LeNet, 200 train and 100 test samples per client, 50 rounds of 10 batches at 0.02. So the "
        "orderings can be compared, the values cannot.",
        "Accuracies are means over clients here, and over all test samples there.",
    )
    title = "PFLlib's leaderboard on Fashion-MNIST, with LOCAL"
    source = "PFLlib, leaderboard"
    return Study("pfllib-fashion-mnist", title, source, columns, entries, claims, notes, SEEDS[budget])


def flamby(budget: Budget) -> Study:
    """FLamby's four hospitals, with an equal control."""
    plan: dict[str, Any] = {"data": "heart-disease", "model": "logistic", "batch_size": 4, "momentum": 0.0}
    plan |= {"lr": 0.01, "rounds": 2 if budget == "quick" else 15, "steps": 100, "fractions": (0.7, 0.0, 0.3)}
    columns, entries = _scores(FLAMBY, plan, "four hospitals")
    adaptive = ["FedAdagrad", "FedYogi"]
    claims = (
        above("FedAvg is below LOCAL", "LOCAL", ["FedAvg"], ["Acc, %"]),
        *(above(f"{row} is above FedAvg", row, ["FedAvg"], ["Acc, %"]) for row in adaptive),
        *(above(f"{row} is above LOCAL", row, ["LOCAL"], ["Acc, %"]) for row in adaptive),
    )
    notes = (
        "There, LOCAL trains 50 epochs with Adam and FedAvg 15 rounds of 100 SGD steps at 0.001, so that FedAvg below "
        "LOCAL may be a matter of budgets. Here LOCAL has the same 15 x 100 SGD steps as the others, at 0.01, and the "
        "split is this library's, not FLamby's own.",
    )
    title = "FLamby's hospitals with an equal control"
    source = "FLamby, Fed-Heart-Disease"
    seeds = {"quick": 1, "standard": 5, "full": 5}[budget]
    return Study("flamby-heart-disease", title, source, columns, entries, claims, notes, seeds)


def tcga(budget: Budget) -> Study:
    """FLamby's six regions with an equal control, on FLamby's own split."""
    settings = next(given for place, given in PLACES.items() if "survival" in place)
    settings = settings | {"model": "logistic", "pool": "train"}
    methods = [method for row, (method, _) in SURVIVAL.items() if row not in ("LOCAL", "pooled")]
    cell = searched(settings, methods, budget)
    group = "six regions"
    columns = (
        Column("c-index", "c-index", group, 1.0, 3),
        Column("below", "regions below LOCAL", group, 1.0, 1),
        Column("lr", "step size", group, 1.0, 3),
        Column("rounds", "rounds", group, 1.0, 0),
    )
    entries: dict[Key, Entry] = {}
    for row, (method, published) in SURVIVAL.items():
        entries[row, "c-index"] = Entry(cell, f"{method}.score", published)
        if row != "LOCAL":
            entries[row, "below"] = Entry(cell, f"{method}.below")
        if row != "pooled":
            entries |= {(row, choice): Entry(cell, f"{method}.{choice}") for choice in ("lr", "rounds")}
    claims = (
        above("FedAdam is above FedAvg", "FedAdam", ["FedAvg"], ["c-index"]),
        *(above(f"{row} is above LOCAL", row, ["LOCAL"], ["c-index"]) for row in ("FedAvg", "FedProx", "FedAdam")),
        above("pooled is below FedAvg", "FedAvg", ["pooled"], ["c-index"]),
    )
    notes = (
        "A linear model by Cox's partial likelihood, tested on FLamby's own test rows. Each method, LOCAL too, "
        "searches its step size and rounds on two in seven of FLamby's train rows and is trained again on all of them. "
        "A seed decides on weights, batches and the rows to choose with; the test rows are the same.",
        "pooled is the best of the tools on all rows in one place: Cox regression here, stochastic gradients there.",
    )
    title = "FLamby's breast cancer regions with an equal control"
    seeds = {"quick": 1, "standard": 5, "full": 5}[budget]
    ordered = in_order(entries, SURVIVAL, columns)
    return Study("flamby-tcga-brca", title, "FLamby, Fed-TCGA-BRCA", columns, ordered, claims, notes, seeds)


def pacs(budget: Budget) -> Study:
    """Photos, art, cartoons and sketches: a natural shift of the inputs."""
    plan: dict[str, Any] = {"scenario": "pacs", "model": "cnn-norm", "image_size": 32}
    plan |= {"rounds": {"quick": 1, "standard": 30, "full": 200}[budget], "batch_size": 32, "lr": 0.02}
    if budget == "standard":
        plan |= {"steps": 10, "evaluate_every": 10}
    if budget == "quick":
        plan |= {"model": "mlp-norm", "steps": 2, "image_size": 16}
    rows: dict[str, tuple[str, float | None]] = {row: (method, None) for row, method in DOMAINS.items()}
    columns, entries = _scores(rows, plan, "PACS, four domains")
    claims = (
        above("FedBN is above FedAvg (claimed by FedBN on other data)", "FedBN", ["FedAvg"], ["Acc, %"]),
        Claim("FedAvg leaves some client worse off", ((("FedAvg", "clients worse off"), 0.5),)),
        Claim("FedRes leaves nobody worse off", ((0.5, ("FedRes", "clients worse off")),)),
    )
    notes = (
        "Four clients, one per domain, of 1,670 to 3,929 pictures, brought to 32x32 pixels; a network of four layers "
        "with BatchNorm. Standard budget: 30 rounds of 10 batches of 32 at 0.02.",
    )
    title = "PACS: four domains as four clients"
    return Study("pacs-domains", title, "no table of the papers", columns, entries, claims, notes, SEEDS[budget])


def different_networks(budget: Budget) -> Study:
    """Clients of three architectures: what can be shared where no body can be averaged."""
    places = {"Rotated MNIST": "rotated-mnist", "Rotated Fashion-MNIST": "rotated-fashion-mnist"}
    plan: dict[str, Any] = {"model": "mixed", "rounds": {"quick": 2, "standard": 100, "full": 500}[budget]}
    if budget == "quick":
        plan |= {"clients": 6, "samples": (32, 16, 32), "epochs": 1}
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "LOCAL": ("local", {}),
        "FedProto": ("fedproto", {}),
        "FedProto, answers by its head": ("fedproto", {"fedproto": {"answer": "head"}}),
        "LG-FedAvg": ("lg-fedavg", {}),
    }
    columns, entries = [], {}
    for place, scenario in places.items():
        for title, (measure, scale, decimals) in MEASURES.items():
            key = f"{place}, {title}"
            columns.append(Column(key, title, place, scale, decimals))
            for row, (method, options) in rows.items():
                if row != "LOCAL" or measure == "accuracy":
                    settings = {"scenario": scenario, **plan} | ({"set": options} if options else {})
                    entries[row, key] = Entry(Cell(method, settings), measure)
    accuracy = [f"{place}, Acc, %" for place in places]
    claims = tuple(
        above(f"{row} is above LOCAL, each client with its own network", row, ["LOCAL"], accuracy)
        for row in list(rows)[1:]
    )
    notes = (
        "Client k has the network k mod 3 of `--model mixed`: one hidden layer of 128 units, two, or one of 32 below "
        "128. LOCAL trains the client's own. FEDORA's protocol: 36 clients, SGD at 0.005.",
        "FedProto's paper has clients of different architectures on other data, and is above training alone there.",
    )
    title = "Clients of different networks"
    ordered = in_order(entries, rows, columns)
    source = "no table of the papers"
    return Study("fedproto-networks", title, source, tuple(columns), ordered, claims, notes, SEEDS[budget])


STUDIES = {
    "pfllib-fashion-mnist": pfllib,
    "flamby-heart-disease": flamby,
    "flamby-tcga-brca": tcga,
    "pacs-domains": pacs,
    "fedproto-networks": different_networks,
}
