"""Studies on Flower: an app for `flwr run`, a try-out on this machine, keys, and ConFREE for plain Flower users.

The modules here need the extra `fairlead[flower]`; nothing else of the library imports them.
"""
