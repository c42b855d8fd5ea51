"""SCAFFOLD (Karimireddy et al., ICML 2020), Algorithm 1, option II: control variates cancel the clients' drift.

paper   here           meaning
x       message["w"]   global model
c       message["c"]   server control variate, the mean of the clients'
c_i     state["c"]     client control variate, kept between rounds
y_i     y              client i's model after K local steps
K       task.steps()   local steps, counted as momentum replays them
η_l     task.sgd.lr    local step size; the server's is 1

Cost: one model kept per client; two models down and two changes up, every round.
Differs from the paper: with momentum, (x - y_i)/(K η_l) is divided by the number of times each gradient is applied, so
that c_i stays a mean of gradients; the model changes are averaged with sample weights, the variates plainly over all N.
"""

from torch import Tensor, zeros_like

from fairlead.core import Layout, Method, Named, Plus, Server, Task
from fairlead.servers import averaging, chain, mean, over_everybody, per_name, step


def scaffold() -> Method:
    """Control variates cancel the clients' drift."""

    def init(params: Tensor, layout: Layout) -> tuple[Named, Named]:
        zero = zeros_like(params)
        return {"c": zero}, {"w": params, "c": zero}

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        x, c, c_i = message["w"], message["c"], state["c"]
        y = task.descend(x, Plus(c - c_i))
        c_new = c_i - c + (x - y) / (task.steps() * task.sgd.lr)
        return {"c": c_new}, {"w": y - x, "c": c_new - c_i}

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return message["w"]

    def server(average: Server) -> Server:
        return per_name(w=averaging(average), c=chain(over_everybody(), step()))

    return Method(init, client, personal, server, average=mean())
