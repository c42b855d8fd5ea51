"""Federated Residual Learning (Agarwal, Langford and Wei, 2020): the two synthetic experiments of its slides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairlead.clients import InProcess, engine
from fairlead.core import Federation, Method, Plan, Split, Training
from fairlead.methods import fedavg, fedres, local, scaffold
from fairlead.methods.fedres import silenced
from fairlead.models import build
from fairlead.reproduce.fedora_released import SEED, SETS, dealt
from fairlead.reproduce.study import Budget, Claim, Column, Computed, Entry, Key, Picture, Result, Study
from fairlead.rounds import federate

STEPS = (1, 10, 50, 100)  # K: local updates within a round
ALPHAS = (0.0, 0.3, 0.7, 1.0)
START = 10.0  # where w begins in Synthetic I, away from the optimum at 0; both θ begin at 0, as residuals do
RATE = 0.1
GLOBAL, SCAFFOLD, ALONE = "global only", "global only, control", "local only"
RESIDUAL, CONTROLLED = "residual", "residual, control"


class Shared(nn.Module):
    """w, by which both numbers of a client are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([START]))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 2) -> (n, 2)."""
        return x * self.w


class Own(nn.Module):
    """θ, added to the first number."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 2) -> (n, 2)."""
        return torch.stack([self.theta.expand(len(x)), torch.zeros_like(x[:, 1])], 1)


def two_losses(out: Tensor, y: Tensor) -> Tensor:
    """L1 = 0.1 (w + θ)² + 10 w and L2 = 0.1 θ² - 10 w, since the clients' samples are (1, 10) and (0, -10)."""
    return 0.1 * out[..., 0].square() + out[..., 1]


def synthetic1(budget: Budget) -> Study:
    """Two clients whose losses pull w apart."""
    rounds = {"quick": 10, "standard": 100, "full": 200}[budget]
    rows = (GLOBAL, SCAFFOLD, RESIDUAL, CONTROLLED)
    columns = tuple(Column(f"K = {k}", "average loss", f"K = {k}") for k in STEPS)
    entries: dict[Key, Entry] = {
        (row, f"K = {k}"): Entry(
            Computed("synthetic1", run_synthetic1, {"method": row, "steps": k, "rounds": rounds}), "train"
        )
        for row in rows
        for k in STEPS
    }
    keys = [c.key for c in columns]
    claims = (
        lower("the residual model's average loss is below the global-only model's, whatever K", RESIDUAL, GLOBAL, keys),
        lower("control variates keep it at or below the plain residual's", CONTROLLED, RESIDUAL, keys, 1e-4),
        lower("with control variates too, residual is at or below global only", CONTROLLED, SCAFFOLD, keys, 1e-4),
    )
    notes = (
        f"Step size {RATE:g}, w starts at {START:g} and both θ at 0; the slides give neither. The least average loss "
        "is 0.",
        "Training alone is left out: L1 falls without bound along w = -θ1, so alone there is nothing to converge to.",
    )
    title = "Federated residual learning, Synthetic I"
    picture = Picture("rounds", "Average loss by round, two clients with opposed losses", "average loss")
    return Study(
        "fedres-synthetic1",
        title,
        "slide 'Experiment (Synthetic I)', a figure",
        columns,
        entries,
        claims,
        notes,
        1,
        picture,
    )


def lower(text: str, row: str, other: str, columns: list[str], slack: float = 0.0) -> Claim:
    """The claim that one row's losses are below another's."""
    return Claim(text, tuple(((other, c), (row, c)) for c in columns), slack)


def run_synthetic1(method: str, steps: int, rounds: int, seed: int) -> Result:
    """Average loss by round; both clients have one sample, so a step is the exact gradient."""
    x, y, starts = torch.tensor([[1.0, 10.0], [0.0, -10.0]]), torch.zeros(2, 2), torch.tensor([0, 1, 2])
    split = Split(x, y, starts)
    methods = {
        GLOBAL: fedavg(),
        SCAFFOLD: scaffold(),
        RESIDUAL: fedres(local=lambda _: Own()),
        CONTROLLED: fedres(local=lambda _: Own(), control=True),
    }
    training = Training(lr=RATE, steps=steps, batch_size=1, criterion=two_losses)
    return losses(methods[method], Federation(split, split, split, ()), Shared(), training, rounds, seed, "loop")


def losses(
    method: Method, federation: Federation, module: nn.Module, training: Training, rounds: int, seed: int, how: str
) -> Result:
    """The mean loss over clients after every round, on train samples, and on test samples at the end."""
    # Scored in place of validation data, which neither experiment has, train samples show what is minimised.
    scored = replace(federation, validation=federation.train)
    plan = Plan(rounds=rounds, evaluate_every=1, seed=seed)
    happened = federate(method, InProcess(scored, training, engine(how)), module, plan)
    curves: dict[str, list[list[float]]] = {"validation": [], "test": []}
    for r, _ in happened:
        for s in r.scores:
            curves[s.split].append([r.round, float(s.values["loss"].mean())])
    train, test = (curves[split][-1][1] for split in ("validation", "test"))
    return {"values": {"train": train, "test": test}, "curve": curves["validation"]}


def synthetic2(budget: Budget) -> Study:
    """Ten clients whose labels mix a common rule with their own."""
    size: dict[str, Any] = {
        "quick": {"rounds": 10, "samples": 50},
        "standard": {"rounds": 100, "samples": 100},
        "full": {"rounds": 300, "samples": 100},
    }[budget]
    rows = (GLOBAL, SCAFFOLD, ALONE, RESIDUAL, CONTROLLED)
    columns = tuple(
        Column(f"{part} loss, α = {a:g}", f"{part} loss", f"α = {a:g}") for a in ALPHAS for part in ("train", "test")
    )
    entries: dict[Key, Entry] = {
        (row, f"{part} loss, α = {a:g}"): Entry(
            Computed("synthetic2", run_synthetic2, {"method": row, "alpha": a, **size}), part
        )
        for row in rows
        for a in ALPHAS
        for part in ("train", "test")
    }
    slack = 0.01
    claims = tuple(
        lower(
            f"{row} is best or equal to {other} at every α, in {part} loss",
            row,
            other,
            [f"{part} loss, α = {a:g}" for a in ALPHAS],
            slack,
        )
        for part in ("train", "test")
        for row in (RESIDUAL, CONTROLLED)
        for other in (GLOBAL, ALONE)
    )
    notes = (
        f"20 features, {size['samples']} train and 1,000 test samples per client, noise of deviation 0.1, 10 local "
        "steps of 20 samples, step size 0.1: the slides give none of these. Losses of the last round; the figure shows "
        "the train loss, which is what the clients minimise.",
        f"Losses less than {slack:g} apart count as equal.",
    )
    title = "Federated residual learning, Synthetic II"
    picture = Picture("rounds", "Average logistic loss by round, ten clients", "average train loss")
    return Study(
        "fedres-synthetic2",
        title,
        "slide 'Experiment (Synthetic II)', a figure",
        columns,
        entries,
        claims,
        notes,
        {"quick": 1, "standard": 3, "full": 3}[budget],
        picture,
    )


def run_synthetic2(method: str, alpha: float, rounds: int, samples: int, seed: int) -> Result:
    """Average test loss by round."""
    methods = {
        GLOBAL: fedavg(),
        SCAFFOLD: scaffold(),
        ALONE: local(),
        RESIDUAL: fedres(),
        CONTROLLED: fedres(control=True),
    }
    federation = mixed_rules(alpha, samples, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Linear(federation.train.x.shape[1], 2)
    training = Training(lr=0.1, steps=10, batch_size=20)
    return losses(methods[method], federation, module, training, rounds, seed, "vectorised")


def mixed_rules(alpha: float, samples: int, seed: int, clients: int = 10, features: int = 20) -> Federation:
    """y = argmax{(1 - α) W* x + α Θ*_i x + n}: a rule for everybody and one of each client's own."""
    rng = np.random.default_rng([seed, 2020])
    common, own = rng.standard_normal((2, features)), rng.standard_normal((clients, 2, features))

    def split(n: int) -> Split:
        x = rng.standard_normal((clients, n, features))
        rules = (1 - alpha) * common + alpha * own
        scores = np.einsum("knd,kcd->knc", x, rules) + 0.1 * rng.standard_normal((clients, n, 2))
        flat = torch.from_numpy(x.reshape(-1, features).astype(np.float32))
        return Split(flat, torch.from_numpy(scores.argmax(-1).reshape(-1)), torch.arange(clients + 1) * n)

    return Federation(split(samples), split(0), split(1000), ("0", "1"))


LOCAL_MODELS = {
    "local model: the same network": "mlp",
    "local model: linear": "logistic",
    "local model: one of three networks, client by client": "mixed",
}


def never_worse(budget: Budget) -> Study:
    """The promise on real images: nobody is worse off than alone, whatever architecture the local model has."""
    rounds, lr = {"quick": (2, 5e-3), "standard": (100, 2e-2), "full": (500, 5e-3)}[budget]
    measures = {"LOCAL": ("local", 4), "FedRes": ("fedres", 4), "PTR": ("ptr", 4), "clients worse off": ("worse", 1)}
    columns, entries = [], {}
    for group, data in SETS.items():
        for title, (_, places) in measures.items():
            columns.append(Column(f"{group}, {title}", title, group, 1.0, places))
        cell = Computed("fedres-never-worse", train_all, {"data": data, "rounds": rounds, "lr": lr}, needs_data=True)
        for row, model in LOCAL_MODELS.items():
            for title, (measure, _) in measures.items():
                entries[row, f"{group}, {title}"] = Entry(cell, f"{model}.{measure}")
    claims = tuple(
        Claim(
            f"{row}: FedRes leaves nobody worse off than alone",
            tuple((0.5, (row, f"{group}, clients worse off")) for group in SETS),
        )
        for row in LOCAL_MODELS
    )
    notes = (
        "36 clients with the samples of FEDORA's released loader, MLP 784-128-128-10, its protocol; models of the last "
        f"of {rounds} rounds at {lr:g}, LOCAL the MLP alone with the same rounds. Standard budget: a fifth of the "
        "rounds at four times the step size; with fewer, FedRes would be judged before it has learned.",
    )
    title = "Is FedRes never worse than training alone?"
    ordered: dict[Key, Entry] = {(row, c.key): entries[row, c.key] for row in LOCAL_MODELS for c in columns}
    return Study(
        "fedres-never-worse",
        title,
        "the promise of the slides; they print no such table",
        tuple(columns),
        ordered,
        claims,
        notes,
        {"quick": 1, "standard": 1, "full": 3}[budget],
    )


def train_all(data: str, rounds: int, lr: float, seed: int, data_dir: str | None) -> Result:
    """Accuracy of LOCAL, and of FedRes with each kind of local model, client by client, after the last round."""
    federation = dealt(data, data_dir, SEED + seed)
    training = Training(lr=lr, epochs=5, batch_size=64, momentum=0.9, weight_decay=5e-5)

    def accuracy(method: Method) -> Tensor:
        *_, (last, _) = federate(
            method,
            InProcess(federation, training, engine("threads+vectorised")),
            build("mlp", (1, 28, 28), 10, seed),
            Plan(rounds=rounds, evaluate_every=rounds, seed=seed),
        )
        (score,) = (s for s in last.scores if (s.model, s.split) == ("personal", "test"))
        return score.values["accuracy"]

    def silent(model: str) -> Callable[[nn.Module], nn.Module]:
        return lambda _: silenced(build(model, (1, 28, 28), 10, seed))

    alone, values = accuracy(local()), dict[str, float]()
    for model in LOCAL_MODELS.values():
        ours = accuracy(fedres(local=silent(model)))
        found = {"local": alone.mean(), "fedres": ours.mean()}
        found |= {"ptr": (ours > alone).double().mean(), "worse": (ours < alone).sum()}
        values |= {f"{model}.{name}": float(value) for name, value in found.items()}
    return {"values": values}


STUDIES = {
    "fedres-synthetic1": synthetic1,
    "fedres-synthetic2": synthetic2,
    "fedres-never-worse": never_worse,
}
