"""Neighbours, a track of Convoy: every round starts from a mixture of the models of clients with like data.

box     here                 meaning
θ_k     state["theta"]       personal model of client k, kept between rounds and deployed
θ̂_k     message["theta"]     FEDORA's mixture of the models of k and its neighbours: Θ̂ = (1-a)(I - a D⁻¹W)⁻¹ Θ
a       a                    how far parameters travel; 0 keeps everyone apart

Cost: one model kept per client; one model each way a round, and FEDORA's subspace of the inputs once.
Differs from FEDORA: θ_k is trained from θ̂_k itself rather than tied to it, so no validation rows are needed.
Privacy: as FEDORA's, a rank-1 vector resembles the client's mean image and its label mix.
"""

from fairlead.core import Method, Named, Task
from fairlead.methods.fedora import fedora


def neighbours(*, a: float = 0.5) -> Method:
    """Every round starts from a mixture of the models of clients with like data."""

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        theta = task.descend(message["theta"])
        return {"theta": theta}, {"theta": theta}

    return fedora(a=a)._replace(client=client)
