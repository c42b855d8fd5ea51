"""Equal content gives equal fingerprints, in any process; any change gives another; what cannot be told says so."""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fairlead
from fairlead.catalogue import parse
from fairlead.methods import METHODS
from fairlead.models import MODELS, build
from fairlead.runs import identity
from fairlead.runs.identity import ARITHMETIC, UNKNOWN, fingerprint
from fairlead.servers import STAGES

NAMES = [*METHODS, *(f"fedavg+{stage}" for stage in STAGES), "fedavg+ft", "fedrep+clip+confree"]
ALL = """
import json
import re
from fairlead.catalogue import parse
from fairlead.runs.identity import fingerprint
from fairlead.models import build
names = json.loads(input())
print(json.dumps({n: fingerprint(parse(n)) for n in names} | {"mlp": fingerprint(build("mlp", (1, 8, 8), 10, 3))}))
"""


def test_the_catalogue_has_fingerprints_that_differ_and_are_the_same_in_another_process() -> None:
    here = {name: fingerprint(parse(name)) for name in NAMES}
    here["mlp"] = fingerprint(build("mlp", (1, 8, 8), 10, 3))
    assert not any(text.startswith(UNKNOWN) for text in here.values())
    assert len(set(here.values())) == len(here)
    done = subprocess.run(
        [sys.executable, "-c", ALL], input=json.dumps(NAMES), capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout) == here


def test_options_change_a_method() -> None:
    plain, other = (fingerprint(parse("fedora", {"fedora": {"a": a}})) for a in (0.8, 0.5))
    assert plain == fingerprint(parse("fedora")) != other


def module(text: str) -> dict[str, Any]:
    """A user's own file with these lines."""
    made = types.ModuleType("users_own")
    exec(compile(text, "users_own.py", "exec"), made.__dict__)
    return made.__dict__


OWN = """
import torch
from torch import nn
STRENGTH = 2.0
TABLE = {"a": torch.zeros(3)}
class Helper:
    power = 2
    def apply(self, x): return x ** self.power
def inner(x, shift=1.0): return x + shift
def outer(x):
    return [inner(v) * STRENGTH + TABLE["a"].sum() + Helper().apply(v) for v in x]
def counted(n): return n * counted(n - 1) if n else 1
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("STRENGTH = 2.0", "STRENGTH = 2.5"),
        ("torch.zeros(3)", "torch.ones(3)"),
        ("power = 2", "power = 3"),
        ("x ** self.power", "x * self.power"),
        ("shift=1.0", "shift=2.0"),
        ("return x + shift", "return x - shift"),
        ("inner(v) *", "inner(v, 3.0) *"),
    ],
)
def test_any_change_to_code_or_what_it_uses_changes_the_fingerprint(before: str, after: str) -> None:
    assert before in OWN
    same, again = (fingerprint(module(OWN)["outer"]) for _ in range(2))
    assert same == again
    assert fingerprint(module(OWN.replace(before, after))["outer"]) != same
    # Lines that move, and functions that are not used, change nothing.
    moved = "# a comment\n\n" + OWN + "def unused(x): return STRENGTH\n"
    assert fingerprint(module(moved)["outer"]) == same


def test_a_function_that_calls_itself_and_one_that_ran_often_have_one_fingerprint() -> None:
    counted = module(OWN)["counted"]
    fresh = fingerprint(counted)
    for _ in range(200):
        counted(30)
    assert fingerprint(counted) == fresh


def test_closures_and_bound_methods_count_by_content() -> None:
    def make(values: torch.Tensor, times: float) -> Any:
        return lambda x: x * values * times

    first = fingerprint(make(torch.ones(3), 2.0))
    assert first == fingerprint(make(torch.ones(3), 2.0))
    assert first != fingerprint(make(torch.zeros(3), 2.0))
    assert first != fingerprint(make(torch.ones(3), 3.0))
    one, two = module(OWN)["Helper"](), module(OWN)["Helper"]()
    assert fingerprint(one.apply) == fingerprint(two.apply)
    two.power = 5
    assert fingerprint(one.apply) != fingerprint(two.apply)


def test_a_module_of_the_users_own_counts_by_what_is_taken_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_helpers(text: str) -> str:
        helpers = types.ModuleType("users_helpers")
        exec(text, helpers.__dict__)
        monkeypatch.setitem(sys.modules, "users_helpers", helpers)
        return fingerprint(module("import users_helpers as h\ndef f(x): return h.g(x)")["f"])

    first = with_helpers("def g(x): return x + 1\ndef other(x): return 0")
    assert first == with_helpers("def g(x): return x + 1\ndef other(x): return 1")
    assert first != with_helpers("def g(x): return x + 2\ndef other(x): return 0")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import threading\nlock = threading.Lock()\ndef f(x):\n    with lock: return x", r"type lock \(lock\)"),
        ("stream = (i for i in range(3))\ndef f(x): return next(stream)", r"type generator \(stream\)"),
        (
            "def f(x):\n    import users_helpers\n    return users_helpers.g(x)",
            r"import of 'users_helpers'",
        ),
    ],
)
def test_what_cannot_be_compared_is_named(text: str, what: str) -> None:
    found = fingerprint(module(text)["f"])
    assert found.startswith(UNKNOWN)
    assert re.search(what, found)


def test_a_model_counts_by_layers_weights_and_what_is_frozen() -> None:
    def net(width: int = 4, seed: int = 0, act: type[nn.Module] = nn.ReLU) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, width), act(), nn.Dropout(0.1), nn.Linear(width, 2))

    first = fingerprint(net())
    assert first == fingerprint(net())
    frozen, dropping = net(), net()
    frozen[0].weight.requires_grad_(False)  # type: ignore[index]
    dropping[2].p = 0.5  # type: ignore[index]
    others = [net(5), net(seed=1), net(act=nn.Tanh), frozen, dropping]
    assert len({first, *map(fingerprint, others)}) == 6


def test_a_federation_counts_by_everything_it_carries() -> None:
    one = fairlead.scenario(clients=3).build(0)
    first = fingerprint(one)
    assert first == fingerprint(fairlead.scenario(clients=3).build(0))
    x = one.train.x.clone()
    x[5, 0, 3, 3] += 1e-3
    y = one.test.y.clone()
    y[0] = (y[0] + 1) % 10
    starts = one.validation.starts.clone()
    starts[1] += 1
    changed = [
        dataclasses.replace(one, train=dataclasses.replace(one.train, x=x)),
        dataclasses.replace(one, test=dataclasses.replace(one.test, y=y)),
        dataclasses.replace(one, validation=dataclasses.replace(one.validation, starts=starts)),
        dataclasses.replace(one, names=("a", "b", "c")),
        dataclasses.replace(one, classes=tuple("abcdefghij")),
        fairlead.scenario(clients=3).build(1),
    ]
    assert len({first, *map(fingerprint, changed)}) == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_of_any_kind_have_content(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    assert fingerprint(x) == fingerprint(x.T.contiguous().T) != fingerprint(x.flip(0))
    assert fingerprint(torch.empty(0, dtype=dtype)) != fingerprint(torch.zeros(1, dtype=dtype))
    assert fingerprint(x.to_sparse() if dtype == torch.float32 else threading.Lock()).startswith(UNKNOWN)


def test_every_model_by_name_has_one() -> None:
    found = {name: fingerprint(build(name, (3, 32, 32), 10, 0)) for name in MODELS}
    assert len(set(found.values())) == len(MODELS)


def test_other_golden_curves_need_another_arithmetic() -> None:
    """Whoever changes the numbers raises ARITHMETIC, so that older run folders are refused; then write both here."""
    curves = Path(__file__).parents[1] / "golden" / "curves.json"
    assert (ARITHMETIC, hashlib.sha256(curves.read_bytes()).hexdigest()[:12]) == (5, "2b1b7a555c3a")


def test_asking_for_the_commit_leaves_the_repository_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `git describe --dirty` wrote the index anew; cut off by a limit on file sizes, it left its lock.
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    file, index = tmp_path / "file", tmp_path / ".git" / "index"
    file.write_text("one")
    git("init")
    git("add", "file")
    git("commit", "-m", "x")
    monkeypatch.setattr(identity, "__file__", str(tmp_path / "src" / "fairlead" / "runs" / "identity.py"))
    os.utime(file, (1e9, 1e9))  # looked into again, as nothing but its content says that it is the same
    before = index.read_bytes()
    assert identity.checkout.__wrapped__() == git("rev-parse", "--short=10", "HEAD").strip()
    assert index.read_bytes() == before
    file.write_text("another")
    assert str(identity.checkout.__wrapped__()).endswith("-dirty")
