"""A real SuperLink with SuperNodes on loopback, over TLS with node authentication: the numbers of one process, and what
happens when somebody fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sites import MOST_SECONDS, started, three_sites, until
from test_study import in_one_place
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed; `make test-machines` installs and tests it")

from flwr.app import Array

from fairlead import functional, rounds
from fairlead.catalogue import parse
from fairlead.cli import app
from fairlead.clients import InProcess, engine, wrapped
from fairlead.core import Cohort, EngineError, Federation, InputError, Layout, Plan, Split, Training
from fairlead.machines.flower import warm
from fairlead.machines.flower.keys import write_certificates
from fairlead.machines.flower.privacy import SUMS, needs_single_updates, refuse_secure_aggregation
from fairlead.machines.flower.tryout import Tryout
from fairlead.machines.flower.write import read_config, write_app
from fairlead.machines.places import free_port
from fairlead.machines.study import Run, Study
from fairlead.models import build
from fairlead.runs.files import read_json, read_table

# An exchange takes seconds, whatever is trained: few rounds show as much as many.
SETTINGS = {"label": "disease", "rounds": 2, "evaluate_every": 1, "lr": 0.05, "model": "mlp"}
PAGE = Path(__file__).parents[2] / "docs" / "from-laptop-to-hospitals.md"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_sites(tmp_path_factory.mktemp("data"))


def test_three_sites_over_tls_give_the_numbers_of_one_process_though_the_server_is_killed(
    data: Path, tmp_path: Path
) -> None:
    study = Study(tuple(p.stem for p in data.glob("*.csv")), ("fedrep+confree", "fedora"), SETTINGS)
    write_app(tmp_path / "app", study, tmp_path / "elsewhere")
    out = tmp_path / "out"
    with Tryout(out, insecure=False) as tried:
        started(tried, study, data)
        tried.add("stranger", data / f"{study.sites[0]}.csv", key=False)
        tried.run(tmp_path / "app")
        until(lambda: tried.processes["stranger"].poll() is not None)
        assert tried.processes["stranger"].returncode != 0  # no key, no entry
        until((out / "runs" / "fedora-seed0" / "checkpoint.safetensors").exists, MOST_SECONDS)
        tried.end("superlink", signal.SIGKILL)
        assert not (out / "results.json").exists()
        tried.link()
        tried.run(tmp_path / "app")
        tried.wait(study, print, MOST_SECONDS)
        verdicts = [tried.verdict(site, study) for site in study.sites]
    results = read_json(out / "results.json")
    for method in ("local", *study.methods):
        found = results["runs"][f"{method}-seed0"]
        accuracies = [found["scores"]["accuracy"][site] for site in study.sites]
        assert accuracies == pytest.approx(in_one_place(study, data, method), abs=1e-4)
        assert sum(read_table(out / "runs" / f"{method}-seed0" / "rounds.parquet")["left_out"]) == 0
    assert [e["what"] for e in results["runs"]["fedora-seed0"]["events"]] == ["went on from its checkpoint"]
    assert results["unjudged"] == {}
    for site, text in zip(study.sites, verdicts, strict=True):
        assert site in text
        assert not any(other in text for other in study.sites if other != site)
    keys = sorted(p.name for p in (out / "flower").rglob("*") if p.is_file() and p.stat().st_mode & 0o077)
    assert not {"ca.key", "server.key", *study.sites} & set(keys)  # private keys are for their owner alone


def fairlead(*words: str) -> str:
    """A command in this process; why it was refused, or ""."""
    found = CliRunner().invoke(app, list(words))
    return "" if found.exception is None else str(found.exception)


def test_the_app_is_written_as_asked_for(tmp_path: Path) -> None:
    refused = fairlead(
        *("flower", "init", str(tmp_path / "app"), "fedora", "fedrep+confree", "--sites", "b,a", "--label", "y"),
        *("--rounds", "30", "--drop", "p,q", "--set", "fedora.a=0.8", "--seeds", "2"),
    )
    assert refused == ""
    study = Study.from_config(read_config(tmp_path / "app"))
    assert study.sites == ("a", "b")
    assert study.methods == ("fedora", "fedrep+confree")
    assert study.seeds == 2
    assert study.plan(Run("local", 0)).rounds == 30
    assert study.reading().drop == ("p", "q")
    assert study.settings["set"] == {"fedora": {"a": "0.8"}}
    assert "holds an app already" in fairlead("flower", "init", str(tmp_path / "app"), "fedora", "--sites", "a,b")
    assert "holds no app" in fairlead("flower", "run", str(tmp_path), "--data", str(tmp_path))


def test_certificates_are_for_names_of_machines_and_are_not_replaced(tmp_path: Path) -> None:
    for host in ("", "b\u00fccher.example", "a b", "x" * 64):
        with pytest.raises(InputError, match=r"is no address and no name of a machine"):
            write_certificates(tmp_path / "none", [host])
    assert not (tmp_path / "none").exists()
    write_certificates(tmp_path / "keys", [".".join(["long"] * 30), "127.0.0.1"])
    again = fairlead("flower", "certificates", str(tmp_path / "keys"), "--host", "127.0.0.1")
    assert "ca.key exists, and sites may trust it" in again


def test_secure_aggregation_and_methods_that_see_single_updates_refuse_each_other() -> None:
    def refused(method: str) -> str:
        with pytest.raises(InputError) as error:
            refuse_secure_aggregation(Study(("a", "b"), (method,), {}))
        return str(error.value)

    assert "fedrep+confree must see the update of each site by itself" in refused("fedrep+confree")
    assert "does not work with its message API" in refused("fedrep")
    assert needs_single_updates("fedora")


def test_a_worker_that_does_not_start_is_told_in_a_sentence(tmp_path: Path) -> None:
    from fairlead.machines.flower.app import client_app

    node = {"client": "a", "data": "a.csv", "state-dir": str(tmp_path)}
    (tmp_path / "worker.lock").mkdir()  # in its way
    with pytest.raises(RuntimeError, match=r"the worker of this site does not start: .*worker\.lock"):
        client_app.ask(node, json.dumps({"what": "who"}), b"")
    with pytest.raises(ValueError, match='--node-config has no data; expected client="NAME"'):
        client_app.ask({"client": "a"}, "", b"")


def test_a_worker_that_nobody_asks_ends_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fairlead.machines.worker", str(tmp_path / "state"), "0.5"]
    with TemporaryDirectory() as short:  # a socket's path
        subprocess.run(command, env={**os.environ, "TMPDIR": short}, check=True, timeout=MOST_SECONDS)
        assert list(Path(short).iterdir()) == []
    assert [p.name for p in (tmp_path / "state").iterdir()] in ([], ["worker.lock"])


def test_a_message_is_answered_by_a_process_that_has_its_imports_else_by_flowers_own(tmp_path: Path) -> None:
    with TemporaryDirectory() as short:  # a socket's path
        address, own = Path(short) / "messages", Path(sys.executable).parent / warm.COMMAND
        warm.write_command(tmp_path, address)
        command = tmp_path / warm.COMMAND

        def said() -> str:
            return subprocess.run([command, "--help"], capture_output=True, text=True, check=False).stdout

        assert said().startswith("usage: flwr-clientapp")
        command.write_text(command.read_text().replace(str(own), str(tmp_path / "nothing")))
        assert said() == ""
        with subprocess.Popen([sys.executable, warm.__file__, str(address)]) as serving:
            try:
                until(lambda: said().startswith("usage: flwr-clientapp"))
                assert said().startswith("usage: flwr-clientapp")
            finally:
                serving.kill()
        assert said() == ""


@contextmanager
def nginx(folder: Path, keys: Path, behind: int) -> Iterator[int]:
    """nginx with the rule that docs/from-laptop-to-hospitals.md has, before a port; the port where it listens."""
    if NGINX is None:
        pytest.skip("nginx is not installed; the proxy rule of the page is tried with it")
    (rule,) = re.findall(r"^```nginx\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    front = free_port()
    rule = rule.replace("127.0.0.1:8444", f"127.0.0.1:{front}").replace("127.0.0.1:8443", f"127.0.0.1:{behind}")
    spool = "".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    conf = f"events {{}} http {{ access_log {folder}/seen.log; {spool} {rule.replace('keys/', f'{keys}/')} }}"
    (folder / "nginx.conf").write_text(
        f"daemon off; user root; pid {folder}/pid; error_log {folder}/errors.log; {conf}"
    )
    with subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL) as running:
        try:
            until(lambda: (folder / "pid").exists())
            yield front
        finally:
            running.terminate()


class Behind(BaseHTTPRequestHandler):
    """What stands behind the proxy: says how much came."""

    def do_POST(self) -> None:
        said = str(len(self.rfile.read(int(self.headers["Content-Length"])))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_proxy_rule_of_the_page_lets_fleet_paths_through_and_nothing_else(tmp_path: Path) -> None:
    write_certificates(tmp_path / "keys", ["127.0.0.1"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Behind)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "keys" / "server.pem", tmp_path / "keys" / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with nginx(tmp_path, tmp_path / "keys", server.server_port) as front:
        trusted = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.pem"))

        def answered(path: str, size: int = 10) -> tuple[int, bytes]:
            with closing(HTTPSConnection("127.0.0.1", front, context=trusted, timeout=60)) as asking:
                asking.request("POST", path, b"x" * size)
                answer = asking.getresponse()
                return answer.status, answer.read()

        assert answered("/v1/fleet/push-object", 3_000_000) == (200, b"3000000")  # an update of more than 1 MB
        for path in ("control/start-run", "runtime/pull-task-input", "fleet/../control/start-run"):
            assert answered(f"/v1/{path}")[0] == 403
        assert answered("/v1/fleet/%2e%2e/control/start-run")[0] == 403
    server.shutdown()
    server.server_close()


class FleetOnly(BaseHTTPRequestHandler):
    """The same rule without nginx, before a real SuperLink: what nodes ask for passes, all else is refused."""

    port = 0
    refused: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        if not self.path.startswith("/v1/fleet/"):
            self.refused.append(self.path)
            self.send_error(403)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        onward = HTTPConnection("127.0.0.1", self.port, timeout=60)
        onward.request("POST", self.path, body, {k: v for k, v in self.headers.items() if k.lower() != "host"})
        answer = onward.getresponse()
        content = answer.read()
        onward.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_through_a_proxy_sites_reach_the_fleet_paths_alone(data: Path, tmp_path: Path) -> None:
    site = sorted(p.stem for p in data.glob("*.csv"))[0]
    with Tryout(tmp_path / "out", insecure=True) as tried:
        own, FleetOnly.port = tried.port, tried.port
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), FleetOnly)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        tried.port = proxy.server_port
        tried.add(site, data / f"{site}.csv")
        until(lambda: "online" in tried.flwr("supernode", "list", "here", "--format", "json").lower())
        config = tried.home / "config.toml"
        config.write_text(config.read_text().replace(f":{own}", f":{proxy.server_port}"))
        with pytest.raises(EngineError, match="flwr ls failed"):
            tried.flwr("ls", "here")
        assert FleetOnly.refused
        assert all(path.startswith("/v1/control/") for path in FleetOnly.refused)
        proxy.shutdown()
        proxy.server_close()


def reply(model: dict[str, Any], node: int, extra: str = "") -> Any:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, node
    asked = Message(RecordDict(), dst_node_id=node, message_type="train")
    asked.metadata.__dict__["_message_id"] = str(node)
    arrays = OrderedDict((name, torch.tensor(x)) for name, x in model.items())
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})})
    if extra:
        content[extra] = MetricRecord({"stage": 1})
    return Message(content, reply_to=asked)


def test_confree_as_a_strategy_of_flower() -> None:
    from flwr.app import ArrayRecord

    from fairlead.machines.flower.strategy import ConFREE

    strategy = ConFREE(c=0.5)
    strategy._sent = ArrayRecord(OrderedDict(w=torch.zeros(2), n=torch.tensor([3])))
    models = [{"w": [4.0, 0.0], "n": [7]}, {"w": [-1.0, 1.0], "n": [8]}]
    arrays, metrics = strategy.aggregate_train(1, [reply(model, k + 2) for k, model in enumerate(models)])
    torch.testing.assert_close(
        torch.from_numpy(arrays["w"].numpy()), functional.confree(torch.tensor([m["w"] for m in models]), 0.5)
    )
    assert arrays["n"].numpy().tolist() == [7]
    assert metrics is not None
    broken = [*models, {"w": [float("nan"), 0.0], "n": [9]}]
    same, _ = strategy.aggregate_train(2, [reply(model, k + 2) for k, model in enumerate(broken)])
    assert same["w"].numpy().tolist() == arrays["w"].numpy().tolist()
    with pytest.raises(InputError, match=r"secure aggregation \(SecAgg\+\) shows the server their sum alone"):
        strategy.aggregate_train(3, [reply(models[0], 2, "secaggplus_configs")])
    with pytest.raises(InputError, match="c must lie in"):
        ConFREE(c=1.5)


class Grid:
    """What a strategy needs of Flower's: clients in this process, each with a change of its own."""

    def __init__(self, changes: list[list[float]], mods: list[Any]) -> None:
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        self.changes = changes
        self.app = ClientApp(mods=mods)
        self.context = lambda node: Context(1, node, {}, RecordDict(), {})

        @self.app.train()
        def train(message: Any, context: Any) -> Any:
            (before,) = message.content["arrays"].to_numpy_ndarrays()
            after = before + np.array(self.changes[context.node_id - 2], before.dtype)
            content = {"arrays": ArrayRecord({"w": Array(after)}), "metrics": MetricRecord({"num-examples": 10})}
            return Message(RecordDict(content), reply_to=message)

    def get_node_ids(self) -> list[int]:
        return [k + 2 for k in range(len(self.changes))]

    def send_and_receive(self, messages: Any, **_: Any) -> list[Any]:
        from flwr.supercore.task_identity import TaskIdentity

        replies = []
        for i, message in enumerate(messages):
            node = message.metadata.dst_node_id
            TaskIdentity.node_id = node
            message.metadata.__dict__["_message_id"] = str(i + 1)
            replies.append(self.app(message, self.context(node)))
        return replies


@pytest.mark.parametrize("name", ["LocalDpMod", "fixedclipping_mod"])
def test_confree_takes_what_flowers_own_privacy_mods_leave(name: str) -> None:
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import mod
    from flwr.supercore.task_identity import TaskIdentity

    from fairlead.machines.flower.strategy import ConFREE

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    noiseless = mod.LocalDpMod(clipping_norm=1.0, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    changes = [[4.0, 0.0], [-0.6, 0.3], [0.0, 3.0]]
    grid = Grid(changes, [noiseless if name == "LocalDpMod" else mod.fixedclipping_mod])
    strategy = ConFREE(fraction_train=1.0, fraction_evaluate=0.0, c=0.5)
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    config = ConfigRecord({"clipping_norm": 1.0})
    result = strategy.start(grid, first, num_rounds=1, train_config=config)
    clipped = torch.tensor([[1.0, 0.0], [-0.6, 0.3], [0.0, 1.0]])
    torch.testing.assert_close(torch.from_numpy(result.arrays["w"].numpy()), functional.confree(clipped, 0.5))


def sums_only(method: str) -> bool:
    """Whether a server's message stays the same when every reply is replaced by the weighted mean of all."""
    entry, module = parse(method), build("mlp", (4,), 3, 0)
    module = wrapped(entry.method, module, 0)
    layout = Layout(module)
    server = rounds.assemble(entry.method, entry.average, layout)
    x = torch.randn(12, 4)
    split = Split(x, torch.arange(12) % 3, torch.tensor([0, 4, 8, 12]))
    clients = InProcess(Federation(split, split, split, ("a", "b", "c")), Training(batch_size=4), engine("loop"))
    clients.start(entry.method, module, Plan(rounds=1))
    _, message = entry.method.init(layout.read(module), layout)
    state, message = server.init(message, clients.greet(hello=True).rows, 3)
    answer = clients.train(torch.arange(3), 1, message)
    cohort = Cohort(answer.ids, torch.full((3,), 1 / 3), 3, 1, 0)
    mean = {n: v.float().mean(0, keepdim=True).expand_as(v).to(v.dtype) for n, v in answer.rows.items()}
    one, two = (server.update(state, rows, cohort)[1] for rows in (answer.rows, mean))
    return one.keys() == two.keys() and all(
        one[n].shape == two[n].shape and torch.allclose(one[n], two[n], rtol=1e-4, atol=1e-5) for n in one
    )


@pytest.mark.parametrize("method", [*SUMS, "fedora", "fedfomo", "fedavg+confree", "fedavg+median"])
def test_who_needs_single_updates_is_known_rightly(method: str) -> None:
    assert needs_single_updates(method) == (not sums_only(method))
