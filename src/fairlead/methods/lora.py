"""Adapters, `METHOD+lora` (LoRA, Hu et al., ICLR 2022): small matrices are trained and sent, and not the network.

paper   here      meaning
W_0     frozen    weight of a linear or convolutional layer, at its initial values; so is its bias
B, A    up, down  matrices of rank r beside it, in place of which the method would have W; B starts at zero
r       rank      their rank
α/r     scale     the layer has the weight W_0 + scale B A

Cost: the initial network kept per client; what the method trains and sends is the adapters, the head and the
normalisation layers, in place of the whole model.
It is meant for a network that has learned something before: `compare(["fedavg+lora"], model=my_pretrained)`. Beside
random weights, little can be learned. The last layer is trained whole, as usual. LOCAL, the control, trains the whole
network.
"""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, linear

from fairlead.core import Layout, Method, Named, Part, Task, require
from fairlead.core.dropout import replace_layers

FROZEN = ("frozen_weight", "frozen_bias")


class Adapted(nn.Module):
    """A layer whose weight is its first one plus a product of two small matrices."""

    frozen_weight: Tensor
    frozen_bias: Tensor | None

    def __init__(self, layer: nn.Linear | nn.Conv1d | nn.Conv2d, rank: int, scale: float) -> None:
        super().__init__()
        weight, bias = layer.weight.detach().clone(), layer.bias
        self.register_buffer("frozen_weight", weight)
        self.register_buffer("frozen_bias", None if bias is None else bias.detach().clone())
        rank = min(rank, len(weight), weight[0].numel())
        self.down = nn.Parameter(torch.empty(rank, weight[0].numel()))
        self.up = nn.Parameter(torch.zeros(len(weight), rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as LoRA's own code and nn.Linear do
        self.scale = scale
        self.kind = type(layer)
        self.how = {} if isinstance(layer, nn.Linear) else {n: getattr(layer, n) for n in CONVOLUTION}

    def forward(self, x: Tensor) -> Tensor:
        weight = self.frozen_weight + self.scale * (self.up @ self.down).view_as(self.frozen_weight)
        return LAYERS[self.kind](x, weight, self.frozen_bias, **self.how)


CONVOLUTION = ("stride", "padding", "dilation", "groups")
LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {nn.Linear: linear, nn.Conv1d: conv1d, nn.Conv2d: conv2d}


def lora(method: Method, *, rank: int = 4, scale: float = 2.0) -> Method:
    """The network stays as it began; small matrices beside its layers are trained and sent."""
    require(rank >= 1, f"lora: rank must be >= 1, got {rank}; leave +lora out for none")
    require(scale > 0, f"lora: scale must be > 0, got {scale}")

    def wrap(module: nn.Module) -> nn.Module:
        module = adapted(module, rank, scale)
        return module if method.wrap is None else method.wrap(module)

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        part, frozen = parts(layout)
        state, message = method.init(params[:, part.columns], layout.alone(part))
        return {"lora.frozen": params[:, frozen.columns]} | state, message

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        after, reply = method.client(without(state), message, within(state, task))
        return {"lora.frozen": state["lora.frozen"].expand(len(task), -1)} | after, reply

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return whole(state, method.personal(without(state), message, within(state, task)), task)

    def newcomer(state: Named, message: Named, task: Task) -> Tensor:
        given = method.newcomer or method.personal
        return whole(state, given(without(state), message, within(state, task)), task)

    return method._replace(
        init=init,
        client=client,
        personal=personal,
        newcomer=newcomer,
        averaged=lambda layout: method.averaged(layout.alone(parts(layout)[0])),
        wrap=wrap,
    )


def adapted(module: nn.Module, rank: int, scale: float) -> nn.Module:
    """A copy of the module with adapters in every linear and convolutional layer but the head."""
    module = copy.deepcopy(module)
    name = Layout(module).head_name
    head, found = module.get_submodule(name), []

    def other(layer: nn.Module) -> nn.Module | None:
        if layer is head or type(layer) not in LAYERS:
            return None
        assert isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
        found.append(layer)
        return Adapted(layer, rank, scale)

    module = replace_layers(module, other)
    require(
        bool(found),
        "lora: the model has no linear or convolutional layer below its last one, so there is nothing to adapt; "
        "leave +lora out",
    )
    return module


def parts(layout: Layout) -> tuple[Part, Part]:
    """What is trained, and what stays as it began."""
    frozen = [n for n in layout.slots if n.rpartition(".")[2] in FROZEN]
    return layout.rest(*frozen), layout.part(*frozen)


def without(state: Named) -> Named:
    """The method's own state."""
    return {n: x for n, x in state.items() if n != "lora.frozen"}


def within(state: Named, task: Task) -> Task:
    """The task of training what is not frozen."""
    part, frozen = parts(task.layout)
    base = state["lora.frozen"]
    rows = task.layout.join((part, base.new_zeros(len(base), part.size)), (frozen, base))
    return task.above(part, rows)


def whole(state: Named, rows: Tensor, task: Task) -> Tensor:
    """Models to deploy, with the frozen weights in them."""
    part, frozen = parts(task.layout)
    return task.layout.join((part, rows), (frozen, state["lora.frozen"]))
