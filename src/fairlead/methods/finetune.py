"""Fine-tuning, `METHOD+ft`: what a method would deploy, trained some epochs more on the client's own data.

Cost: nothing more kept or sent; `epochs` of extra local training per deployed model.
"""

from torch import Tensor

from fairlead.core import Method, Named, Task, require


def ft(method: Method, *, epochs: int = 5) -> Method:
    """Deploy the method's model after some epochs on the client's own data."""
    require(epochs >= 1, f"ft: epochs must be >= 1, got {epochs}; leave +ft out for none")

    def personal(state: Named, message: Named, task: Task) -> Tensor:
        return task.descend(method.personal(state, message, task), how=task.sgd.but(epochs=epochs))

    return method._replace(personal=personal)
