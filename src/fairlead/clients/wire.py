"""Questions and answers as bytes: named tensors in safetensors, everything else in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from fairlead.core.errors import EngineError
from fairlead.core.task import SplitName
from fairlead.core.types import Named

What = Literal["greet", "train", "score", "join", "newcomers", "outputs"]
HEADER = "fairlead"
AHEAD = "ahead."  # before the names of what was trained ahead


@dataclass(frozen=True)
class Ask:
    """What the server asks of one client, besides the message; all that makes a repeated message harmless."""

    run: str
    what: What
    round: int = 0
    client: int = 0
    base: int = 0  # the round after which the client's state counts; 0: its first one
    alone: tuple[int, ...] = ()  # rounds to train in before that, without hearing from the server
    splits: tuple[SplitName, ...] = ("validation", "test")  # on which models are scored
    ahead: bool = False  # whether to train the next round at once, from the same message
    hello: bool = False  # whether to greet with what the method wants to know
    split: SplitName = "test"  # whose outputs are asked for
    states: tuple[int, ...] = ()  # rounds whose states the server may come back to
    models: tuple[int, ...] = ()  # rounds whose models are to be deployed, or may be


_HEADER = TypeAdapter(tuple[Ask, str])  # a question, and why it is not answered; checks what came from elsewhere


class Reply(NamedTuple):
    """What a client answers."""

    ask: Ask  # what it was asked
    rows: Named
    refused: str = ""  # why there are no rows, as the end of a sentence about the client


def pack_ask(ask: Ask, message: Named) -> bytes:
    """A question and the client's own row of the message, as bytes."""
    return pack_reply(Reply(ask, message))


def unpack_ask(data: bytes) -> tuple[Ask, Named]:
    """What `pack_ask` packed."""
    return unpack_reply(data)[:2]


def pack_reply(reply: Reply) -> bytes:
    """An answer as bytes."""
    return pack(reply.rows, _HEADER.dump_json((reply.ask, reply.refused)).decode())


def unpack_reply(data: bytes) -> Reply:
    """What `pack_reply` packed."""
    rows, header = unpack(data)
    try:
        ask, refused = _HEADER.validate_json(header)
    except ValidationError as error:
        first = error.errors()[0]
        raise EngineError(f"message has no question that fairlead knows ({first['loc']}: {first['msg']})") from error
    return Reply(ask, rows, refused)


def pack(rows: Named, header: str = "") -> bytes:
    """Named tensors and a text as bytes; the same bytes for the same content.

    >>> rows, header = unpack(pack({"w": torch.ones(1, 3)}, "round 7"))
    >>> rows["w"].tolist(), header
    ([[1.0, 1.0, 1.0]], 'round 7')
    """
    # The format wants each tensor in memory of its own. Of several texts it would write any first.
    return save({n: x.clone(memory_format=torch.contiguous_format) for n, x in rows.items()}, {HEADER: header})


def unpack(data: bytes) -> tuple[Named, str]:
    """What `pack` packed."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return load(data), str(header["__metadata__"][HEADER])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:  # whatever was sent
        raise EngineError(f"message of {len(data)} bytes is none of fairlead's ({error})") from error


def row_for(k: int, message: Named, picks: Mapping[str, str]) -> Named:
    """What client k is sent of a message: its own row or the shared one; of rows to pick from, those it picks.

    >>> shelf = {"models": torch.arange(3.0).view(1, 3, 1), "chosen": torch.tensor([[0, 1], [2, 0]])}
    >>> row = row_for(1, shelf, {"models": "chosen"})
    >>> row["models"].flatten().tolist(), row["chosen"].tolist()
    ([2.0, 0.0], [[0, 1]])
    """
    row = {n: x if len(x) == 1 else x[k : k + 1] for n, x in message.items()}
    for shelf, numbers in picks.items() if message else ():
        picked = row[numbers][0]
        row |= {shelf: row[shelf][:, picked], numbers: torch.arange(len(picked))[None]}
    return row
