"""`python -m benchmarks.leaks DIR`: what a curious server can see of clients' images in what they send.

DIR holds data sets as parquet folders. Clients send what Fairlead's clients send; the attacks have that and what the
server knows: the model, the settings, and public images (the test part). Numbers are correlations of pixels (1 is the
same picture up to brightness) between what the attack makes and the private image, or mean, that it is about: mean and
standard deviation over clients. Beside them is what public images alone give, and the attack on a protected form.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.func import functional_call

import fairlead
from fairlead.catalogue import parse
from fairlead.clients import InProcess, engine
from fairlead.clients.exchange import wrapped
from fairlead.core import BodyAndHead, Federation, InputError, Layout, Named, Plan, Split, Training
from fairlead.core.private import rate, steps
from fairlead.data import Scenario
from fairlead.data.agreement import tell_own
from fairlead.functional.privacy import sample_epsilon
from fairlead.models import build
from fairlead.rounds import assemble, federate

CLIENTS = 8
DELTA = 1e-5
NOISE = 1.0  # of the protected forms, in units of the bound
MANY = 128  # public pictures that a guess may choose from, as many as the attack on an update has
Pictures = list[tuple[str, list[Tensor]]]


class Data:
    """Private images by class, and public ones."""

    def __init__(self, name: str, folder: str) -> None:
        source = fairlead.data.load(name, folder)
        x, y, test = source.x, source.y, torch.from_numpy(source.parts == "test")
        self.classes = source.classes
        draw = torch.Generator().manual_seed(0)
        private, public = ((~test).nonzero()[:, 0], test.nonzero()[:, 0])
        private, public = (rows[torch.randperm(len(rows), generator=draw)] for rows in (private, public))
        self.x, self.y = x[private[:6000]], y[private[:6000]]
        self.public, self.public_y = x[public[:2000]], y[public[:2000]]
        self.mean = self.public.mean(0)

    def client(self, k: int, size: int, kinds: int = 10) -> tuple[Tensor, Tensor]:
        """Images of the k-th client, which no other has: of so many classes, the k-th and the next ones."""
        mine = [i for i in range(k, len(self.y), CLIENTS) if (int(self.y[i]) - k) % 10 < kinds]
        return self.x[mine[:size]], self.y[mine[:size]]

    def federation(self, clients: Sequence[tuple[Tensor, Tensor]]) -> Federation:
        """Clients with these train samples, and public images to validate and test on."""
        starts = torch.tensor([0, *(len(y) for _, y in clients)]).cumsum(0)
        train = Split(torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients]), starts)
        each = 100
        tested = [self.held_out(y, each, i) for i, (_, y) in enumerate(clients)]
        ends = torch.tensor([0, *(len(t) for t in tested)]).cumsum(0)
        held = Split(self.public[torch.cat(tested)], self.public_y[torch.cat(tested)], ends)
        return Federation(train, held, held, self.classes)

    def held_out(self, y: Tensor, count: int, k: int) -> Tensor:
        """Public images of the classes that a client has."""
        mine = torch.isin(self.public_y, torch.tensor(sorted(set(y.tolist())))).nonzero()[:, 0]
        return mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(k))[:count]]


def like(a: Tensor, b: Tensor) -> float:
    """The correlation of two pictures' pixels."""
    a, b = a.flatten() - a.mean(), b.flatten() - b.mean()
    return float(a @ b / (a.norm() * b.norm()).clamp(min=1e-12))


def best(candidates: Tensor, truth: Tensor) -> tuple[float, Tensor]:
    """Of some pictures the one most like the truth, whatever their sign."""
    c, t = candidates.flatten(1), truth.flatten()
    c, t = c - c.mean(1, keepdim=True), t - t.mean()
    found = (c @ t) / (c.norm(dim=1) * t.norm()).clamp(min=1e-12)
    i = int(found.abs().argmax())
    return float(found[i].abs()), candidates[i] * found[i].sign()


def sent(
    data: Data, name: str, clients: Sequence[tuple[Tensor, Tensor]], training: Training, model: str, options: Any = None
) -> tuple[nn.Module, Layout, Named, Named, Named]:
    """The module, its layout, what the clients were sent in the first round, what they greeted with and replied."""
    federation = data.federation(clients)
    entry = parse(name, options or {})
    module = wrapped(entry.method, build(model, tuple(data.x.shape[1:]), len(data.classes), 0), 0)
    layout = Layout(module)
    with InProcess(federation, training, engine("loop")) as those:
        those.start(entry.method, module, Plan(rounds=1))
        hello = those.greet(hello=True).rows
        _, message = entry.method.init(layout.read(module), layout)
        _, message = assemble(entry.method, entry.average, layout).init(message, hello, len(clients))
        replies = those.train(torch.arange(len(clients)), 1, message).rows
    return module, layout, message, hello, replies


def told(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    x = torch.tensor(values)
    return f"{float(x.mean()):.2f} ± {float(x.std()) if len(x) > 1 else 0.0:.2f}"


def spent(noise: float, training: Training, size: int) -> float:
    """The epsilon of a sample in one round of +dp-sgd."""
    how = training.sgd(1)
    return sample_epsilon(noise, {rate(how, size): steps(how, size)}, DELTA)


def row(
    what: str, size: object, attack: Sequence[float], guess: Sequence[float], safe: Sequence[float], how: str
) -> None:
    """One line of the table."""
    print(f"| {what} | {size} | {told(attack)} | {told(guess)} | {told(safe)} | {how} |", flush=True)


def greeting(data: Data, pictures: Pictures) -> None:
    """FEDORA's vector against the client's mean image, and its label part against the client's classes."""
    training = Training(steps=1)
    protected = {"fedora": {"noise": NOISE}}
    cost = f"fedora.noise={NOISE:g}, epsilon {sample_epsilon(NOISE, {1.0: 1}, DELTA):.2g}"
    for size in (1, 10, 100):
        clients = [data.client(k, size, kinds=2) for k in range(CLIENTS)]
        found: list[list[float]] = []
        for options in ({}, protected):
            vectors = sent(data, "fedora", clients, training, "logistic", options)[3]["subspace"]
            views = [v.view_as(x[0]) for v, (x, _) in zip(vectors, clients, strict=True)]
            views = [v * torch.sign((v * data.mean).sum()) for v in views]  # pixels are not negative
            found.append([like(v, x.mean(0)) for v, (x, _) in zip(views, clients, strict=True)])
            if size in (1, 100):
                pictures.append((f"FEDORA: {'with noise' if options else 'sent'}", views[:4]))
        if size in (1, 100):
            pictures.insert(-2, (f"mean of {size} image{'s' * (size > 1)}", [x.mean(0) for x, _ in clients[:4]]))
        guess = [like(data.mean, x.mean(0)) for x, _ in clients]
        row("FEDORA's greeting: mean image", size, found[0], guess, found[1], cost)
    clients = [data.client(k, 100, kinds=2) for k in range(CLIENTS)]
    shares = torch.stack([y.bincount(minlength=10) / len(y) for _, y in clients])
    hits = []
    for noise in (0.0, NOISE):
        asked: dict[str, dict[str, Any]] = {"fedora": {"variant": "released", "noise": noise}}
        vectors = sent(data, "fedora", clients, training, "logistic", asked)[3]["subspace"][:, -10:, 0].abs()
        hits.append(
            [
                float(len(set(v.topk(2).indices.tolist()) & set(s.topk(2).indices.tolist())) / 2)
                for v, s in zip(vectors, shares, strict=True)
            ]
        )
    row("FEDORA 'released': which 2 of 10 classes (share found)", 100, hits[0], [0.2] * CLIENTS, hits[1], cost)


def from_rows(change: Tensor, layout: Layout, shape: torch.Size) -> Tensor:
    """A picture per unit of the first linear layer: the change of its weights over that of its bias, (units, ...)."""
    weight, bias = (n for n in layout.parameter_names[:2])
    slots = layout.slots
    w = change[slots[weight].start : slots[weight].stop].view(-1, shape.numel())
    b = change[slots[bias].start : slots[bias].stop]
    moved = b.abs() > 1e-12
    return (w[moved] / b[moved, None]).view(-1, *shape) if moved.any() else torch.zeros(1, *shape)


def update(data: Data, pictures: Pictures) -> None:
    """A single update of an MLP: each hidden unit's weights divided by its bias are a mixture of the inputs."""
    cases = [
        ("one step", 1, Training(lr=0.1, steps=1, batch_size=1)),
        ("one step", 8, Training(lr=0.1, steps=1, batch_size=8)),
        ("one step", 32, Training(lr=0.1, steps=1, batch_size=32)),
        ("5 epochs, batches of 4", 8, Training(lr=0.05, epochs=5, batch_size=4)),
        ("2 epochs, batches of 16", 200, Training(lr=0.05, epochs=2, batch_size=16)),
    ]
    draw = torch.Generator().manual_seed(1)
    for what, size, training in cases:
        clients = [data.client(k, size) for k in range(CLIENTS)]
        attack, safe, guess = list[float](), list[float](), list[float]()
        first: dict[str, Tensor] = {}
        for name, values in (("fedavg", attack), ("fedavg+dp-sgd", safe)):
            _, layout, _, _, replies = sent(
                data, name, clients, training, "mlp", {"dp-sgd": {"noise": NOISE}} if "+" in name else {}
            )
            for k, (x, _) in enumerate(clients):
                made = from_rows(replies["w"][k], layout, x.shape[1:])
                some = x[:8]
                values.append(sum(best(made, one)[0] for one in some) / len(some))
                if k == 0 and size == 8:
                    first[name] = torch.stack([best(made, one)[1] for one in some[:4]])
        for x, _ in clients:
            public = data.public[torch.randperm(len(data.public), generator=draw)[:MANY]]
            guess.append(sum(best(public, one)[0] for one in x[:8]) / len(x[:8]))
        if size == 8:
            pictures += [
                (f"{size} images", list(clients[0][0][:4])),
                (f"update, {what.partition(',')[0]}", list(first["fedavg"])),
                ("the same, +dp-sgd", list(first["fedavg+dp-sgd"])),
            ]
        how = f"+dp-sgd, noise {NOISE:g}, epsilon {spent(NOISE, training, size):.2g} a round"
        row(f"FedAvg's update of an MLP, {what}", size, attack, guess, safe, how)


def descend_pictures(objective: Callable[[Tensor], Tensor], start: Tensor, steps: int, smooth: float) -> Tensor:
    """Pictures that make an objective small, with little difference between neighbouring pixels."""
    x = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        rough = x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
        value = objective(x) + smooth * rough
        (x.grad,) = torch.autograd.grad(value, [x])
        optimiser.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    return x.detach()


def inversion(data: Data, pictures: Pictures, clients: int = 4) -> None:
    """One step on one image by a convolutional network: search for the image whose gradient is what was sent.

    Geiping et al. (NeurIPS 2020): the angle between the gradients, and total variation. The class is taken as known;
    the last layer's bias tells it.
    """
    training = Training(lr=0.1, steps=1, batch_size=1)
    ours = [data.client(k, 1) for k in range(clients)]
    found: dict[str, list[float]] = {}
    shown: dict[str, list[Tensor]] = {}
    for name in ("fedavg", "fedavg+dp-sgd"):
        module, layout, message, _, replies = sent(
            data, name, ours, training, "lenet", {"dp-sgd": {"noise": NOISE}} if "+" in name else {}
        )
        tensors = {n: t.requires_grad_() for n, t in layout.views(message["w"][0].clone())}
        for k, (x, y) in enumerate(ours):
            target = -replies["w"][k]

            def apart(
                guess: Tensor,
                y: Tensor = y,
                target: Tensor = target,
                tensors: dict[str, Tensor] = tensors,
                module: nn.Module = module,
            ) -> Tensor:
                loss = nn.functional.cross_entropy(functional_call(module, tensors, (guess,)), y)
                g = torch.cat(
                    [g.flatten() for g in torch.autograd.grad(loss, list(tensors.values()), create_graph=True)]
                )
                apart: Tensor = 1 - g @ target / (g.norm() * target.norm())
                return apart

            start = torch.rand(x.shape, generator=torch.Generator().manual_seed(k))
            made = descend_pictures(apart, start, 200, smooth=0.02)
            found.setdefault(name, []).append(like(made, x))
            shown.setdefault(name, []).append(made[0])
    guess = [like(data.public[data.public_y == y[0]].mean(0), x[0]) for x, y in ours]
    pictures += [
        ("1 image", [x[0] for x, _ in ours]),
        ("update of a CNN", shown["fedavg"]),
        ("the same, +dp-sgd", shown["fedavg+dp-sgd"]),
    ]
    row(
        "FedAvg's update of a CNN, one step, by search",
        1,
        found["fedavg"],
        guess,
        found["fedavg+dp-sgd"],
        f"+dp-sgd, noise {NOISE:g}, epsilon {spent(NOISE, training, 1):.2g} a round",
    )


def prototypes(data: Data, pictures: Pictures) -> None:
    """FedPAC's prototype of a class with few images: search for an image with these features."""
    training = Training(lr=0.05, epochs=2, batch_size=16)
    for few in (1, 5):
        ours, truth = [], []
        for k in range(CLIENTS):
            x, y = data.client(k, 60)
            rare = data.x[k::CLIENTS][data.y[k::CLIENTS] == k][-few:]
            others = y != k
            truth.append(rare)
            ours.append((torch.cat([x[others], rare]), torch.cat([y[others], torch.full((len(rare),), k)])))
        found: dict[int, list[float]] = {1: [], 10: []}
        shown: dict[int, list[Tensor]] = {1: [], 10: []}
        for least in (1, 10):
            module, layout, message, _, replies = sent(
                data, "fedpac", ours, training, "mlp", {"fedpac": {"least": least}}
            )
            assert isinstance(module, BodyAndHead)
            for k, images in enumerate(truth):
                rows = layout.join(
                    (layout.body, message["w"] + replies["w"][k : k + 1]), (layout.head, replies["head"][k : k + 1])
                )
                body = layout.write(rows[0], module).eval().body
                z = replies["prototypes"][k, k]
                public = data.public[data.public_y == k].mean(0, keepdim=True)

                def off(x: Tensor, body: Any = body, z: Tensor = z) -> Tensor:
                    error: Tensor = (body(x)[0] - z).square().mean() / z.square().mean().clamp(min=1e-6)
                    return error

                made = descend_pictures(off, public, 300, smooth=0.05)
                found[least].append(max(like(made, one) for one in images))
                shown[least].append(made[0])
        guess = [
            max(like(data.public[data.public_y == k].mean(0), one) for one in images) for k, images in enumerate(truth)
        ]
        if few == 1:
            pictures += [
                ("only one of its class", [t[0] for t in truth[:4]]),
                ("FedPAC's prototype", shown[1][:4]),
                ("fedpac.least=10", shown[10][:4]),
            ]
        row(
            "FedPAC's prototype: the nearest image of the class, by search",
            few,
            found[1],
            guess,
            found[10],
            "fedpac.least=10",
        )


def tables() -> None:
    """What sites tell of their rows for a shared scaling: the difference between two tellings is a row."""
    scenario = Scenario(data="heart-disease", split="column", column="hospital", clients=None)
    source = scenario.load(None)
    values = source.raw.numpy()
    errors, hidden = list[float](), list[float]()
    rows = list(range(60))
    for gone in range(CLIENTS):
        for scaling, into in (("shared", errors), ("own", hidden)):
            all_rows, fewer = (
                tell_own(source, torch.tensor(r).numpy(), scaling) for r in (rows, [r for r in rows if r != gone])
            )
            exact = []
            for i, (n, m, a, b) in enumerate(zip(all_rows.known, fewer.known, all_rows.mean, fewer.mean, strict=True)):
                truth = values[gone, i]
                if truth == truth and n == m + 1 and source.table.columns[i].role == "number":  # type: ignore[union-attr]
                    exact.append(float(abs(n * a - m * b - truth) < 1e-6))
            into.append(sum(exact) / max(len(exact), 1))
    what = "sites' means, told of 60 rows and again without one: share of that row's numbers found"
    print(f"| {what} | 60 | {told(errors)} | – | {told(hidden)} | --scaling own |", flush=True)


def costs(data: Data) -> None:
    """What protection costs: accuracies of clients with 100 images of three classes, after ten rounds."""
    federation = data.federation([data.client(k, 100, kinds=3) for k in range(CLIENTS)])
    training = Training(lr=0.1, epochs=2, batch_size=20, momentum=0.5)
    cases: list[tuple[str, dict[str, dict[str, Any]]]] = [
        ("local", {}),
        ("fedavg", {}),
        *(("fedavg+dp-sgd", {"dp-sgd": {"noise": noise}}) for noise in (0.5, 1.0)),
        ("fedavg+dp-sgd+ft", {"dp-sgd": {"noise": 1.0}}),
        ("fedora", {"fedora": {"variant": "released"}}),
        ("fedora", {"fedora": {"variant": "released", "noise": NOISE}}),
        ("fedpac", {}),
        ("fedpac", {"fedpac": {"least": 10}}),
    ]
    print("\n| method | options | accuracy % | clients below LOCAL | epsilon of a sample |")
    print("| --- | --- | ---: | ---: | ---: |")
    alone: Tensor | None = None
    for name, options in cases:
        entry = parse(name, options)
        module = build("mlp", tuple(data.x.shape[1:]), len(data.classes), 0)
        rounds = 10
        with InProcess(federation, training, engine("vectorised")) as clients:
            *_, (happened, _) = federate(
                entry.method,
                clients,
                module,
                Plan(rounds=rounds, evaluate_every=rounds, select="last"),
                average=entry.average,
            )
        score = (
            next(s for s in happened.scores if (s.model, s.split) == ("personal", "test")).values["accuracy"].flatten()
        )
        alone = score if alone is None else alone
        how = training.sgd(1)
        budget = "–"
        if "dp-sgd" in options:
            budget = (
                f"{sample_epsilon(options['dp-sgd']['noise'], {rate(how, 100): rounds * steps(how, 100)}, DELTA):.3g}"
            )
        said = ", ".join(f"{n}.{k}={v}" for n, values in options.items() for k, v in values.items())
        below = f"{int((score < alone).sum())} of {CLIENTS}"
        print(f"| {name} | {said} | {100 * float(score.mean()):.1f} | {below} | {budget} |", flush=True)


def draw_pictures(pictures: Pictures, path: Path) -> None:
    """The pictures, a line each, as a small PNG."""
    scale, label, gap = 2, 150, 4
    side = pictures[0][1][0].shape[-1] * scale
    sheet = Image.new("RGB", (label + 4 * (side + gap), len(pictures) * (side + gap)), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (name, line) in enumerate(pictures):
        top = i * (side + gap)
        pen.text((4, top + side // 2 - 6), name, fill="black")
        for j, picture in enumerate(line):
            low, high = picture.min(), picture.max()
            pixels = ((picture - low) / (high - low).clamp(min=1e-9) * 255).byte()
            shown = pixels.permute(1, 2, 0).numpy() if len(pixels) == 3 else pixels[0].numpy()
            sheet.paste(
                Image.fromarray(shown).convert("RGB").resize((side, side), Image.Resampling.NEAREST),
                (label + j * (side + gap), top),
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(64).save(path, optimize=True)


def main() -> int:
    """Print the tables and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leaks", description=__doc__)
    parser.add_argument("folder", help="data sets as parquet folders")
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/leaks.png"))
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    try:
        data = Data(asked.data, asked.folder)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    pictures: Pictures = []
    print(f"### {asked.data}: {CLIENTS} clients\n")
    print("| what travels | images | attack | guess from public images | attack on the protected form | protection |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for attack in (greeting, update, inversion, prototypes):
        attack(data, pictures)
    tables()
    draw_pictures(pictures, asked.picture)
    costs(data)
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
