"""The stack, `METHOD+stack`: the method's model and LOCAL's answer together, weighed for each client.

box      here         meaning
p_m      voices       the probabilities that the method's model and LOCAL's give a row
s_k      weights      client k answers softmax(sum_m s_km log p_m), s >= 0; quantities: sum_m s_km f_m
s        s            the federation's weights: lowest loss on everybody's rows
         strength     s_k minimises loss_k + strength · |s_k - s|², on rows that no voice learned from
parts    parts        of the rows; each is left out of a training of both once

Cost: `parts` more trainings of the method and of LOCAL, two more on half of the rows (from which the gain to expect is
told), and 9 rounds of a few numbers.
Nothing is promised: see `guard` for the stack where it is surely better than alone, and LOCAL elsewhere.
"""

from fairlead.methods.voices import Decision, check_decision


def stack(voices: tuple[str, ...], *, strength: float = 15.0, parts: int = 5) -> Decision:
    """The method's model and LOCAL's in one, weighed for each client."""
    return check_decision("stack", Decision(voices, None, strength, parts))
