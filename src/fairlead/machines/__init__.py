"""Federations of sites on machines of their own: what is asked of a site, and who asks.

A `Study` says in plain values what is trained. Each `Site` has its own rows, states and models in a folder of its own,
and answers questions of bytes; `conduct` asks them. Flower (`machines.flower`) and NVFlare (`machines.nvflare`) carry
the bytes, and neither a method nor the round loop knows of them.
"""

from fairlead.machines.conduct import Post, conduct
from fairlead.machines.site import Site
from fairlead.machines.study import Study

__all__ = ["Post", "Site", "Study", "conduct"]
