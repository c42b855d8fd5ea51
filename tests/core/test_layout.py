"""The vector and the module are two views of the same numbers."""

import pytest
import torch
from torch import nn

from fairlead.core import BodyAndHead, InputError, Layout


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))


def test_read_and_write_are_inverse_and_carry_buffers() -> None:
    a, b = net(), net()
    a(torch.randn(5, 1, 6, 6))  # moves the running statistics
    layout = Layout(a)
    layout.write(layout.read(a)[0], b)
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(a.eval()(x), b.eval()(x))
    assert layout.size == layout.trainable + 4  # two running means, two running variances


def test_parts_cover_the_vector_and_join_restores_it() -> None:
    module = net()
    layout = Layout(module)
    rows = torch.randn(3, layout.size)
    body, head = layout.body, layout.head
    assert head.names == ("4.weight", "4.bias")
    assert body.size + head.size == layout.size
    joined = layout.join((body, rows[:, body.columns]), (head, rows[:, head.columns]))
    assert torch.equal(joined, rows)
    assert layout.norms.size == 8
    assert list(layout.layers) == ["0", "1", "4"]


def test_join_refuses_parts_that_leave_a_gap() -> None:
    layout = Layout(net())
    with pytest.raises(InputError, match="do not cover"):
        layout.join((layout.head, torch.zeros(1, layout.head.size)))


def test_per_layer_spreads_scores_and_leaves_buffers_alone() -> None:
    layout = Layout(net())
    spread = layout.per_layer(torch.tensor([[1.0, 2.0, 3.0]]))
    assert set(spread[0, layout.head.columns].tolist()) == {3.0}
    assert float(spread[0, layout.trainable :].abs().sum()) == 0.0


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(InputError, match="no parameters"):
        Layout(nn.ReLU())


def test_cut_computes_the_same_function() -> None:
    module = net().eval()
    cut = BodyAndHead(module).eval()
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(cut(x), module(x))
    assert Layout(cut).head.names == ("head.weight", "head.bias")
