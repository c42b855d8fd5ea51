"""Ray's processes give the numbers of one process, on one node and on two, though one of them is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sites import without_ray

ray = pytest.importorskip("ray", reason="Ray is not installed; `make test-machines` installs and tests it")

import fairlead
from fairlead import rounds
from fairlead.catalogue import parse
from fairlead.clients import Clients, InProcess, Sharded, engine
from fairlead.clients import shards as engine_of_ray
from fairlead.core import EngineError, Federation, Plan, Training
from fairlead.data import scenario
from fairlead.machines.places import free_port
from fairlead.models import build
from fairlead.runs.files import read_json, read_table

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of Ray's own
TRAINING = Training(lr=0.1, epochs=1, batch_size=8, momentum=0.5)
PLAN = Plan(rounds=4, evaluate_every=2, select="validation")


def digits() -> Federation:
    wanted = scenario("rotated-digits", split="quantity", clients=7, samples=None, fractions=(0.1, 0.05, 0.85))
    return wanted.build(seed=0)


FEDERATION = digits()


def test_an_address_without_a_cluster_is_refused() -> None:
    with pytest.raises(EngineError, match="no Ray cluster"):
        Sharded(FEDERATION, TRAINING, "127.0.0.1:1")


ALONE = """
import os, subprocess, sys
from fairlead.clients.shards import connected
address = connected("").get_runtime_context().gcs_address
assert "RAY_AUTH_TOKEN" not in os.environ
tables = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/net/{kind}")]
port = f":{int(address.rpartition(':')[2]):04X}"
print(*(line[1] for line in tables if line[1].endswith(port) and line[3] == "0A"), flush=True)
here = {"RAY_ADDRESS": address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # else Ray looks at another interface
subprocess.run([sys.executable, "-c", sys.argv[1]], env=os.environ | here)
"""
STRANGER = """
import ray
try:
    ray.init(logging_level="critical")
    print("let in")
except Exception as error:
    print("refused")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads what listens from /proc")
def test_ray_on_this_machine_listens_on_loopback_for_its_own_process() -> None:
    command = [sys.executable, "-W", "ignore", "-c", ALONE, STRANGER]
    said = subprocess.run(command, env=without_ray(), stdout=subprocess.PIPE, text=True, timeout=300, check=True).stdout
    listens, answer = said.splitlines()
    assert " " not in listens
    assert listens.partition(":")[0].endswith("0100007F")  # 127.0.0.1, and no other
    assert answer == "refused"


def test_a_ray_that_was_imported_before_is_not_started_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(EngineError, match="set RAY_AUTH_MODE=token"):
        engine_of_ray.connected("")


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes with a core each, on loopback."""
    address = f"127.0.0.1:{free_port()}"
    roles = (["--head", "--port", address.partition(":")[2], "--include-dashboard=false"], ["--address", address])
    command = [
        str(Path(sys.executable).parent / "ray"),
        "start",
        "--block",
        "--num-cpus=1",
        "--node-ip-address=127.0.0.1",
    ]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    nodes = []
    try:
        for role in roles:
            nodes.append(subprocess.Popen([*command, *role, "--disable-usage-stats"], **quiet))
            until(lambda: answers(address), "the first node did not start")
        time.sleep(5)  # it answers before it can be asked for anything
        until(lambda: connects(address), "the first node cannot be asked")
        until(lambda: ray.cluster_resources().get("CPU") == 2, "the second node did not come")
        yield address
    finally:
        ray.shutdown()
        for node in nodes:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def until(what: Callable[[], bool], else_say: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, else_say
        time.sleep(0.5)


def connects(address: str) -> bool:
    try:
        engine_of_ray.connected(address)
    except EngineError:
        return False
    return True


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as asked:
        return asked.connect_ex((host, int(port))) == 0


def go(name: str, clients: Clients, plan: Plan = PLAN, snapshot: Any = None) -> list[Any]:
    entry, module = parse(name), build("mlp", (1, 8, 8), 10, 0)
    return list(rounds.federate(entry.method, clients, module, plan, average=entry.average, snapshot=snapshot))


def same(a: list[Any], b: list[Any]) -> None:
    assert len(a) == len(b) > 0
    for (one, now), (other, then) in zip(a, b, strict=True):
        assert (one.round, one.samples, one.absent) == (other.round, other.samples, other.absent)
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
        for x, y in zip(one.scores, other.scores, strict=True):
            torch.testing.assert_close(x.values["loss"], y.values["loss"], rtol=1e-4, atol=1e-5)
        for n in now.message:
            torch.testing.assert_close(now.message[n], then.message[n], rtol=1e-4, atol=1e-5)
        mine, theirs = now.clients(), then.clients()
        assert mine.keys() == theirs.keys()
        for n in mine:
            torch.testing.assert_close(mine[n], theirs[n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fedrep+confree", "fedora", "ditto", "fedfomo", "local"])
def test_two_nodes_give_the_numbers_of_one_process(name: str, two_nodes: str) -> None:
    here = InProcess(FEDERATION, TRAINING, engine("vectorised"))
    with Sharded(FEDERATION, TRAINING, two_nodes) as there:
        same(go(name, there), go(name, here))
        for x, y in zip(there.outputs("test"), here.outputs("test"), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
        assert len(there.models(torch.tensor([1, 6]))) == 2


def test_partial_participation_and_newcomers(two_nodes: str) -> None:
    plan = Plan(rounds=3, participation=3, evaluate_every=3, unseen=0.3)
    here = InProcess(FEDERATION, TRAINING, engine("vectorised"))
    with Sharded(FEDERATION, TRAINING, two_nodes) as there:
        same(go("fedora", there, plan), go("fedora", here, plan))


def test_a_process_that_dies_is_replaced_and_goes_on_from_the_last_round(two_nodes: str) -> None:
    entry, module = parse("ditto"), build("mlp", (1, 8, 8), 10, 0)
    here = go("ditto", InProcess(FEDERATION, TRAINING, engine("vectorised")))
    with Sharded(FEDERATION, TRAINING, two_nodes) as there:
        found = []
        for happened, now in rounds.federate(entry.method, there, module, PLAN, average=entry.average):
            found.append((happened, now))
            if happened.round == 2:
                os.kill(ray.get(there._actors[1].pid.remote()), signal.SIGKILL)
        same(found, here)
        assert len(there.outputs("test")) == 7


def test_a_checkpoint_of_one_process_goes_on_in_rays(two_nodes: str) -> None:
    here = go("scaffold", InProcess(FEDERATION, TRAINING, engine("vectorised")))
    half = next(now for happened, now in here if happened.round == 2)
    with Sharded(FEDERATION, TRAINING, two_nodes) as there:
        same(go("scaffold", there, snapshot=half), here[2:])


def test_compare_with_ray_is_resumed_and_recorded_as_usual(two_nodes: str, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"scenario": "rotated-digits", "clients": 4, "evaluate_every": 2}
    one = fairlead.compare(["fedrep"], out=tmp_path / "a", rounds=4, engine=f"ray:{two_nodes}", **chosen)
    two = fairlead.compare(["fedrep"], out=tmp_path / "b", rounds=4, engine="vectorised", **chosen)
    tables = [read_table(tmp_path / x / "runs" / "fedrep-seed0" / "records.parquet") for x in "ab"]
    assert tables[0]["loss"] == pytest.approx(tables[1]["loss"], rel=1e-4, abs=1e-5)
    assert read_json(tmp_path / "a" / "settings.json")["experiment"]["engine"] == "ray"
    assert one.summary["methods"].keys() == two.summary["methods"].keys()
    fairlead.resume(tmp_path / "a", rounds=6)
    assert max(read_table(tmp_path / "a" / "runs" / "fedrep-seed0" / "rounds.parquet")["round"]) == 6
