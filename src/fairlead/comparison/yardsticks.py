"""What an owner would do alone with standard tools: the most common answer, a linear model, boosted trees.

LOCAL is the network of the comparison, trained alone. A table's owner has simpler and often better ways: these. Each is
fitted for every client on its own rows and no others. Its settings are chosen on the client's validation rows; then it
is fitted again on train and validation rows together, and gives its answers for the test rows. Its answers for the
validation rows, by which the bar is chosen, come from settings that were chosen without them: what is best on a handful
of rows is best there by luck, too.

name       classes                         quantities                survival times
majority   the client's class shares       the client's mean         the same risk for all
linear     logistic regression             ridge regression          Cox regression, with an l2 penalty
trees      gradient-boosted trees          gradient-boosted trees    -

Several labels are fitted one by one. Where the comparison balances classes, so do these. Cost: seconds for a few
thousand rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from fairlead.core import Layout, RunError
from fairlead.core.surroundings import unchanged
from fairlead.core.types import Federation, Split
from fairlead.models import Tool
from fairlead.models.tools import FLOOR

Rows = NDArray[np.float64]

TITLES = {
    "classes": {"majority": "most common class", "linear": "logistic regression", "trees": "boosted trees"},
    "quantity": {"majority": "mean of the train rows", "linear": "ridge regression", "trees": "boosted trees"},
    "survival": {"majority": "the same risk for all", "linear": "Cox regression"},
}
NAMES = ("majority", "linear", "trees")
VERSION = 3  # raise it with every change that gives the same rows other outputs
PENALTIES = (1.0, 0.1, 10.0, 0.01)  # of the linear model; the first that is best, so a usual one where nothing tells
PARTS = 5  # of the validation rows: each is answered with the settings that the others choose
LEAVES = (4, 15)  # of a tree
SMALL = 500  # rows: below, trees are grown on coarser bins, in fewer steps and with few leaves
TREES = 50  # at most, on few rows; twice as many on more


@dataclass(frozen=True)
class Yardstick:
    """One standard tool, fitted by every client alone; outputs are logarithms of probabilities, or quantities."""

    name: str
    title: str
    validation: list[Tensor]  # by client, (n, K): fitted on train rows, with settings chosen on other validation rows
    test: list[Tensor]  # by client, (n, K): what its model answers
    settings: list[str]  # what each client chose
    models: Tensor  # (N, D): fitted on train and validation rows, the vector of a `Tool` for each client
    size: dict[str, int]  # of this `Tool`


def yardsticks(federation: Federation, refit: Federation, balance: bool = False) -> list[Yardstick]:
    """Fit every yardstick. In `refit` the validation rows of `federation` have joined the train rows.

    `balance` gives every class the same weight. Samples that are not plain features, images say, are measured against
    the most common answer alone.
    """
    plain = federation.train.x.dim() == 2 and federation.train.x.is_floating_point()
    titles = TITLES["classes" if federation.classes else federation.target_kind]
    names = titles if plain else ("majority",)
    return [_yardstick(_Kind(name, titles[name], balance), federation, refit) for name in names]


def pooled(federation: Federation) -> Federation:
    """All clients' rows in one place: a federation of one client, its rows in the same order."""

    def together(split: Split) -> Split:
        return replace(split, starts=torch.tensor([0, len(split.y)]))

    parts = (together(s) for s in (federation.train, federation.validation, federation.test))
    train, validation, test = parts
    return replace(federation, train=train, validation=validation, test=test, names=("all",))


class _Kind(NamedTuple):
    """Which tool, and whether every class weighs the same in it."""

    name: str
    title: str
    balance: bool


def _yardstick(tool: _Kind, federation: Federation, refit: Federation) -> Yardstick:
    # Of few rows, threads would wait for each other longer than they work.
    few = int(refit.train.sizes.max()) < 10 * SMALL
    with threadpool_limits(1 if few else None):
        found = [_alone(tool, federation, refit, k) for k in range(federation.clients)]
    validation, fitted, settings = (list(column) for column in zip(*found, strict=True))
    models, size = _models(fitted, refit)
    test = [_answers(models[k], size, refit, k) for k in range(refit.clients)]
    return Yardstick(tool.name, tool.title, validation, test, settings, models, size)


def _alone(tool: _Kind, federation: Federation, refit: Federation, client: int) -> tuple[Tensor, list[_Fitted], str]:
    """One client's outputs on its validation rows, what it fitted (once, or for each label), and its settings."""
    (x, y), (vx, vy) = (_numbers(s, client) for s in (federation.train, federation.validation))
    wx, wy = _numbers(refit.train, client)
    classes, parts = len(federation.classes), _parts(federation.validation, client)
    if classes == 0 or y.ndim == 1:
        outputs, fitted, words = _one(tool, classes, (x, y), (vx, vy), parts, (wx, wy))
        every = [fitted]
    else:  # several labels, each of them yes or no: its log-odds, as a network gives them
        each = [_one(tool, 2, (x, y[:, j]), (vx, vy[:, j]), parts, (wx, wy[:, j])) for j in range(y.shape[1])]
        outputs, every = np.stack([one[0][:, 1] - one[0][:, 0] for one in each], 1), [one[1] for one in each]
        words = "; ".join(dict.fromkeys(one[2] for one in each))
    return torch.from_numpy(outputs).to(torch.get_default_dtype()), every, words


def network(federation: Federation, size: Mapping[str, int]) -> Tool:
    """What a tool becomes, with any weights."""
    return Tool(federation.outputs, federation.target_kind, **size)


def _models(fitted: Sequence[Sequence[_Fitted]], federation: Federation) -> tuple[Tensor, dict[str, int]]:
    """Every client's network as a vector, (N, D), and the size that all of them have."""
    grown = [tree for each in fitted for one in each for stage in one.trees() for tree in stage]
    size = {
        "features": _features(federation.train.x).shape[1],
        "trees": max((len(one.trees()) for each in fitted for one in each), default=0),
        "nodes": max((len(tree) for tree in grown), default=1),
    }
    rows = []
    for each in fitted:
        made = network(federation, size)
        with torch.no_grad():
            for label, one in enumerate(each):
                one.write(made, label if federation.target_kind == "labels" else None)
        rows.append(Layout(made).read(made))
    return torch.cat(rows), size


def _answers(model: Tensor, size: Mapping[str, int], federation: Federation, client: int) -> Tensor:
    """What a client's network gives for its test rows."""
    made = network(federation, size)
    with torch.no_grad():
        found: Tensor = Layout(made).write(model, made)(federation.test.client(client)[0])
    return found


def _parts(split: Split, client: int) -> NDArray[np.int64]:
    """The part that each row of a client belongs to; the rows of a group are in one."""
    a, b = int(split.starts[client]), int(split.starts[client + 1])
    groups = split.groups[a:b].numpy() if len(split.groups) else np.arange(b - a)
    return np.asarray(np.unique(groups, return_inverse=True)[1] % PARTS, dtype=np.int64)


def _one(
    tool: _Kind,
    classes: int,
    train: tuple[Rows, Rows],
    check: tuple[Rows, Rows],
    parts: NDArray[np.int64],
    refit: tuple[Rows, Rows],
) -> tuple[Rows, _Fitted, str]:
    """Choose on the `check` rows, fit again on the `refit` rows.

    Also answers for the check rows, for each part of them with the settings that the others choose.
    """
    x, y = check
    weights = _weights(classes, train[1], y) if tool.balance else np.ones(len(y))
    settings, answers = zip(*_tried(tool, classes, train, x), strict=True)

    def best(rows: NDArray[np.bool_]) -> int:
        return int(np.argmin([_loss(classes, y[rows], tried[rows], weights[rows]) for tried in answers]))

    unseen = answers[0].copy()
    for part in np.unique(parts):
        unseen[parts == part] = answers[best(parts != part)][parts == part]
    chosen = settings[best(np.ones(len(y), dtype=bool))]
    words = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
    return unseen, _fit(tool, classes, *refit, **chosen), words


def _tried(tool: _Kind, classes: int, train: tuple[Rows, Rows], x: Rows) -> Iterator[tuple[dict[str, Any], Rows]]:
    """The settings that are tried, and the answers of each for the rows x."""
    if tool.name == "majority":
        yield {}, _fit(tool, classes, *train).predict(x)
    elif tool.name == "linear":
        for penalty in PENALTIES:
            yield {"penalty": penalty}, _fit(tool, classes, *train, penalty=penalty).predict(x)
    else:
        few = len(train[1]) < SMALL
        most = TREES if few else 2 * TREES
        for leaves in LEAVES[:1] if few else LEAVES:
            stages = _fit(tool, classes, *train, leaves=leaves, trees=most).stages(x)
            for trees in (most // 5, most // 2, most):
                yield {"trees": trees, "leaves": leaves}, stages[min(trees, len(stages)) - 1]


@dataclass(frozen=True)
class _Fitted:
    """A fitted tool. Without a model (one class only, say) it answers the same for every row."""

    same: Rows  # (K,) log-probabilities, or (1,) the mean
    model: Any = None
    kinds: NDArray[np.int64] | None = None  # the classes the model knows; None for quantities

    def predict(self, x: Rows) -> Rows:
        """Log-probabilities (n, K), or quantities (n, 1)."""
        if self.model is None or not len(x):
            return np.tile(self.same, (len(x), 1))
        return self._answers(self.model.predict(x) if self.kinds is None else self.model.predict_proba(x))

    def stages(self, x: Rows) -> list[Rows]:
        """The answers of the first tree, the first two, and so on."""
        if self.model is None or not len(x):
            return [self.predict(x)]
        staged = self.model.staged_predict if self.kinds is None else self.model.staged_predict_proba
        return [self._answers(raw) for raw in staged(x)]

    def _answers(self, raw: Rows) -> Rows:
        if self.kinds is None:
            return raw[:, None]
        shares = np.full((len(raw), len(self.same)), FLOOR)
        shares[:, self.kinds] = np.maximum(raw, FLOOR)
        return np.asarray(np.log(shares / shares.sum(1, keepdims=True)))

    def trees(self) -> list[list[NDArray[Any]]]:
        """The nodes of its trees: for each stage one tree for every score."""
        if self.model is None or self._is_linear():
            return []
        try:  # scikit-learn has no public way to read them
            return [[tree.nodes for tree in stage] for stage in self.model._predictors]
        except AttributeError as error:
            raise RunError(
                f"this scikit-learn keeps boosted trees in another way ({error}); install one from 1.4 to 1.9"
            ) from error

    def _is_linear(self) -> bool:
        return hasattr(self.model, "coef_")

    def _linear(self) -> tuple[Rows, Rows]:
        """Weights (scores, features), or (1, 1) where there are none, and a constant for each score."""
        if self._is_linear():
            return np.atleast_2d(self.model.coef_), np.atleast_1d(self.model.intercept_)
        return np.zeros((1, 1)), np.ravel(self.model._baseline_prediction)

    def write(self, made: Tool, label: int | None) -> None:
        """Copy it into a network: into all of it, or into one label's outputs."""
        if self.model is None:
            same = torch.from_numpy(self.same).to(made.bias)
            if label is None:
                made.bias.copy_(same)
            else:
                made.bias[label] = same[1] - same[0]
            return
        weights, bias = self._linear()
        at = [label or 0]
        if label is None and self.kinds is not None:
            at = self.kinds[-len(bias) :].tolist()  # of two classes a tool has one score, that of the second
            made.known.zero_()
            made.known[self.kinds] = 1
        made.weight[at] = torch.from_numpy(weights).to(made.weight)
        made.bias[at] = torch.from_numpy(bias).to(made.bias)
        for t, stage in enumerate(self.trees()):
            for place, nodes in zip(at, stage, strict=True):
                _write_tree(made, t, place, nodes)


def _write_tree(made: Tool, stage: int, place: int, nodes: NDArray[Any]) -> None:
    """Copy a tree of scikit-learn's."""
    here, leaf = np.arange(len(nodes)), nodes["is_leaf"].astype(bool)
    threshold = nodes["num_threshold"].astype(np.float32)
    # Rounded down: rows are in single precision, and none of them changes sides.
    threshold = np.where(threshold > nodes["num_threshold"], np.nextafter(threshold, np.float32(-np.inf)), threshold)
    columns = {
        "feature": np.where(leaf, 0, nodes["feature_idx"]),
        "threshold": np.where(leaf, 0, threshold),
        "left": np.where(leaf, here, nodes["left"]),
        "right": np.where(leaf, here, nodes["right"]),
        "value": np.where(leaf, nodes["value"], 0),
    }
    for name, values in columns.items():
        made.get_buffer(name)[stage, place, : len(nodes)] = torch.from_numpy(values.astype(np.float32))


def _fit(tool: _Kind, classes: int, x: Rows, y: Rows, **settings: Any) -> _Fitted:
    """The tool, fitted to these rows."""
    kinds: NDArray[np.int64] | None = None
    target: NDArray[Any] = y
    if classes:
        found = y.astype(np.int64)
        same = np.log((np.bincount(found, minlength=classes) + 1) / (len(y) + classes))
        kinds, target = np.unique(found, return_inverse=True)
        simple = tool.name == "majority" or len(kinds) < 2
    elif y.ndim == 2:  # survival times
        same = np.zeros(1)
        simple = tool.name == "majority" or not y[:, 1].any()
    else:
        same = np.array([y.mean() if len(y) else 0.0])
        simple = tool.name == "majority" or len(y) < 2
    if simple:
        return _Fitted(same)
    with unchanged():
        from sklearn.exceptions import ConvergenceWarning

    model = CoxRegression(**settings) if y.ndim == 2 else _model(tool, len(y), classes=classes > 0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes")  # many classes among few rows are classes
        model.fit(x, target)
    return _Fitted(same, model, kinds)


def _model(tool: _Kind, n: int, *, classes: bool, penalty: float = 1.0, leaves: int = 4, trees: int = 50) -> Any:
    # Here, since they take a second to import, and whoever imports fairlead would wait for it.
    with unchanged():
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.linear_model import LogisticRegression, Ridge

    balanced = {"class_weight": "balanced"} if tool.balance else {}
    if tool.name == "linear":
        return LogisticRegression(C=1 / penalty, max_iter=300, **balanced) if classes else Ridge(alpha=10 * penalty)
    # A split looks at half of the columns, which is quicker and seldom worse.
    common: dict[str, Any] = balanced | {
        "max_iter": trees,
        "max_leaf_nodes": leaves,
        "max_features": 0.5,
        "learning_rate": 0.2,
        "random_state": 0,
    }
    common |= {"min_samples_leaf": 3, "max_bins": 32} if n < SMALL else {"min_samples_leaf": 10}
    boosted: Any = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return boosted(early_stopping=False, **common)


def _numbers(split: Split, client: int) -> tuple[Rows, Rows]:
    x, y = split.client(client)
    return _features(x).to(torch.float64).numpy(), y.to(torch.float64).numpy()


def _features(x: Tensor) -> Tensor:
    """The samples as rows of features; nothing looks at an image here."""
    return x if x.dim() == 2 and x.is_floating_point() else x.flatten(1)[:, :0].float()


def _weights(classes: int, train: Rows, y: Rows) -> Rows:
    """What each row counts where every class of the train rows weighs the same."""
    counts = np.bincount(train.astype(np.int64), minlength=classes)
    return np.asarray(len(train) / np.maximum(counts, 1) / max((counts > 0).sum(), 1))[y.astype(np.int64)]


def _loss(classes: int, y: Rows, answers: Rows, weights: Rows) -> float:
    """Mean log loss, squared error or partial likelihood; without rows nothing tells the settings apart."""
    if not len(y):
        return 0.0
    if y.ndim == 2:
        return partial_likelihood(answers[:, 0], y)[0]
    if not classes:
        return float(np.square(answers[:, 0] - y).mean())
    return float(-(weights * answers[np.arange(len(y)), y.astype(np.int64)]).mean())


def partial_likelihood(risk: Rows, y: Rows) -> tuple[float, Rows]:
    """Minus the logarithm of Cox's partial likelihood (Breslow's for ties), and its gradient in the risks (n,)."""
    order = np.argsort(-y[:, 0], kind="stable")  # who lasted longest comes first
    time, event, f = -y[order, 0], y[order, 1], risk[order]
    e = np.exp(f - f.max())
    # Of equal times all are still there: the sum reaches to the last of them, and they share its terms.
    last, first = (np.searchsorted(time, time, side) for side in ("right", "left"))
    there = np.cumsum(e)[last - 1]
    terms = np.cumsum((event / there)[::-1])[::-1]
    gradient = np.empty(len(f))
    gradient[order] = e * terms[first] - event
    return float((event * (np.log(there) + f.max() - f)).sum()), gradient


class CoxRegression:
    """A linear risk with the largest partial likelihood, less `penalty` / 2 times the squared weights."""

    def __init__(self, penalty: float = 1.0) -> None:
        self.penalty, self.coef_, self.intercept_ = penalty, np.zeros(0), 0.0

    def fit(self, x: Rows, y: Rows) -> None:
        """Find the weights."""

        def value(w: Rows) -> tuple[float, Rows]:
            loss, gradient = partial_likelihood(x @ w, y)
            return loss + self.penalty / 2 * float(w @ w), x.T @ gradient + self.penalty * w

        self.coef_ = minimize(value, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x

    def predict(self, x: Rows) -> Rows:
        """The risks of rows, (n,)."""
        return np.asarray(x @ self.coef_)
