"""The clients, behind one door: the round loop knows `Clients` and nothing else of them.

`InProcess` has all clients in this process. An engine says how their work is laid out over the machine:

| name | clients at a time | worker threads |
| --- | --- | --- |
| loop | one, the readable reference | 1 |
| vectorised | all, stacked by `torch.func.vmap` | 1 |
| threads | one per worker | one per core |
| threads+vectorised | each worker stacks its share | one per core |
| auto | whichever of the last two trains a few batches faster here | one per core |

Every engine computes the same numbers up to rounding, and each repeats itself bit for bit.
"""

from fairlead.clients.auto import choose
from fairlead.clients.door import Answer, Clients, Greeting, Saved, payload
from fairlead.clients.exchange import Exchange, first_state, scored, wrapped
from fairlead.clients.inprocess import KEPT, InProcess, check_models
from fairlead.clients.pool import ENGINES, Engine, Pool, engine
from fairlead.clients.states import States, StateStore

__all__ = [
    "ENGINES",
    "KEPT",
    "Answer",
    "Clients",
    "Engine",
    "Exchange",
    "Greeting",
    "InProcess",
    "Pool",
    "Saved",
    "StateStore",
    "States",
    "check_models",
    "choose",
    "engine",
    "first_state",
    "payload",
    "scored",
    "wrapped",
]
