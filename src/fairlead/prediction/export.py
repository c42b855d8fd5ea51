"""One owner's model as a folder of its own, to be used wherever torch and fairlead are installed.

model.safetensors  the weights
model.json         the network, how raw rows become samples, classes and units, and the versions that made it
README.md          a model card: what it predicts, trained on what, how good it was on test rows
use.py             a program that loads it and predicts
model.onnx         the network alone, where the optional packages are installed: pip install 'fairlead[onnx]'
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fairlead.core import RunError, require
from fairlead.core.files import atomically, write_text
from fairlead.core.targets import KINDS
from fairlead.prediction.predict import (
    BALANCED,
    CONTROL,
    Choice,
    Predictor,
    choose_run,
    load_run,
    owners_in,
    recommended,
)
from fairlead.runs.deployment import Deployment, Factory
from fairlead.runs.files import read_json, read_object, write_json
from fairlead.runs.identity import versions
from fairlead.runs.run import DECISION
from fairlead.runs.summary import Summary, Way, read_summary

FORMAT = 1
USE = '''"""Predictions for a table of raw rows: python use.py new.csv"""

import sys
from pathlib import Path

import fairlead

model = fairlead.load_model(Path(__file__).parent)
print(model(sys.argv[1]).to_csv(index=False), end="")
'''


def export(
    folder: Path, owner: str, to: Path, method: str | None = None, fold: int | None = None
) -> tuple[Predictor, list[str]]:
    """Write an owner's model of a comparison as a folder; the model, and sentences on what was written."""
    require(not to.exists() or (to.is_dir() and not any(to.iterdir())), f"{to} is not empty; name a new folder")
    common = owners_in(folder)
    client = common.client(owner)
    choice = choose_run(folder, common.owners[client], method, fold)
    found = load_run(choice.run, client)
    predictor = Predictor(found.deployment.only(client), 0, found.module)
    write_model(to, predictor)
    summary = read_summary(folder)
    onnx = _write_onnx(predictor, to / "model.onnx")
    write_text(to / "README.md", card(summary, predictor, choice, onnx))
    lacking = [] if onnx else ["model.onnx is not written: pip install 'fairlead[onnx]' brings what it needs"]
    return predictor, [choice.said, *lacking]


def write_model(to: Path, predictor: Predictor) -> None:
    """The model with all that `load_model` needs, and a program that uses it."""
    weights = {name: x.detach().clone().contiguous() for name, x in predictor.module.state_dict().items()}
    atomically(to / "model.safetensors", lambda path: save_file(weights, path))
    write_json(to / "model.json", {"format": FORMAT, **predictor.deployment.to_json(), "versions": versions()})
    write_text(to / "use.py", USE)


def load_model(folder: Path | str, model: Factory | None = None) -> Predictor:
    """The model that `fairlead export` wrote: call it with raw rows, and it gives a data frame of predictions.

    `model` is the function that made the network, where it was one of your own.
    """
    folder = Path(folder)
    plain = read_object(folder / "model.json")
    if plain.get("format") != FORMAT:
        raise RunError(f"{folder / 'model.json'} has format {plain.get('format')}, expected {FORMAT}; export it again")
    deployment = Deployment.from_json({k: v for k, v in plain.items() if k not in ("format", "versions")})
    module, weights = deployment.network(model), folder / "model.safetensors"
    try:
        module.load_state_dict(load_file(weights))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{weights} does not hold the weights of this network ({reason}); export it again") from error
    return Predictor(deployment, 0, module)


def _write_onnx(predictor: Predictor, path: Path) -> bool:
    """The network as ONNX, (n, ...) samples to (n, outputs), if the packages for it are there."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript")):
        return False
    samples = torch.zeros(2, *predictor.deployment.shape)
    exporter = logging.getLogger("torch.onnx")
    before = exporter.level
    exporter.setLevel(logging.ERROR)  # it tells which packages for other networks are not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                predictor.module,
                (samples,),
                input_names=["samples"],
                output_names=["outputs"],
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("rows", min=1)},),
                verbose=False,
            )
            assert program is not None  # as there is no path to write to
            atomically(path, lambda temporary: program.save(temporary, external_data=False))
    finally:
        exporter.setLevel(before)
    return True


def card(summary: Summary, predictor: Predictor, choice: Choice, onnx: bool) -> str:
    """The model card."""
    d, owner = predictor.deployment, predictor.owner
    what = " and ".join(d.labels) or "the target"
    risk = "a risk, higher for an earlier event; only the order and the differences of risks mean something"
    told = {"class": f"one of {', '.join(d.classes)}", "survival": risk}.get(d.kind, KINDS[d.kind].words)
    network = f"the network `{d.model}`" if d.model else "a network of the owner's own program"
    if d.tool is not None:
        network = f"what the standard tool `{choice.method}` fitted ({_way(summary, choice)['title']}), as a network"
    alone = d.tool is not None or choice.method == CONTROL
    other = ", alone" if alone else ", together with other owners whose rows stayed with them"
    network_only = (
        "\n`model.onnx` is the network alone: it takes prepared samples (`model.samples(rows)`) and gives what stands "
        "before probabilities and units (`model.outputs(rows)`).\n"
    )
    return f"""# {what} for {owner}

Predicts {what} ({told}) from rows of a table, for {owner}.

## Use

    python use.py new.csv

or from Python:

    import fairlead
    model = fairlead.load_model("{"DIR"}")
    print(model("new.csv"))

It needs torch and fairlead {versions()["fairlead"]} or later.
{network_only if onnx else ""}
## Training

Trained by the method `{choice.method}` on {d.train_rows[0]} rows of {owner}{other}. The model is {network}.
Which one this is: {choice.said}.{_decided(choice, owner)}{
        f'''
In training, {BALANCED}.'''
        if d.balanced
        else ""
    }

## Score on test rows

{_score(summary, owner, choice)}

## Columns

{_columns(d)}

## Intended use and limits

For rows that come about as those of {owner} did: the same kind of cases, measured in the same way. Nothing is known of
how good it is for other owners or after the data have changed. Predictions are estimates and no ground for a decision
about a person without somebody who answers for it. Check it on new rows with known answers before you rely on it.

## Licence

The owner of the data decides on it and writes it here.
"""


def _decided(choice: Choice, owner: str) -> str:
    """What the owner decided to deploy, where that was decided after training."""
    if not (choice.run / DECISION).exists():
        return ""
    found = read_json(choice.run / DECISION)
    one = next(client for client in found["clients"] if client["name"] == owner)
    what = {"stack": "several models weighed", "local": "the owner's own model"}.get(one["deploys"], one["deploys"])
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in one["weights"].items())
    of, worse = ("another", one["declined"]["worse"]) if "declined" in one else ("it", one["worse"])
    risk = f" The estimated chance of being worse than alone with {of}: {worse:.0%}."
    return f"\nDecided on rows that no model had learned from: {what} (weights: {weights}).{risk}"


def _score(summary: Summary, owner: str, choice: Choice) -> str:
    """How good the method was for this owner, with the verdict."""
    entry = next(one for one in summary["methods"][CONTROL]["clients"] if one["name"] == owner)
    found, way = summary["findings"], _way(summary, choice)
    score = way["scores"][found["owners"].index(owner)]
    told = "no score: it cannot be computed on these rows" if score is None else f"{score:.4f}"
    lines = [f"{found['metric']}: {told}, on {entry['n_test']} rows that the scored models had not seen in training."]
    verdict = next((one for one in way["verdicts"] if one["owner"] == owner), None)
    if choice.method == found["bar"]:
        lines.append("It is the best of the ways to train alone, which the others are compared with.")
    if verdict is not None:
        against = f"Against the best that {owner} can do alone ({found['bar']})"
        lines.append(f"{against}: {verdict['verdict']}. {verdict['why']}")
        lines += _span(verdict, summary["settings"].get("level", 0.95))
    advised = recommended(summary, owner)
    if advised not in (None, choice.method):
        lines.append(f"The comparison recommends `{advised}` to {owner}.")
    if {**summary["methods"], **summary.get("tools", {})}[choice.method].get("all_rows"):
        lines.append("The scores are of the folds' models, each tested on rows it did not learn from.")
    return "\n".join(lines)


def _way(summary: Summary, choice: Choice) -> Way:
    """What was found of the way to train that the model is from."""
    return next(one for one in summary["findings"]["ways"] if one["name"] == choice.method)


def _span(verdict: Mapping[str, Any], level: float) -> list[str]:
    """The gain with its interval, where it has one."""
    gain, low, high = (verdict[key] for key in ("gain", "lower", "upper"))
    if low is None or high is None:
        return []
    return [f"The gain is {gain:+.4f}, between {low:+.4f} and {high:+.4f} (at {100 * level:g}%)."]


def _columns(d: Deployment) -> str:
    """What the rows must hold."""
    if d.preparation is None:
        return f"None: it takes tensors of shape (n, {', '.join(map(str, d.shape))})."
    lines = ["| column | holds |", "| --- | --- |"]
    for feature in d.preparation.features:
        values = f": {', '.join(feature.categories)}" if feature.categories else ""
        lines.append(f"| {feature.name} | {feature.role}{values} |".replace("\n", " "))
    return "\n".join([*lines, "", "Columns may come in any order, cells may be empty; further columns are not used."])
