"""What a server knows of the model whose rows it averages: which columns are parameters, and which are buffers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fairlead.core.errors import require
from fairlead.core.layout import Part
from fairlead.core.types import Cohort, Named, Server


def parameters_only(stage: Server, parts: Mapping[str, Part]) -> Server:
    """The stage for parameters; buffers, such as the running statistics of BatchNorm, get the weighted mean.

    Projected or lengthened like parameters, a running variance can fall below zero, and the model answers NaN. `parts`
    says which part of the model each entry is made of. The stage sees the part's parameters, in the order of
    `part.sizes`.
    """
    first_buffer = {name: part.trainable for name, part in parts.items() if part.trainable < part.size}

    def without_buffers(rows: Named) -> Named:
        return {name: x[:, : first_buffer[name]] if name in first_buffer else x for name, x in rows.items()}

    def buffers_of(rows: Named) -> Named:
        return {name: x[:, first_buffer[name] :] for name, x in rows.items() if name in first_buffer}

    def with_buffers(rows: Named, buffers: Named) -> Named:
        return rows | {name: torch.cat([rows[name], x.expand(len(rows[name]), -1)], 1) for name, x in buffers.items()}

    def init(message: Named, hello: Named, clients: int) -> tuple[Named, Named]:
        state, sent = stage.init(without_buffers(message), hello, clients)
        return state, with_buffers(sent, buffers_of(message))

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        for name, x in rows.items():
            said = f"{parts[name].size} columns of the model" if name in parts else "nothing"
            require(
                name in parts and x.shape[1:] == (parts[name].size,),
                f"average: the method replies '{name}' in rows of shape {tuple(x.shape[1:])}, and its `averaged` says "
                f"{said} about it; name there the part of the model that it is made of",
            )
        state, out = stage.update(state, without_buffers(rows), cohort)
        means = {name: torch.tensordot(cohort.weights.to(x), x, 1) for name, x in buffers_of(rows).items()}
        return state, with_buffers(out, means)

    return Server(init, update)


def with_parts(server: Server, parts: Mapping[str, Part]) -> Server:
    """The server, each of whose stages is told in the cohort which part of the model an entry is made of."""

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        return server.update(state, rows, cohort._replace(parts=parts))

    return Server(server.init, update)
