"""A scenario gives every client what it promises, the same with the same seed, and nothing twice."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairlead.core import Federation, Split
from fairlead.core.errors import InputError
from fairlead.data import ABOUT, PRESETS, Scenario, describe, from_tensors, load, scenario
from fairlead.data.source import Source


def numbered(n: int = 600, classes: int = 6, test: int = 0) -> Source:
    """A source whose features are the sample's own number, so that it can be followed."""
    y = torch.arange(n) % classes
    parts = np.where(np.arange(n) < n - test, "train", "test")
    return from_tensors(torch.arange(n)[:, None].float(), y, {"user": np.arange(n) % 7}, parts=parts)


def ids(split: Split) -> list[int]:
    return split.x[:, 0].long().tolist()


def all_ids(federation: Federation) -> list[int]:
    return ids(federation.train) + ids(federation.validation) + ids(federation.test)


SPLITS: dict[str, Any] = {
    "iid": {},
    "dirichlet": {"beta": 0.1},
    "pathological": {"classes_per_client": 2},
    "quantity": {"skew": 1.0},
    "column": {"column": "user", "clients": None},
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("pool", ["all", "train"])
@pytest.mark.parametrize("fractions", [(0.5, 0.2, 0.3), (0.7, 0.0, 0.3), (0.01, 0.01, 0.98)])
def test_fractions(split: str, pool: str, fractions: tuple[float, float, float]) -> None:
    source = numbered(test=150)
    plan = Scenario(**{"clients": 8} | SPLITS[split], split=split, pool=pool, fractions=fractions)
    federation = plan.build(3, source=source)
    used = all_ids(federation)
    assert sorted(used) == list(range(600))
    assert federation.clients == (7 if split == "column" else 8)
    assert federation.train.sizes.min() >= 1
    assert federation.test.sizes.min() >= 1
    assert federation.validation.sizes.min() >= 1 if fractions[1] else len(federation.validation.x) == 0
    if pool == "train":
        assert sorted(ids(federation.test)) == list(range(450, 600))
    assert all_ids(plan.build(3, source=source)) == used
    if split != "column":
        assert all_ids(plan.build(4, source=source)) != used
    assert torch.equal(federation.train.y, torch.tensor(ids(federation.train)) % 6)


@pytest.mark.parametrize("split", ["iid", "dirichlet", "pathological", "column"])
@pytest.mark.parametrize("pool", ["all", "train"])
def test_samples_are_exact(split: str, pool: str) -> None:
    plan = Scenario(**{"clients": 7} | SPLITS[split], split=split, pool=pool, samples=(20, 5, 12))
    federation = plan.build(0, source=numbered(test=150))
    for part, count in (("train", 20), ("validation", 5), ("test", 12)):
        assert getattr(federation, part).sizes.tolist() == [count] * 7
    used = all_ids(federation)
    assert len(set(used)) == len(used) == 7 * 37


def test_an_extreme_skew_still_builds() -> None:
    assert Scenario(split="quantity", skew=500.0).build(0, source=numbered()).train.sizes.min() == 1


def test_one_big_client() -> None:
    federation = Scenario(clients=5, samples=(10, 2, 3), big={2: 20}).build(0, source=numbered())
    assert federation.train.sizes.tolist() == [10, 10, 200, 10, 10]
    assert federation.test.sizes.tolist() == [3] * 5
    sizes = Scenario(clients=5, big={2: 20}, fractions=(0.5, 0.0, 0.5)).build(0, source=numbered()).train.sizes
    assert sizes[2] == 250
    assert all(sizes[k] in (12, 13) for k in (0, 1, 3, 4))


def test_parts_from_elsewhere() -> None:
    parts = [np.arange(0, 10), np.arange(20, 60)]
    federation = Scenario(clients=2, fractions=(0.5, 0.0, 0.5)).build(0, source=numbered(), parts=parts)
    assert sorted(all_ids(federation)) == sorted(np.concatenate(parts).tolist())
    with pytest.raises(InputError, match="at most once"):
        Scenario(clients=2).build(0, source=numbered(), parts=[[0, 1, 2], [2, 3, 4]])
    with pytest.raises(InputError, match="2 parts were given for 3 clients"):
        Scenario(clients=3).build(0, source=numbered(), parts=parts)


def test_rotation_turns_client_k_k_times() -> None:
    x = torch.rand(40, 1, 6, 6)
    source = from_tensors(x, torch.zeros(40).long())
    plain = Scenario(clients=4).build(1, source=source)
    turned = Scenario(clients=4, shift="rotation", angle=90).build(1, source=source)
    for part in ("train", "validation", "test"):
        for k in range(4):
            expected = torch.rot90(getattr(plain, part).client(k)[0], k, (-2, -1))
            assert torch.equal(getattr(turned, part).client(k)[0], expected)
    assert torch.equal(source.raw, x)


def test_pixels_are_scaled_and_colour_is_centred() -> None:
    grey = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8)
    for pixels, low in ((grey, 0.0), (grey.expand(4, 3, 8, 8), -1.0)):
        federation = Scenario(clients=1, fractions=(0.5, 0.0, 0.5)).build(
            0, source=from_tensors(pixels, torch.arange(4))
        )
        x = torch.cat([federation.train.x, federation.test.x])
        assert x.dtype == torch.float32
        assert (x.min(), x.max()) == (low, 1)


def test_describe() -> None:
    federation = Scenario(clients=3, split="pathological", classes_per_client=2).build(0, source=numbered())
    rows = describe(federation)
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert all(row["n_train"] == 100 and row["n_validation"] == 40 and row["n_test"] == 60 for row in rows)
    assert sorted(c for row in rows for c in row["classes"]) == [0, 1, 2, 3, 4, 5]
    assert json.dumps(rows)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"split": "dirichlett"}, "unknown split 'dirichlett'; did you mean 'dirichlet'"),
        ({"shift": "rotate"}, "unknown shift 'rotate'; did you mean 'rotation'"),
        ({"pool": "test"}, "unknown pool"),
        ({"clients": 0}, "clients must be a whole number of at least 1, got 0"),
        ({"clients": None}, "got None"),
        ({"split": "column"}, "needs the name of a column"),
        ({"beta": 0}, "beta must be > 0"),
        ({"classes_per_client": 0}, "classes_per_client"),
        ({"skew": -1}, "skew must be >= 0"),
        ({"angle": float("nan")}, "angle"),
        ({"samples": (10, 5)}, "samples must be whole"),
        ({"samples": (0, 5, 5)}, "samples must be whole"),
        ({"samples": (10, 5, 5), "split": "quantity"}, "cannot vary it"),
        ({"fractions": (0.5, 0.2, 0.2)}, "with sum 1"),
        ({"fractions": (1.0, 0.0, 0.0)}, "test > 0"),
        ({"big": {12: 2}}, "client 12, and clients count from 0 to 11"),
        ({"big": {1: 0}}, "> 0 times"),
        ({"big": {1: 2}, "split": "dirichlet"}, "use split 'iid' or 'quantity'"),
    ],
)
def test_fields_are_checked(fields: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Scenario(**fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"clients": 300}, "need 900 samples, and there are 600"),
        ({"clients": 7, "samples": (50, 30, 20)}, "need 700 samples"),
        ({"split": "pathological", "classes_per_client": 7}, "k must be 1 to 6"),
        ({"split": "column", "column": "usr"}, "no column 'usr'; did you mean 'user'"),
        ({"split": "column", "column": "user", "clients": None, "samples": (80, 5, 5)}, "has 86 samples for train"),
        ({"pool": "train"}, "needs a published test part"),
        ({"shift": "rotation"}, "needs images"),
    ],
)
def test_what_cannot_be_built(fields: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Scenario(**fields).build(0, source=numbered())
    with pytest.raises(InputError, match="seed"):
        Scenario().build(-1)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json_and_overrides(name: str) -> None:
    preset = PRESETS[name]
    assert Scenario(**json.loads(json.dumps(asdict(preset)))) == preset
    assert scenario(name, beta=0.7).beta == 0.7
    assert ABOUT[name]


def test_unknown_presets_and_fields() -> None:
    with pytest.raises(InputError, match="unknown scenario 'rotated-minst'; did you mean 'rotated-mnist'"):
        scenario("rotated-minst")
    with pytest.raises(InputError, match="no 'client'; did you mean 'clients'"):
        scenario("rotated-mnist", client=3)


def test_default_preset_needs_nothing() -> None:
    federation = scenario().build(0)
    sizes = federation.train.sizes
    assert federation.clients == 12
    assert sizes.min() >= 30
    assert sizes.max() > 2 * sizes.min()
    assert sum(len(split.y) for split in (federation.train, federation.validation, federation.test)) == len(load())


@pytest.mark.parametrize(
    ("name", "clients", "sizes"),
    [
        ("rotated-mnist", 36, (128, 64, 277)),
        ("gtsrb-rotated", 36, (256, 64, 128)),
        ("cifar10-labels", 10, (20, 100, 1000)),
    ],
)
def test_real_presets_of_fixed_size(real_data: Path, name: str, clients: int, sizes: tuple[int, int, int]) -> None:
    federation = scenario(name).build(0, real_data)
    for split, size in zip((federation.train, federation.validation, federation.test), sizes, strict=True):
        assert split.sizes.tolist() == [size] * clients
    if name == "cifar10-labels":
        held = [set(row["classes"]) for row in describe(federation)]
        assert all(len(classes) == 2 for classes in held)
        assert held[:5] == held[5:]


def test_real_imbalanced_and_flowers(real_data: Path) -> None:
    assert scenario("rotated-mnist-imbalanced").build(0, real_data).train.sizes[18] == 12_800
    flowers = scenario("flowers102-pathological").build(0, real_data)
    assert all(len(row["classes"]) == 5 for row in describe(flowers))
    assert flowers.train.x.min() == -1


def test_clients_split_by_a_column_go_by_its_values(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{i},{i % 2},{site}" for i, site in enumerate(["south", "north"] * 10)]
    path.write_text("\n".join(["a,label,site", *rows]))
    whole = Scenario(data=str(path), column="site", split="column", clients=None).build(seed=0)
    assert whole.names == ("north", "south")
    joined = Scenario(data=str(path), column="site", split="column", clients=1).build(seed=0)
    assert joined.names == ("north to south",)
    assert Scenario(clients=2).build(seed=0).names == ()


def test_image_size() -> None:
    """Pixels are averaged over squares, after a shift and on the scale that training sees; features have none."""
    x = torch.arange(40 * 3 * 4 * 4).view(40, 3, 4, 4) % 251
    source = from_tensors(x.to(torch.uint8), torch.arange(40) % 2)
    plan = Scenario(clients=2, shift="rotation", angle=90.0)
    whole = plan.build(0, source=source).train.x
    small = Scenario(clients=2, shift="rotation", angle=90.0, image_size=2).build(0, source=source).train.x
    assert torch.allclose(small, whole.unfold(2, 2, 2).unfold(3, 2, 2).mean((4, 5)), atol=1e-6)
    with pytest.raises(InputError, match=r"image_size needs images"):
        Scenario(clients=2, image_size=2).build(0, source=numbered())
    for bad in (0, -1, 1.5):
        with pytest.raises(InputError, match=r"whole number of 1 to 4096 pixels"):
            Scenario(image_size=bad)  # type: ignore[arg-type]
