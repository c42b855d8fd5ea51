"""The study's coordinator, on the SuperLink's side."""

from fairlead.machines.flower.server import app

__all__ = ["app"]
