"""The clients, behind one door: the round loop knows `Clients` and nothing else of them.

`Remote` reaches them by messages of bytes, which `Node`s answer, each one client on a machine of its own. `InProcess`
has all clients in this process, and an engine says how their work is laid out over the machine:

| name | clients at a time | worker threads |
| --- | --- | --- |
| loop | one, the readable reference | 1 |
| vectorised | all, stacked by `torch.func.vmap` | 1 |
| threads | one per worker | one per core |
| threads+vectorised | each worker stacks its share | one per core |
| ray, ray:ADDRESS | as threads+vectorised, in processes of a Ray cluster | one process per core or GPU |
| auto | whichever of the last two trains a few batches faster here | one per core |

Every engine computes the same numbers up to rounding, and each repeats itself bit for bit.
"""

from fairlead.clients.auto import choose
from fairlead.clients.door import Answer, Clients, Greeting, Saved, payload
from fairlead.clients.exchange import Exchange, first_state, scored, wrapped
from fairlead.clients.inprocess import KEPT, InProcess, check_models
from fairlead.clients.node import Node, only, placed
from fairlead.clients.pool import ENGINES, RAY, Engine, Pool, engine
from fairlead.clients.remote import Remote
from fairlead.clients.shards import Sharded
from fairlead.clients.states import States, StateStore

__all__ = [
    "ENGINES",
    "KEPT",
    "RAY",
    "Answer",
    "Clients",
    "Engine",
    "Exchange",
    "Greeting",
    "InProcess",
    "Node",
    "Pool",
    "Remote",
    "Saved",
    "Sharded",
    "StateStore",
    "States",
    "check_models",
    "choose",
    "engine",
    "first_state",
    "only",
    "payload",
    "placed",
    "scored",
    "wrapped",
]
