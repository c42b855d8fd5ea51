"""Standard tools as a network: a linear model and boosted trees in tensors, so that they are kept and used like one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairlead.core.targets import TargetKind

FLOOR = 1e-6  # the least probability: a class that the client never saw is unlikely, not impossible


class Tool(nn.Module):
    """Scores of a linear model and of boosted trees, added up: (n, features) to (n, outputs).

    It looks at the first features of a sample: at none of an image, say.

    weight, bias            the linear model, (outputs, features) and (outputs,)
    feature, threshold      what a node of a tree asks, (trees, outputs, nodes): is the feature at most the threshold?
    left, right             the number of the node to go on to if so, and if not; a leaf goes on to itself
    value                   what a leaf adds to the score
    known                   1 for the classes that the tool knows, else 0, (outputs,)

    Outputs are log-probabilities of classes, log-odds of labels, quantities or risks.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    known: Tensor

    def __init__(self, outputs: int, kind: TargetKind, features: int, trees: int = 0, nodes: int = 1) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.zeros(outputs, features))
        self.bias = nn.Parameter(torch.zeros(outputs))
        for name in ("feature", "threshold", "left", "right", "value"):
            self.register_buffer(name, torch.zeros(trees, outputs, nodes))
        self.register_buffer("known", torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The answers for the rows."""
        # In double precision, so that the order of sums, which is that of the machine, changes no bit of the answers.
        x = x.flatten(1)[:, : self.weight.shape[1]].double()
        scores = x @ self.weight.T.double() + self.bias.double() + self._leaves(x)
        if self.kind == "class":
            shares = torch.where(self.known > 0, scores, -torch.inf).softmax(1).clamp(min=FLOOR)
            scores = (shares / shares.sum(1, keepdim=True)).log()
        elif self.kind == "labels":
            scores = scores.sigmoid().clamp(min=FLOOR).log() - (-scores).sigmoid().clamp(min=FLOOR).log()
        return scores.to(self.weight.dtype)

    def _leaves(self, x: Tensor) -> Tensor:
        """What the trees add to the scores, (n, outputs)."""
        trees, outputs, nodes = self.value.shape
        if trees == 0:
            return x.new_zeros(1, 1)
        feature, threshold, left, right, value = (
            one.reshape(-1) for one in (self.feature, self.threshold, self.left, self.right, self.value)
        )
        first = nodes * torch.arange(trees * outputs, device=x.device)  # the roots, in the flat arrays
        # Counted by a sum, since an exported network would keep the number of rows that it was exported with.
        row = x.shape[1] * (torch.ones_like(x[:, :1]).cumsum(0).long() - 1)
        at = first + torch.zeros_like(row)
        for _ in range(nodes // 2):  # no tree is deeper
            low = x.reshape(-1)[row + feature[at].long()] <= threshold[at]
            at = first + torch.where(low, left[at], right[at]).long()
        return value[at].view(-1, trees, outputs).double().sum(1)
