"""The command line: flags from `Settings`, then compare and report. The only place that prints."""

from fairlead.cli import compare, finished, lists, machines  # each registers its commands, in this order
from fairlead.cli.command import app, main

__all__ = ["app", "compare", "finished", "lists", "machines", "main"]
