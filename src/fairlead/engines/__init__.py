"""How the clients' work is laid out over the machine: one narrow door, `Engine.start`, and four ways through it.

| name | clients at a time | worker threads |
| --- | --- | --- |
| loop | one, the readable reference | 1 |
| vectorised | all, stacked by `torch.func.vmap` | 1 |
| threads | one per worker | one per core |
| threads+vectorised | each worker stacks its share | one per core |
| auto | whichever of the last two trains a few batches faster here | one per core |

Every engine computes the same numbers up to rounding, and each repeats itself bit for bit.
"""

from fairlead.engines.auto import choose
from fairlead.engines.pool import ENGINES, Engine, Pool, engine

__all__ = ["ENGINES", "Engine", "Pool", "choose", "engine"]
