"""Everything that is here for speed alone; what it computes is what `core.reference` computes.

`FastNetwork` is the door: `gradient(rows, batch, loss, part)`, and `outputs(rows, samples)`. Behind it:

| file | does | in place of | times as fast |
| --- | --- | --- | --- |
| `one.py` | binds the module to one client's row, images with channels last | copies, the usual order | 1.25 |
| `stacked.py` | runs plain layers for many clients at once | `vmap` | 1.24 to 1.75 |
| `vmapped.py` | runs any other module for many clients at once | one client after another | by module |
| `recorded.py` | adds linear layers' gradients where they belong | writing them down first | 1.03 to 1.46 |
| `tail.py` | keeps what the layers below those that learn give | computing them in every step | 1.20 to 2.97 |
| `machine.py` | rows on cache lines; memory used again; work by columns | what torch does | 1.17; up to 3.5 |

The numbers are from docs/performance-notebook.md.
"""

from fairlead.core.fast.network import FastNetwork

__all__ = ["FastNetwork"]
