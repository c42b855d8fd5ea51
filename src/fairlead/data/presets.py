"""Scenarios with a name: the settings of the published tables, and a small one to begin with."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fairlead.core.errors import InputError, nearest
from fairlead.data.scenario import Scenario

_FEDORA = (128, 64, 277)  # train, validation and test samples of each client in the FEDORA experiments
_CONFREE = (0.7, 0.0, 0.3)  # the ConFREE experiments have no validation samples


def _rotated(data: str, **changes: Any) -> Scenario:
    # Tested on the published test part, as the released loader does; for MNIST it is the easier one.
    settings: dict[str, Any] = {"clients": 36, "samples": _FEDORA, "shift": "rotation", "angle": 10.0, "pool": "train"}
    return Scenario(data=data, **settings | changes)


def _dirichlet(data: str, fractions: tuple[float, float, float] = _CONFREE) -> Scenario:
    return Scenario(data=data, split="dirichlet", clients=20, beta=0.1, fractions=fractions)


def _pathological(data: str, classes: int) -> Scenario:
    return Scenario(data=data, split="pathological", clients=20, classes_per_client=classes, fractions=_CONFREE)


_ALL: dict[str, tuple[str, Scenario]] = {
    "rotated-digits": (
        "8x8 digits that need no download: 12 clients of unequal size, each turned 15 degrees further",
        Scenario(split="quantity", clients=12, skew=0.5, shift="rotation", angle=15.0, fractions=(0.5, 0.2, 0.3)),
    ),
    "rotated-mnist": (
        "MNIST as in FEDORA: 36 clients, each turned 10 degrees further, 128 train samples each",
        _rotated("mnist"),
    ),
    "rotated-fashion-mnist": (
        "Fashion-MNIST as in FEDORA: 36 clients, each turned 10 degrees further, 128 train samples each",
        _rotated("fashion_mnist"),
    ),
    "rotated-mnist-imbalanced": (
        "Rotated MNIST where client 18 has 100 times the train samples of the others",
        _rotated("mnist", big={18: 100}),
    ),
    "gtsrb-rotated": (
        "German traffic signs: 36 clients, each turned 10 degrees further, tested on the published test signs",
        # The published parts keep frames of one sign together, so test samples come from the test part alone.
        _rotated("gtsrb", samples=(256, 64, 128)),
    ),
    "cifar10-labels": (
        "CIFAR-10 with label shift as in FEDORA: 10 clients, 2 classes and 20 train samples each",
        Scenario(data="cifar10", split="consecutive", clients=10, samples=(20, 100, 1000), pool="train"),
    ),
    "cifar10-dirichlet": ("CIFAR-10 as in ConFREE: 20 clients, Dirichlet(0.1)", _dirichlet("cifar10")),
    "cifar10-pathological": ("CIFAR-10: 20 clients, 2 classes each", _pathological("cifar10", 2)),
    "cifar100-dirichlet": ("CIFAR-100: 20 clients, Dirichlet(0.1)", _dirichlet("cifar100")),
    "cifar100-pathological": ("CIFAR-100: 20 clients, 10 classes each", _pathological("cifar100", 10)),
    "flowers102-dirichlet": ("Flowers-102: 20 clients, Dirichlet(0.1)", _dirichlet("flowers102")),
    "flowers102-pathological": (
        "Flowers-102 as in ConFREE: 20 clients, 5 classes each",
        _pathological("flowers102", 5),
    ),
    "tiny-imagenet-dirichlet": ("Tiny-ImageNet: 20 clients, Dirichlet(0.1)", _dirichlet("tiny-imagenet")),
    "tiny-imagenet-pathological": (
        "Tiny-ImageNet: 20 clients, 20 classes each",
        _pathological("tiny-imagenet", 20),
    ),
    "fashion-mnist-dirichlet": (
        "Fashion-MNIST as in PFLlib's leaderboard: 20 clients, Dirichlet(0.1), a quarter of the samples for tests",
        _dirichlet("fashion_mnist", (0.75, 0.0, 0.25)),
    ),
    "pacs": (
        "PACS: photos, art, cartoons and sketches as four clients; needs a folder with a domain column",
        Scenario(data="pacs", split="column", column="domain", clients=4, fractions=(0.6, 0.2, 0.2)),
    ),
    "yearbook": (
        "Yearbook portraits by year: 11 clients of neighbouring years; needs a folder with a year column",
        Scenario(data="yearbook", split="column", column="year", clients=11, fractions=(0.6, 0.2, 0.2)),
    ),
}

PRESETS: dict[str, Scenario] = {name: preset for name, (_, preset) in _ALL.items()}
ABOUT: dict[str, str] = {name: about for name, (about, _) in _ALL.items()}


def scenario(name: str = "rotated-digits", **overrides: Any) -> Scenario:
    """A preset by its name, with some fields replaced.

    >>> scenario("cifar10-dirichlet", clients=60).clients
    60
    """
    if name not in PRESETS:
        raise InputError(f"unknown scenario '{name}'; {nearest(name, PRESETS)}")
    valid = [field.name for field in fields(Scenario)]
    for field in overrides:
        if field not in valid:
            raise InputError(f"a scenario has no '{field}'; {nearest(field, valid)}")
    return replace(PRESETS[name], **overrides)
