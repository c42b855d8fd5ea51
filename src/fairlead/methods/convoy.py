"""Convoy, Fairlead's own: a few ways to train side by side, and each client weighs what they say.

box                                                      here
tracks: alone                                            local
        everybody, then a few epochs on one's own        fedavg, fedavg+ft
        everybody's body, one's own head                 fedrep
        one's own body, everybody's head                 lg-fedavg
        neighbours: from the mixture of like clients     neighbours
voices m: each track's model of client k, p_m            the runs of these methods
weights s_k >= 0: client k answers                       softmax(sum_m s_km log p_m)
        s = argmin of everybody's loss                   on rows that no voice learned from (cross-fitting)
        s_k = argmin loss_k + strength |s_k - s|²
drop: a track without weight for anybody on the first    it is not trained without the other parts
        part of the rows is not listened to any more
guard: deploy it where it beats LOCAL with a chance >= sure, else LOCAL: see `guard`
distil (an option): one network in its place, trained    from the track with the largest weight, as long as LOCAL;
        on the client's rows to answer as it does        targets halfway between the labels and its answers

The weights are the explanation: they say whom a client listens to. They are in decision.json and on the page.
Cost: the sum of the tracks, `parts` + 1 times and twice on half of the rows, less what is dropped; deciding takes no
gradients. The models of all tracks are deployed as one module. With parts = 2 it is a third: see `guard`.
"""

from fairlead.methods.voices import Decision, check_decision

TRACKS = ("local", "fedavg", "fedavg+ft", "fedrep", "lg-fedavg", "neighbours")


def convoy(*, sure: float = 0.9, strength: float = 15.0, parts: int = 5, distil: bool = False) -> Decision:
    """A few ways to train side by side, weighed by each client, with the guard."""
    return check_decision("convoy", Decision(TRACKS, sure, strength, parts, distil))
