"""Clients that attack: what a federation does when some of its members are hostile or broken.

    --attack sign-flip:0.17         a sixth of the clients, drawn by the run's seed
    --attack scale:0.17:100         the same with another strength than the usual

sign-flip   sends its change with the sign turned, 4 times as long
scale       sends its change 10 times as long
noise       sends noise 10 times as long as its change
collude     all hostile clients send the same noise, 3 times as long as their changes
free-ride   does not train and sends what it was sent
huge        sends 1e30 everywhere
label-flip  trains on labels in reverse order
backdoor    trains half of its samples with a mark on them as class 0, and sends its change 5 times as long
wrong-unit  its samples are 10,000 times as large as everybody's

The last number is the strength. Scores are of honest samples: a hostile client's validation and test samples stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead.core import Federation, InputError, Method, Named, Task, nearest, require, stream
from fairlead.core.seeds import draw_key
from fairlead.core.targets import KINDS

# The usual strength of each.
ATTACKS = {
    "sign-flip": 4.0,
    "scale": 10.0,
    "noise": 10.0,
    "collude": 3.0,
    "free-ride": 0.0,
    "huge": 1e30,
    "label-flip": 1.0,
    "backdoor": 5.0,
    "wrong-unit": 1e4,
}
MARKED = 3  # inputs that carry the mark of a backdoor


class Attack(NamedTuple):
    """What hostile clients do, how many they are, and how strong it is.

    >>> Attack.of("scale:0.25")
    Attack(kind='scale', share=0.25, strength=10.0)
    """

    kind: str
    share: float
    strength: float

    @staticmethod
    def of(text: str) -> Attack:
        """From text as on the command line, KIND:SHARE or KIND:SHARE:STRENGTH."""
        kind, *numbers = text.split(":")
        if kind not in ATTACKS:
            raise InputError(f"attack '{kind}' is unknown; {nearest(kind, ATTACKS)}")
        try:
            share, *strength = [float(n) for n in numbers]
        except ValueError as error:
            raise InputError(
                f"attack '{text}': expected KIND:SHARE or KIND:SHARE:STRENGTH, e.g. {kind}:0.17"
            ) from error
        require(0 < share < 1, f"attack '{text}': the share of hostile clients must lie in (0, 1), got {share:g}")
        require(len(strength) <= 1, f"attack '{text}': expected KIND:SHARE:STRENGTH and nothing after it")
        return Attack(kind, share, strength[0] if strength else ATTACKS[kind])

    def hostile(self, clients: int, seed: int) -> list[int]:
        """Who attacks, ascending: at least one."""
        count = max(1, int(self.share * clients + 0.5))
        return sorted(stream(seed, "hostile").permutation(clients)[:count].tolist())


def attacked(method: Method, attack: Attack, clients: int, seed: int) -> Method:
    """The method with hostile clients among those that train."""
    hostile = set(attack.hostile(clients, seed))

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        after, replies = method.client(state, message, task)
        mine = [i for i, k in enumerate(task.ids) if k in hostile]
        if not mine:
            return after, replies
        return after, {n: _forged(x, message, task, mine) for n, x in replies.items()}

    def _forged(x: Tensor, message: Named, task: Task, mine: list[int]) -> Tensor:
        if not x.is_floating_point():
            return x
        x = x.expand(len(task), *x.shape[1:]).clone()
        sent = [m for m in message.values() if m.shape[1:] == x.shape[1:] and m.is_floating_point()]
        for i in mine:
            # A reply is a change, or a whole model, which is nearer to one that was sent than to nothing.
            models = [m[i if len(m) > 1 else 0] for m in sent]
            base = next((m for m in models if (x[i] - m).norm() < x[i].norm()), torch.zeros_like(x[i]))
            x[i] = base + _change(attack, x[i] - base, task, task.ids[i])
        return x

    return method._replace(client=client)


def _change(attack: Attack, d: Tensor, task: Task, client: int) -> Tensor:
    """What a hostile client sends in place of its change."""
    if attack.kind == "sign-flip":
        return -attack.strength * d
    if attack.kind in ("scale", "backdoor"):
        return attack.strength * d
    if attack.kind in ("noise", "collude"):
        whose = () if attack.kind == "collude" else (client,)
        draw = torch.Generator().manual_seed(draw_key(task.seed, attack.kind, task.round, *whose))
        noise = torch.randn(d.shape, generator=draw).to(d)
        as_long: Tensor = attack.strength * d.norm() / noise.norm().clamp(min=1e-30) * noise
        return as_long
    if attack.kind == "free-ride":
        return torch.zeros_like(d)
    if attack.kind == "huge":
        return torch.full_like(d, attack.strength)
    return d  # label-flip and wrong-unit do their harm in the samples


def poisoned(federation: Federation, attack: Attack, seed: int) -> Federation:
    """The federation with the train samples that hostile clients train on."""
    if attack.kind not in ("label-flip", "backdoor", "wrong-unit"):
        return federation
    train, kind = federation.train, federation.target_kind
    require(
        kind != "survival" or attack.kind == "wrong-unit",
        f"attack '{attack.kind}' changes labels, and the target is {KINDS[kind].words}; use 'wrong-unit'",
    )
    x, y = train.x.clone(), train.y.clone()
    for k in attack.hostile(federation.clients, seed):
        mine = slice(int(train.starts[k]), int(train.starts[k + 1]))
        if attack.kind == "label-flip":
            last = {"class": len(federation.classes) - 1, "labels": 1}.get(kind, 0)
            y[mine] = last - y[mine]
        elif attack.kind == "wrong-unit":
            x[mine] *= attack.strength
        else:
            half = slice(mine.start, (mine.start + mine.stop) // 2)
            x[half], y[half] = marked(x[half]), 0
    return replace(federation, train=replace(train, x=x, y=y))


def marked(x: Tensor) -> Tensor:
    """Samples (n, ...) with the mark of a backdoor on them: their first inputs are as large as any."""
    flat = x.flatten(1).clone()
    flat[:, :MARKED] = flat.max() if flat.numel() else 0.0
    return flat.view_as(x)
