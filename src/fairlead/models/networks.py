"""Networks by name, sized to the data at hand."""

from collections.abc import Callable
from itertools import pairwise
from math import prod

import torch
from torch import nn

from fairlead.core.errors import InputError, nearest, require
from fairlead.core.several import Several


def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 128 units: FEDORA's network on the rotated data sets."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, classes)
    )


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 128 units: for tables, where it is as good as two layers and trains much faster."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 128), nn.ReLU(), nn.Linear(128, classes))


def lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """FEDORA's network for colour images: two 5x5 convolutions (16 and 32 maps), 120 and 84 units, the classes."""
    features, convolutions = _convolutions("lenet", shape, 16, 32)
    return nn.Sequential(
        *convolutions,
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The 4-layer network of the ConFREE tables: two 5x5 convolutions (32 and 64 maps), 512 units, the classes."""
    features, convolutions = _convolutions("cnn", shape, 32, 64)
    return nn.Sequential(*convolutions, nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, classes))


def mlp_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """As mlp, with BatchNorm after each hidden layer: for fedbn, and for inputs of different scale."""
    hidden = [
        layer for inputs in (prod(shape), 128) for layer in (nn.Linear(inputs, 128), nn.BatchNorm1d(128), nn.ReLU())
    ]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, classes))


def cnn_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """As cnn, with BatchNorm after each convolution."""
    features, (first, *rest) = _convolutions("cnn-norm", shape, 32, 64)
    second, *flat = rest[2:]
    layers = [first, nn.BatchNorm2d(32), *rest[:2], second, nn.BatchNorm2d(64), *flat]
    return nn.Sequential(*layers, nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, classes))


def mixed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Three architectures, client after client: one hidden layer of 128 units, two, or one of 32 units below 128."""
    n = prod(shape)
    bodies = ([n, 128], [n, 128, 128], [n, 32, 128])
    layers = [[layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())] for sizes in bodies]
    return Several([nn.Sequential(nn.Flatten(), *body) for body in layers], nn.Linear(128, classes))


def _convolutions(model: str, shape: tuple[int, ...], first: int, second: int) -> tuple[int, list[nn.Module]]:
    """Two 5x5 convolutions, each pooled; the numbers they give of a sample, and the layers up to there."""
    require(
        len(shape) == 3, f"model {model} needs images (channels, height, width), got samples of shape {shape}; use mlp"
    )
    channels, *sides = shape
    require(min(sides) >= 16, f"model {model} needs images of 16x16 or more, got {sides[0]}x{sides[1]}; use mlp")
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    # Pooling before ReLU gives the same values and rectifies a quarter of them.
    layers = [nn.Conv2d(channels, first, 5), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Conv2d(first, second, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    return second * height * width, layers


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "logistic": logistic,
    "wide": wide,
    "mlp": mlp,
    "lenet": lenet,
    "cnn": cnn,
    "mlp-norm": mlp_norm,
    "cnn-norm": cnn_norm,
    "mixed": mixed,
}


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The named network with initial weights that depend on the seed alone.

    "auto" is cnn for large images, mlp for small ones and wide for plain features.

    >>> sum(p.numel() for p in build("cnn", (3, 32, 32), 10, seed=0).parameters())
    878538
    """
    if name == "auto":
        image = len(shape) == 3 and min(shape[1:]) >= 16
        name = "cnn" if image else "wide" if len(shape) == 1 else "mlp"
    if name not in MODELS:
        raise InputError(f"model '{name}' is unknown; {nearest(name, MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](shape, classes)
