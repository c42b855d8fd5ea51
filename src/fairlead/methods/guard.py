"""The guard, `METHOD+guard`: each client deploys the method's model or a stack where it is surely better, else LOCAL's.

box      here             meaning
F, L     voices           the method's model of the client, and LOCAL's; both learn from all of its rows in the end
parts    parts            of the rows; each part is left out of a training of F and of L once, so every row judges once
d_k      `measured`       mean over client k's rows of (score of F, or of the stack, minus score of L)
f        `falls`          by how much d falls until all rows train: seen from trainings without each half of the rows
P_k      chance           of d_k - f > 0 for the model to deploy, given everybody's d: empirical Bayes
sure     sure             deploy what is better with P_k >= sure, by the gain to expect; else L

Cost: `parts` more trainings of the method and of LOCAL, two more on half of the rows, and 9 rounds of a few numbers.
With parts = 2: two trainings on half of the rows and two on a quarter, a third of the gradients; fewer clients leave.
Where LOCAL is guarded against by several methods, its trainings are shared.
The promise, its assumptions and how often it was broken on test rows: docs/guard.md.
"""

from fairlead.methods.voices import Decision, check_decision


def guard(voices: tuple[str, ...], *, sure: float = 0.9, strength: float = 15.0, parts: int = 5) -> Decision:
    """The method's model, LOCAL's or their stack, with the chance of ending worse than alone bounded by 1 - sure."""
    return check_decision("guard", Decision(voices, sure, strength, parts))
