"""Where numbers live.

Models, samples and messages are on the device, which is the CPU unless a run says otherwise. Who took part, which
cluster a client is in and other whole numbers that steer the server are on the host. Draws are made on the host and
moved, so that the same seed gives the same draws on every device.
"""

from __future__ import annotations

import copy
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fairlead.core.errors import nearest, require
from fairlead.core.types import Named

Device = Literal["auto", "cpu", "cuda", "mps"]
DEVICES: tuple[Device, ...] = get_args(Device)


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one, else the CPU.

    >>> find_device("cpu")
    device(type='cpu')
    """
    require(name in DEVICES, f"device '{name}' is unknown; {nearest(name, DEVICES)}")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(n for n, found in there.items() if found))
    require(there[name], f"device '{name}' is not available to PyTorch on this machine; use --device auto or cpu")
    return torch.device(name)


def on_host(x: Tensor) -> Tensor:
    """The tensor on the CPU, to read its values there. This waits for the device: never in a step of local training.

    All reads go through here. There are few: a server's small problems, solved on the host; a search that stops by its
    own losses (FedALA); what is written to files and tables.
    """
    return x.cpu()


def module_on(module: nn.Module, device: torch.device) -> nn.Module:
    """The module, or a copy of it on the device."""
    return module if device.type == "cpu" else copy.deepcopy(module).to(device)


def to_device(rows: Named, device: torch.device) -> Named:
    """Rows of numbers on the device; whole numbers stay on the host."""
    return {n: x.to(device) if x.is_floating_point() else x for n, x in rows.items()}


def to_host(rows: Named) -> Named:
    """All rows on the CPU."""
    return {n: on_host(x) for n, x in rows.items()}


def widest(device: torch.device) -> torch.dtype:
    """The dtype for sums that must not lose digits: double, except on MPS, which has none."""
    return torch.float32 if device.type == "mps" else torch.float64
