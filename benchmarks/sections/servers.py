"""Server steps by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import gemm_rate, interleaved, peak_bytes
from benchmarks.sections.rows import Options, Row
from fairlead.core import Cohort, Named, Server
from fairlead.core.fast.machine import by_columns, cores, large_empty, recycling, threads
from fairlead.methods import METHODS
from fairlead.methods.fedfomo import mixture
from fairlead.servers import confree, mean, propagation

PARAMETERS = 878_538  # of the CNN


def server(options: Options) -> Iterator[Row]:
    """Server steps by themselves, on updates of the CNN's size; ratios to the same products at the GEMM rate.

    Twenty rows are too few for that rate, whatever multiplies them: `of torch.mm` compares with the bare products of
    these very matrices, in float32 on all cores, and `of a copy` with copying the rows once, which is memory alone.
    """
    d = PARAMETERS // (20 if options.quick else 1)
    single, double = gemm_rate(cores()), gemm_rate(cores(), torch.float64)
    for m in (20, 200, *((1000,) if options.large else ())):
        updates = torch.randn(m, d, generator=torch.Generator().manual_seed(0))
        # Shared direction plus noise: some pairs conflict, as in training.
        updates.mul_(2.0).add_(torch.randn(d, generator=torch.Generator().manual_seed(1)))
        ids = torch.arange(m)
        cohort = Cohort(ids, torch.full((m,), 1 / m), m, 1, 0)
        for name, stage, greetings, products, bare in steps(m, d, single, double):
            if m > 200 and not name.startswith("confree"):
                continue
            entry = "theta" if greetings is not None else "w"
            state, _ = stage.init({entry: torch.zeros(1, d)}, greetings or {}, m)

            def step(stage: Server = stage, state: Named = state, entry: str = entry) -> object:
                return stage.update(state, {entry: updates}, cohort)  # noqa: B023 - called within the loop

            extra = peak_bytes(step)
            repeats = 1 if m > 200 else options.repeats
            with recycling():  # as in rounds
                timings = interleaved({"step": step, "copy": partial(copied, updates)}, repeats, warm=0)
            t = timings["step"]
            product = by_torch(partial(bare, updates), repeats)
            size = updates.numel() * updates.element_size()
            held = sum(x.untyped_storage().nbytes() for x in state.values()) if greetings is not None else 0
            more: dict[str, float | str | None] = {
                "cores": t.busy,
                "of torch.mm": product / t.seconds,
                "of a copy": t.times_as_fast_as(timings["copy"]),
                # The updates, what the server keeps between rounds, and what the step needs at its worst.
                "memory/updates": None if extra is None else (size + held + extra) / size,
            }
            yield Row("server", f"{name}, {m} clients", t.seconds, products / t.seconds, "GEMM rate", more)
            del state
    yield fomo(20, 5, d, single, options)


def copied(rows: Tensor) -> Tensor:
    """The rows in memory of their own, written by all cores as server steps write theirs."""
    out = large_empty(rows, *rows.shape)
    by_columns(lambda some: out[:, some].copy_(rows[:, some]), rows)
    return out


def by_torch(product: Callable[[], object], repeats: int) -> float:
    """Seconds of a product on all cores; not in turn with what it is compared with, which its threads would disturb."""
    with threads(cores()):
        return interleaved({"product": product}, repeats)["product"].seconds


def fomo(m: int, sent: int, d: int, single: float, options: Options) -> Row:
    """FedFomo's mixing of the models a client was sent, for every client."""
    draw = torch.Generator().manual_seed(0)
    theta, w = torch.randn(m, d, generator=draw), torch.rand(m, sent, generator=draw)
    message = {"models": theta[None], "chosen": torch.randint(m, (m, sent), generator=draw)}

    def some(rows: Tensor) -> Tensor:
        mine = theta[rows[0] : rows[-1] + 1]
        state = {"theta": mine, "before": mine}
        return mixture(state, message | {"chosen": message["chosen"][rows]}, w[rows, :1], w[rows])

    # As in a round, where every worker mixes for its share of the clients.
    with ThreadPoolExecutor(cores(), initializer=torch.set_num_threads, initargs=(1,)) as crew:

        def mix() -> object:
            return list(crew.map(some, torch.arange(m).chunk(cores())))

        extra = peak_bytes(mix)
        with recycling():
            timings = interleaved({"mix": mix, "copy": partial(copied, theta)}, options.repeats)
    t = timings["mix"]
    share = torch.rand(m, m, generator=draw)
    product = by_torch(lambda: share @ theta, options.repeats)
    size = theta.numel() * theta.element_size()
    more: dict[str, float | str | None] = {
        "cores": t.busy,
        "of torch.mm": product / t.seconds,
        "of a copy": t.times_as_fast_as(timings["copy"]),
        "memory/updates": None if extra is None else (size + extra) / size,
    }
    products = 2 * m * m * d / single  # every model for every client, most with weight zero
    return Row("server", f"fedfomo's mixing, {m} clients", t.seconds, products / t.seconds, "GEMM rate", more)


Bare = Callable[[Tensor], object]


def steps(m: int, d: int, single: float, double: float) -> Iterator[tuple[str, Server, Named | None, float, Bare]]:
    """Name, stage, greetings (where it keeps models), the seconds of its products at the machine's rate, and these."""
    gram, mix = m * m * d / double * 2, 2 * m * m * d / single
    alike = torch.rand(m, m, generator=torch.Generator().manual_seed(2))
    yield "confree", confree(), None, gram, lambda x: x @ x.T
    greetings = {"alike": alike + alike.T}
    yield "propagation", propagation(lambda hello: hello["alike"]), greetings, mix, lambda x: alike @ x
    yield "fedamp", METHODS["fedamp"]().server(mean()), {}, gram + mix, lambda x: (x @ x.T, alike @ x)
    yield "fedu", METHODS["fedu"]().server(mean()), {}, mix, lambda x: alike @ x
