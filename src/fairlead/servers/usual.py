"""The servers most methods share."""

from fairlead.core.types import Cohort, Named, Server
from fairlead.servers.compose import chain, no_state, reduce
from fairlead.servers.step import step


def averaging(average: Server) -> Server:
    """Average the clients' changes and add the result to the message: FedAvg's server, whatever averages."""
    return chain(average, step())


def silent(average: Server) -> Server:
    """Sends nothing and uses nothing: the server of clients that train alone."""

    def update(state: Named, rows: Named, cohort: Cohort) -> tuple[Named, Named]:
        return state, {}

    return Server(no_state, update)


def over_everybody() -> Server:
    """The sum of the changes over all N clients, those that stayed away counting as zero."""
    return reduce(lambda rows, cohort: rows.sum(0) / cohort.clients)
