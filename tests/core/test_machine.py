"""Blank tensors are what `new_empty` would give, at whole cache lines."""

import pytest
import torch

from fairlead.core.machine import blank


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(3, 5), (0, 7), (2, 0), (1,), (2, 3, 4)])
def test_blank(dtype, shape):
    x = blank(torch.ones(1, dtype=dtype), *shape)
    assert x.shape == shape
    assert x.dtype == dtype
    assert x.is_contiguous()
    assert x.data_ptr() % 64 == 0
    x.fill_(1)
    assert x.sum() == x.numel()
