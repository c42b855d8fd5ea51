"""Pick the faster engine by training a few batches each way."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack

import torch
from torch import nn

from fairlead.clients.pool import Engine, Pool, engine
from fairlead.core.device import on_host
from fairlead.core.errors import EngineError
from fairlead.core.layout import Layout
from fairlead.core.task import Task
from fairlead.core.training import Training
from fairlead.core.types import Federation, Named

logger = logging.getLogger(__name__)

TRIALS, TRIAL_STEPS = 3, 3


def choose(module: nn.Module, federation: Federation, training: Training, participants: int) -> Engine:
    """Workers that loop, or workers that stack their share: whichever trains this model faster on this machine.

    A device other than the CPU has one worker: it is the device that works on many clients at once.
    """
    layout = Layout(module)
    params = layout.read(module)
    ids = torch.arange(min(participants, federation.clients))

    def trial(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return {"u": task.descend(params, how=task.sgd.but(epochs=1, steps=TRIAL_STEPS))[:, :1]}, {}

    names = ("threads", "threads+vectorised") if layout.device.type == "cpu" else ("loop", "vectorised")
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        pools: dict[str, Pool] = {}
        for name in names:
            try:
                pool = stack.enter_context(engine(name).start(module, layout, federation, training, seed=0))
                pool.map(trial, ids, 1, {}, {})  # the first call pays for copies and tracing
                pools[name] = pool
            except (EngineError, RuntimeError) as reason:
                # vmap refuses operations it has no rule for; workers that loop run any module.
                if name == names[0]:
                    raise
                logger.info("engine auto: %s is out: %s", name, reason)
        # In turn and the best of each, because others may be using the machine.
        for _ in range(TRIALS):
            for name, pool in pools.items():
                began = time.perf_counter()
                on_host(pool.map(trial, ids, 1, {}, {})[0]["u"])  # waits until it is done
                seconds[name] = min(seconds.get(name, math.inf), time.perf_counter() - began)
    best = min(seconds, key=lambda name: seconds[name])
    shown = ", ".join(f"{n} {1000 * s:.0f} ms" for n, s in seconds.items())
    logger.info("engine auto: %s (%d steps of %d clients: %s)", best, TRIAL_STEPS, len(ids), shown)
    return engine(best)
