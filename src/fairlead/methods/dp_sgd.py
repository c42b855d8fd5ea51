"""DP-SGD (Abadi et al., CCS 2016), `METHOD+dp-sgd`: what clients send hides whether any one sample was among theirs.

paper   here    meaning
C       bound   the longest gradient of a single sample that counts
σ       noise   deviation of the noise on the sum of a batch's gradients, in units of the bound

Cost: nothing more kept or sent; a gradient per sample in place of one per batch.
Works with methods whose clients make all that they send by steps of local training: fedavg, fedprox, scaffold, fedrep,
ditto, lg-fedavg, fedper, fedres, fedamp, fedu, fesem, fedbabu, knnper and cfl. Others use samples in further
ways, without noise, and are refused; so are BatchNorm, balanced classes and survival.
Covers the train samples in what a client sends in the rounds, by samples that are there or not (add or remove one); not
its number of samples, and not the scores that clients send beside. What the client deploys without sending it, `+ft`
after `+dp-sgd` say, has no noise. LOCAL sends nothing and has none: verdicts say whom the noise puts below it.
The page and the terminal say the epsilon of each client, by Google's accountant (`pip install 'fairlead[dp]'`). It is
for a server that asks as often as it says. In one process noise is drawn from the run's seed, which must stay secret;
on a machine of its own a client draws it from a secret of its own. The generator is not a cryptographic one.
Differs from the paper: every client has its own rate of sampling, batch_size over its number of samples, and takes as
many steps as without noise.
"""

from fairlead.core import Method, Named, Task, require
from fairlead.core.private import privately

# Methods whose clients send nothing but what steps of local training made.
WORKS_WITH = (
    *("fedavg", "fedprox", "scaffold", "fedrep", "ditto", "lg-fedavg", "fedper", "fedres", "fedamp", "fedu"),
    *("fesem", "fedbabu", "knnper", "cfl"),
)


def dp_sgd(method: Method, *, bound: float = 1.0, noise: float = 1.0) -> Method:
    """Local training with every sample's gradient shortened, and noise."""
    require(bound > 0, f"dp-sgd: bound must be > 0, got {bound}; it is the longest gradient of a sample let through")
    require(noise > 0, f"dp-sgd: noise must be > 0, got {noise}; leave +dp-sgd out for none")

    require(method.hello is None, "dp-sgd: the method's clients tell something of their samples before the first round")

    def client(state: Named, message: Named, task: Task) -> tuple[Named, Named]:
        return method.client(state, message, privately(task, bound, noise))

    return method._replace(client=client)
