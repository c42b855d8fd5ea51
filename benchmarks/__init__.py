"""How fast the library is, against a plain PyTorch loop on the same machine in the same run: `python -m benchmarks`."""
