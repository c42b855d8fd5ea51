"""Twins: LOCAL models that differ in their seed alone, on real tables and images; and a light trainer for many of them.

A twin's true difference from its twin is zero, so every verdict on a pair of them is false. Many small networks are
trained at once, as one batched product.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
HIDDEN, BATCH, EPOCHS, FEWEST_STEPS, DECAY = 16, 16, 25, 100, 1e-3
STEP = {"classes": 0.05, "quantity": 0.003}


@dataclass(frozen=True)
class Scenario:
    """Rows of several owners; `classes` is 0 for a quantity."""

    name: str
    x: Floats
    y: NDArray[np.generic]
    owners: dict[str, Ids]
    classes: int


def read(path: Path, target: str, owner: str, drop: tuple[str, ...] = (), most: int = 10**9) -> Scenario:
    """A CSV file: words become columns of 0 and 1, empty cells the mean, every column is standardised."""
    with path.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r[target] not in ("", "NA")]
    columns: list[Floats] = []
    for name in rows[0]:
        if name in (target, owner, *drop):
            continue
        cells = [r[name] for r in rows]
        try:
            column = np.array([float(c) if c not in ("", "NA", "?") else np.nan for c in cells])
            columns.append(np.where(np.isnan(column), np.nanmean(column), column))
        except ValueError:
            columns += [np.array([c == word for c in cells], dtype=np.float64) for word in sorted(set(cells))]
    targets = [r[target] for r in rows]
    words = len(set(targets)) < 20
    y = np.unique(targets, return_inverse=True)[1] if words else np.array([float(t) for t in targets])
    return _scenario(path.stem, np.stack(columns, 1), y, np.array([r[owner] for r in rows]), most)


def _scenario(name: str, x: Floats, y: NDArray[np.generic], owner: NDArray[np.generic], most: int) -> Scenario:
    spread = x.std(0)
    x = (x - x.mean(0)) / np.where(spread > 0, spread, 1)
    quantity = y.dtype.kind == "f"
    if quantity:
        y = (y.astype(np.float64) - y.mean()) / y.std()
    rng = np.random.default_rng(0)
    found = {str(o): rng.permutation(np.flatnonzero(owner == o))[:most] for o in np.unique(owner)}
    return Scenario(name, x, y, {o: i for o, i in found.items() if len(i) > 1}, 0 if quantity else int(y.max()) + 1)


def digits(data: Path) -> Scenario:
    """scikit-learn's digits, six owners, each with another rotation."""
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits

    found = load_digits()
    owner = np.random.default_rng(0).integers(0, 6, len(found.target))
    turned = [
        rotate(image, 60 * k, reshape=False, order=1).ravel() for image, k in zip(found.images, owner, strict=True)
    ]
    return _scenario("digits", np.stack(turned), found.target, owner, 10**9)


def mnist(data: Path) -> Scenario:
    """MNIST's test images, every other pixel, six owners of 400 rows."""
    import pyarrow.parquet as pq
    from PIL import Image

    table = pq.read_table(next((data / "mnist").glob("test-*.parquet"))).slice(0, 2400)
    images = [
        np.asarray(Image.open(io.BytesIO(cell["bytes"])))[::2, ::2].ravel() for cell in table["image"].to_pylist()
    ]
    labels = np.array(table["label"].to_pylist())
    return _scenario("mnist", np.stack(images).astype(np.float64), labels, np.arange(len(labels)) % 6, 10**9)


SCENARIOS: dict[str, Callable[[Path], Scenario]] = {
    "heart": lambda d: read(d / "tables/heart_disease/heart_disease.csv", "disease", "hospital", ("split",)),
    "har": lambda d: read(d / "tables/har_smartphones/har_features.csv", "activity", "subject"),
    "exam": lambda d: read(d / "tables/schools/Exam.csv", "normexam", "school", ("student",)),
    "nlschools": lambda d: read(d / "tables/schools/nlschools.csv", "lang", "class"),
    "beijing": lambda d: read(
        d / "tables/beijing_air/beijing_air_daily.csv", "PM2.5", "station", ("year", "day", "PM10"), most=400
    ),
    "digits": digits,
    "mnist": mnist,
}


def train(x: Tensor, y: Tensor, test: Tensor, classes: int, models: int, seed: int, hidden: int = HIDDEN) -> Tensor:
    """`models` networks with one hidden layer, by momentum SGD; their outputs on the test rows (models, rows[, K]).

    x is (1 or models, n, inputs), y (1 or models, n), test (1 or models, rows, inputs).
    """
    g = torch.Generator().manual_seed(seed)
    n, inputs, out = x.shape[1], x.shape[2], classes or 1
    x, y = x.expand(models, -1, -1), y.expand(models, -1)
    weights = [
        torch.randn(models, inputs, hidden, generator=g) / math.sqrt(inputs),
        torch.zeros(models, 1, hidden),
        torch.randn(models, hidden, out, generator=g) / math.sqrt(hidden),
        torch.zeros(models, 1, out),
    ]
    velocity = [torch.zeros_like(w) for w in weights]
    batch, row = min(BATCH, n), torch.arange(models)[:, None]
    each, lr = n // batch, STEP["classes" if classes else "quantity"]
    steps = max(EPOCHS * each, FEWEST_STEPS)
    for step in range(steps):
        if step % each == 0:
            order = torch.rand(models, n, generator=g).argsort(1)
        i = order[:, step % each * batch : (step % each + 1) * batch]
        gradient = _gradient(weights, x[row, i], y[row, i], classes)
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2
        for w, v, d in zip(weights, velocity, gradient, strict=True):
            v.mul_(0.9).add_(d).add_(w, alpha=DECAY)
            w.sub_(v, alpha=rate)
    outputs = (test @ weights[0] + weights[1]).clamp(min=0) @ weights[2] + weights[3]
    return outputs if classes else outputs[..., 0]


def _gradient(weights: list[Tensor], x: Tensor, y: Tensor, classes: int) -> list[Tensor]:
    before = x @ weights[0] + weights[1]
    inside = before.clamp(min=0)
    outputs = inside @ weights[2] + weights[3]
    if classes:
        error = outputs.softmax(-1) - torch.nn.functional.one_hot(y.long(), classes)
    else:
        error = 2 * (outputs - y[..., None])
    error = error / x.shape[1]
    back = (error @ weights[2].transpose(1, 2)) * (before > 0)
    return [
        *(x.transpose(1, 2) @ back, back.sum(1, keepdim=True)),
        *(inside.transpose(1, 2) @ error, error.sum(1, keepdim=True)),
    ]


Outputs = dict[str, tuple[Ids, Floats]]  # owner -> its test rows, outputs (models, rows[, K])


def fit(s: Scenario, owner: str, train_rows: Ids, test_rows: Ids, models: int, seed: int) -> Floats:
    """Outputs of `models` twins of one owner."""
    kind = torch.long if s.classes else torch.float32
    x, test = (torch.tensor(s.x[i], dtype=torch.float32)[None] for i in (train_rows, test_rows))
    y = torch.tensor(s.y[train_rows], dtype=kind)[None]
    return train(x, y, test, s.classes, models, seed).double().numpy()


def halves(s: Scenario, models: int, splits: int) -> Iterator[Outputs]:
    """Twins trained on one half of every owner's rows and tested on the other, for several splits."""
    for split in range(splits):
        found = {}
        for k, (owner, ids) in enumerate(s.owners.items()):
            rows = np.random.default_rng([split, k]).permutation(ids)
            train_rows, test_rows = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            found[owner] = test_rows, fit(s, owner, train_rows, test_rows, models, 10_000 * split + k)
        yield found


def folded(s: Scenario, models: int, splits: int, folds: int) -> Iterator[tuple[Outputs, dict[str, Ids]]]:
    """Twins of every fold; outputs are put together so that every row is tested by models that did not see it."""
    for split in range(splits):
        found, which = {}, {}
        for k, (owner, ids) in enumerate(s.owners.items()):
            rows = np.random.default_rng([split, k]).permutation(ids)
            fold = np.arange(len(rows)) % folds
            outputs = np.zeros((models, len(rows), *((s.classes,) if s.classes else ())))
            for f in np.unique(fold):
                if (fold != f).any():
                    seed = 10_000 * split + 100 * k + int(f) + 5_000_000
                    outputs[:, fold == f] = fit(s, owner, rows[fold != f], rows[fold == f], models, seed)
            found[owner], which[owner] = (rows, outputs), fold
        yield found, which
