"""PLGU-GHN (Qu et al., CVPR 2023), Algorithm 4: pFedHN whose hypernetwork is led to flat minima.

paper   here               meaning
h, φ    server "phi."      the hypernetwork and its parameters
v_i     server "v"         embedding of client i, learned as in pFedHN
w_i     message["theta"]   h(v_i; φ), the weights of client i, which it deploys
Δw_i    reply["theta"]     how local training changed them
g       gradient(phi)      -(∇_φ w_i)ᵀ Δw_i, meaned over the round's clients
ε       reach * g          ρ g/‖g‖, the ascent of sharpness-aware minimisation; φ's step is taken with g at φ + ε
ρ       rho                how far it looks; 0 is pFedHN

Cost: as pFedHN, with a second pass through the hypernetwork on the server.
Differs from the paper: Δw_i is measured at h(v_i; φ), as in Algorithm 4, so φ + ε enters through the hypernetwork's own
derivatives alone; for the rest, and for newcomers, as pFedHN here.
"""

from fairlead.core import Method
from fairlead.methods.pfedhn import Rule, Steps, hypernetwork


def plgu_ghn(
    *,
    rho: float = 0.05,
    lr: float = 0.01,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    clip: float = 50.0,
    hidden: int = 100,
    steps: Steps = "round",
) -> Method:
    """pFedHN whose hypernetwork is led to flat minima."""
    return hypernetwork("plgu-ghn", Rule(lr, momentum, weight_decay, clip, hidden, steps, rho))
