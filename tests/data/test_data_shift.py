"""Rotation agrees with exact quarter turns and with Pillow."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fairlead.data import rotate


@pytest.fixture
def images() -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(1, 256, (4, 3, 28, 28), dtype=np.uint8))


@pytest.mark.parametrize("size", [7, 8])
def test_quarter_turns_are_exact(size: int) -> None:
    x = torch.rand(2, 1, size, size)
    for turns in range(-4, 9):
        assert torch.equal(rotate(x, 90 * turns), torch.rot90(x, turns, (-2, -1)))


@pytest.mark.parametrize("size", [27, 28])
# Not 45 degrees: there a whole line of pixel centres falls between two pixels, and either is the nearest.
@pytest.mark.parametrize("degrees", [10, 30, 50, 100, 217.5, 350, -20])
def test_as_pillow_does(images: Tensor, degrees: float, size: int) -> None:
    images = images[..., :size, :size]
    ours = rotate(images, degrees)
    for image, turned in zip(images, ours, strict=True):
        pillow = Image.fromarray(image.permute(1, 2, 0).numpy()).rotate(degrees, Image.Resampling.NEAREST)
        assert (torch.from_numpy(np.array(pillow)).permute(2, 0, 1) == turned).float().mean() >= 0.99


def test_input_is_untouched_and_corners_are_zero(images: Tensor) -> None:
    before = images.clone()
    turned = rotate(images, 45)
    assert torch.equal(images, before)
    assert (turned[..., 0, 0] == 0).all()
    assert rotate(images[..., :20], 90).shape == (4, 3, 28, 20)
