"""The common exam: what every method of the catalogue promises, whatever it does."""

from pathlib import Path

import pytest
import torch
from exam_runs import (
    FEDERATION,
    ROUNDS,
    SEED,
    SIZES,
    Case,
    Run,
    broken,
    federation,
    poisoned,
    run,
    same,
    with_batch_norm,
)

from fairlead.catalogue import about
from fairlead.core import EngineError, InputError
from fairlead.methods import METHODS
from fairlead.rounds import draw

COMPOSED = (
    "fedavg+ft",
    "fedrep+confree",
    "fedavg+median",
    "scaffold+confree",
    "fedavg+fedadam",
    "fedrep+lora",
    "fedrep+dp-sgd",
)
WITHOUT_BATCH_NORM = ("fedrep+dp-sgd",)  # which mixes samples that are to be hidden one by one
CLIENTS = range(len(SIZES))
SELECTIVE = ("ifca", "fesem", "fedfomo", "fedora")  # may leave a client to train alone, by design
UNDIVIDED = ("cfl",)  # is fedavg until clients pull apart, by design
LATE, NEVER = 0, 2  # who joins in the last round of a partial run, and who does not


@pytest.fixture(scope="module", params=[*METHODS, *COMPOSED])
def case(request: pytest.FixtureRequest) -> Case:
    """One name, with the runs its questions share."""
    return Case(request.param)


@pytest.fixture(scope="module")
def local() -> Run:
    """Everybody alone."""
    return run("local")


@pytest.fixture(scope="module")
def fedavg() -> Run:
    """One model for everybody."""
    return run("fedavg")


def test_cohorts_are_what_the_exam_assumes() -> None:
    ids = [draw(0.5, len(SIZES), SEED, t).tolist() for t in range(1, ROUNDS + 1)]
    assert LATE in ids[-1]
    assert LATE not in ids[0] + ids[1]
    assert NEVER not in ids[0] + ids[1] + ids[2]


@pytest.mark.parametrize("name", METHODS)
def test_it_says_what_it_is_and_what_it_costs(name: str) -> None:
    entry = about(name)
    assert ": " in entry.title
    assert entry.cost


@pytest.mark.parametrize("name", ["vectorised", "threads"])
def test_engines_agree(case: Case, name: str) -> None:
    other = run(case.name, on=name, participation=0.5)
    torch.testing.assert_close(other.models, case.partial.models, atol=1e-5, rtol=1e-5)


def test_workers_that_stack_agree(case: Case) -> None:
    """With everybody there, so that each worker has clients to stack."""
    other = run(case.name, on="threads+vectorised")
    torch.testing.assert_close(other.models, case.full.models, atol=1e-5, rtol=1e-5)


def test_inputs_are_left_alone(case: Case) -> None:
    normed = set() if case.name in WITHOUT_BATCH_NORM else case.normed.watch.touched
    assert case.partial.watch.touched | case.full.watch.touched | normed == set()


def test_names_and_shapes_stay_the_same(case: Case) -> None:
    for watch in (case.partial.watch, case.full.watch):
        assert {kind: len(seen) for kind, seen in watch.shapes.items()} == dict.fromkeys(watch.shapes, 1)


def test_bytes_are_those_of_the_rows_that_travel(case: Case) -> None:
    for one in (case.partial, case.full):
        assert [r.bytes_down for r in one.records] == [one.watch.down[r.round] for r in one.records]
        up = [one.watch.up[r.round] for r in one.records]
        up[0] += one.watch.hello
        assert [r.bytes_up for r in one.records] == up


def test_another_seed_gives_another_result(case: Case) -> None:
    assert not same(run(case.name, participation=0.5, seed=SEED + 1).models, case.partial.models)


def test_test_data_never_matter_and_the_same_seed_gives_the_same_bits(case: Case) -> None:
    again = run(case.name, data=poisoned(FEDERATION))
    assert same(again.models, case.full.models)


def test_resuming_equals_running_on(case: Case, tmp_path: Path) -> None:
    resumed = run(case.name, participation=0.5, pause=(2, tmp_path / "snapshot.safetensors"))
    assert same(resumed.models, case.partial.models)
    assert all(same(a, b) for a, b in zip(resumed.scores, case.partial.scores, strict=True))


def test_it_is_not_secretly_something_else(case: Case, local: Run, fedavg: Run) -> None:
    """By what the deployed models answer, since a method may have parameters the others lack."""
    own = [torch.allclose(case.full.outputs(k), case.full.outputs(k, case.full.initial[0]), atol=1e-3) for k in CLIENTS]
    assert not any(own), "not trained"
    for name, other in (("local", local), ("fedavg", fedavg)):
        like = [torch.allclose(case.full.outputs(k), other.outputs(k), atol=1e-5) for k in CLIENTS]
        if case.name != name and (case.name, name) != (*UNDIVIDED, "fedavg"):
            assert sum(like) <= (len(SIZES) // 2 if case.name in SELECTIVE else 0), f"is {name}"


def test_it_evaluates_the_model_it_deploys(case: Case) -> None:
    last = {(s.model, s.split): s for s in case.full.records[-1].scores}
    for k in range(len(SIZES)):
        y = FEDERATION.test.client(k)[1]
        right = (case.full.outputs(k).argmax(1) == y).float().mean()
        torch.testing.assert_close(last["personal", "test"].values["accuracy"][k], right)


def test_a_client_that_diverges_harms_nobody_else(case: Case) -> None:
    """Not even those stacked with it."""
    sick = 1
    result = run(case.name, data=broken(FEDERATION, sick), on="vectorised")
    assert [list(r.absent) for r in result.records] == [[sick]] * ROUNDS
    healthy = [k for k in range(len(SIZES)) if k != sick]
    assert bool(result.models[healthy].isfinite().all())
    assert bool((result.models[healthy] != result.initial).any(1).all())


def test_newcomers_and_absent_clients_have_models(case: Case) -> None:
    models = case.partial.models
    assert bool(models.isfinite().all())
    assert not same(models[LATE], case.partial.initial[0])


def test_one_client_alone(case: Case) -> None:
    alone = run(case.name, data=federation(1))
    assert bool(alone.models.isfinite().all())
    assert not same(alone.models, alone.initial)


@pytest.mark.parametrize("name", ["fedavg", "fedavg+median"])
def test_one_client_makes_an_average_the_identity(name: str) -> None:
    alone, local = (run(n, data=federation(1)).models for n in (name, "local"))
    torch.testing.assert_close(alone, local, atol=1e-6, rtol=0)


def test_batch_norm_runs_one_client_at_a_time(case: Case) -> None:
    if case.name in WITHOUT_BATCH_NORM:
        with pytest.raises(InputError, match="BatchNorm mixes the samples of a batch"):
            run(case.name, on="threads", build=with_batch_norm)
        return
    other = run(case.name, on="threads", build=with_batch_norm, participation=0.5)
    assert bool(other.models.isfinite().all())
    torch.testing.assert_close(other.models, case.normed.models, atol=1e-5, rtol=1e-5)


def test_batch_norm_is_refused_where_clients_are_stacked(case: Case) -> None:
    with pytest.raises(EngineError, match="--engine threads or loop"):
        run(case.name, on="vectorised", build=with_batch_norm)
