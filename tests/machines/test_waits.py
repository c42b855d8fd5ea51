"""How long a site is waited for, and where one listens."""

from __future__ import annotations

import subprocess
import sys

from fairlead.machines.places import free_port
from fairlead.machines.waits import Patience, Waits


def test_two_sites_that_die_together_are_not_waited_for_as_long_as_may_be() -> None:
    patience = Patience(Waits(600, 20))
    patience.learn([0, 1, 2], {0: 5.0, 1: 10.0, 2: 5.0})
    assert patience.deadline(1, [0, 1, 2], {0: 6.0}) == 32.0  # twice the fastest's time, as usual, and grace
    assert patience.deadline(2, [0, 1, 2], {0: 6.0}) == 26.0
    assert patience.deadline(1, [0, 1, 2], {}) == 600.0  # nobody has answered: the question may be a long one


def test_who_was_silent_is_waited_for_a_quarter_and_does_not_hold_up_others() -> None:
    patience = Patience(Waits(600, 20))
    patience.learn([0, 1, 2], {0: 5.0, 2: 8.0})
    assert patience.silent == {1}
    assert patience.deadline(1, [0, 1, 2], {0: 5.0, 2: 8.0}) == 13.0
    assert patience.deadline(1, [0, 1, 2], {0: 5.0, 2: 8.0}, since=30.0) == 35.0  # it came back and was asked anew
    assert patience.deadline(2, [0, 1, 2], {0: 5.0}) == 25.0
    assert Patience(Waits(600, 20)).deadline(2, [0, 1, 2], {0: 5.0}, gone=[1]) == 25.0
    patience.learn([0, 1, 2], {0: 5.0, 1: 9.0, 2: 8.0})
    assert patience.silent == set()


def test_a_port_is_given_to_one_process_alone() -> None:
    """It is used a while later: until then another process must not choose it too."""
    port = free_port()
    ask = f"""
from fairlead.machines import places
ports = iter([{port}, *range(20_000, 32_000)])
places.random.SystemRandom.randrange = lambda *_: next(ports)
print(places.free_port())
"""
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    assert said.strip().isdecimal()
    assert int(said) != port
