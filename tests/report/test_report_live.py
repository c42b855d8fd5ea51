"""The page of a run that is going on, without a browser."""

import http.client
import json
import re
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from report_folders import make_folder, make_summary

from fairlead.core.errors import InputError, RunError
from fairlead.report.live import HOST, is_finished, state_of, watching_page, watching_server
from fairlead.runs.files import append_part


@pytest.fixture
def going(tmp_path: Path) -> Path:
    """Two methods, of which one is done."""
    folder = make_folder(tmp_path, make_summary(("local", "<b>x"), clients=3, seeds=1))
    (folder / "summary.json").unlink()
    experiment = {"name": "custom", "rounds": 80, "scenario": {"data": "patients.csv"}}
    plan = {"methods": ["local", "<b>x", "later"], "seeds": [0], "experiment": experiment}
    (folder / "settings.json").write_text(json.dumps(plan))
    for name in ("local", "<b>x"):
        run = folder / "runs" / f"{name}-seed0"
        (run / "settings.json").write_text(json.dumps({"method": name, "seed": 0, "experiment": experiment}))
        append_part(run / "rounds.parquet", 50, {"round": [1, 2, 50], "seconds": [0.5, 0.5, 1.0]})
    done = json.dumps({"names": ["a", "b", "c"]})
    (folder / "runs" / "local-seed0" / "summary.json").write_text(done)
    return folder


def numbers(page: str) -> Any:
    (text,) = re.findall(r"<script id='data' type='application/json'>(.*?)</script>", page, re.DOTALL)
    return json.loads(text)


def test_it_says_how_far_training_is_and_shows_no_test_score(going: Path) -> None:
    page = watching_page(going)
    assert "1 of the 2 trainings begun so far is done. There is no verdict yet." in page
    assert "<td>50 of 80</td>" in page
    assert "<b>x" not in page
    assert "test accuracy" not in page
    data = numbers(page)
    assert data["owners"] == ["a", "b", "c"]
    assert data["curves"]["what"] == "validation loss"
    assert set(data["curves"]["lines"]) == {"local", "<b>x"}
    assert [way["name"] for way in data["ways"]] == ["local", "<b>x", "later"]
    assert data["live"] == state_of(going)


def test_a_last_training_on_all_rows_has_no_validation_loss(going: Path) -> None:
    run = going / "runs" / "all" / "local-seed0"
    experiment = {"name": "custom", "rounds": 12, "scenario": {"data": "patients.csv"}}
    records: dict[str, list[Any]] = {"round": [4] * 3, "client": [0, 1, 2], "split": ["test"] * 3}
    records |= {"model": ["personal"] * 3, "accuracy": [0.5] * 3, "loss": [0.7] * 3, "n": [9] * 3}
    append_part(run / "records.parquet", 4, records)
    append_part(run / "rounds.parquet", 4, {"round": [4], "seconds": [0.5]})
    (run / "settings.json").write_text(json.dumps({"method": "local", "seed": 0, "experiment": experiment}))
    page = watching_page(going)
    assert "<td>all/local-seed0</td><td>4 of 12</td>" in page  # how far it is
    assert numbers(page)["curves"]["lines"]["local"]["rounds"][-1] == 50  # and the loss of the one before


def test_what_a_guard_decides_has_records_but_no_rounds_of_its_own(going: Path) -> None:
    run = going / "runs" / "later-seed0"
    run.mkdir()
    experiment = {"name": "custom", "rounds": 80, "scenario": {"data": "patients.csv"}}
    (run / "settings.json").write_text(json.dumps({"method": "later", "seed": 0, "experiment": experiment}))
    records: dict[str, list[Any]] = {"round": [4] * 3, "client": [0, 1, 2], "split": ["test"] * 3}
    records |= {"model": ["personal"] * 3, "accuracy": [0.5] * 3, "loss": [0.7] * 3, "n": [9] * 3}
    append_part(run / "records.parquet", 4, records)
    (run / "summary.json").write_text(json.dumps({"names": ["a", "b", "c"]}))
    page = watching_page(going)
    assert "1 of the 2 trainings begun so far is done." in page
    assert "<td>later</td><td>1 of 1</td><td>later-seed0</td><td>decided</td>" in page


def test_a_file_that_cannot_be_read_now_is_tried_again(going: Path) -> None:
    with watching_server(going) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (going / "settings.json").rename(going / "elsewhere.json")
        connection = http.client.HTTPConnection(HOST, server.server_port)
        connection.request("GET", f"/{server.key}/")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == 503
        assert "http-equiv='refresh'" in text
        assert "settings.json" in text
        server.shutdown()


def test_news_changes_the_state_and_a_summary_ends_the_watch(going: Path) -> None:
    before = state_of(going)
    assert before == state_of(going)
    next((going / "runs" / "local-seed0" / "records.parquet").iterdir()).touch()
    assert state_of(going) != before
    assert not is_finished(going)
    (going / "summary.json").write_text(json.dumps(make_summary(("local", "<b>x"), clients=3, seeds=1)))
    assert is_finished(going)
    assert "no verdict yet" not in watching_page(going)


def test_a_summary_of_before_is_no_end(going: Path) -> None:
    import os

    (going / "summary.json").write_text("{}")
    os.utime(going / "summary.json", (1, 1))
    assert not is_finished(going)


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"settings\.json is missing"):
        watching_server(tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(RunError, match="holds no comparison"):
        watching_server(tmp_path)


def test_only_this_machine_is_answered_and_only_by_its_own_name(going: Path) -> None:
    with watching_server(going) as server:
        assert server.server_address[0] == HOST == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = int(server.server_address[1])
        with pytest.raises(InputError, match=f"--port {port}: "):
            watching_server(going, port)

        def answer(path: str, host: str | None = None, method: str = "GET") -> http.client.HTTPResponse:
            link = http.client.HTTPConnection(HOST, port, timeout=10)
            link.request(method, path, headers={"Host": host or f"{HOST}:{port}"})
            found = link.getresponse()
            found.text = found.read().decode()  # type: ignore[attr-defined]
            link.close()
            return found

        def status(path: str, host: str | None = None) -> int:
            return answer(path, host).status

        own = f"/{server.key}/"
        assert server.address == f"http://{HOST}:{port}{own}"
        assert [status(own), status(f"{own}state"), status(f"{own}summary.json"), status(f"{own}../x")] == [
            200,
            200,
            404,
            404,
        ]
        # Others with an account on this machine reach the port, but the folder is not theirs.
        assert {status(path) for path in ("/", "/state", f"/{server.key[:-1]}/", "//")} == {404}
        assert status(own, "evil.example") == 404
        assert [answer(own, method=name).status for name in ("POST", "HEAD", "PUT")] == [501] * 3
        for path in (own, f"{own}state", "/"):
            headers = answer(path).headers
            assert headers["Server"] == "fairlead"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
            assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
        next((going / "runs" / "local-seed0" / "records.parquet").iterdir()).write_bytes(b"half")
        assert status(own) == 503
        (going / "settings.json").write_text('{"methods": 5, "experiment": 3}')
        assert answer(own).status == 503
        server.shutdown()


def test_a_browser_that_says_nothing_is_not_waited_for_and_one_that_goes_is_no_traceback(
    going: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fairlead.report.live.SLOW", 0.2)
    with watching_server(going) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        before = threading.active_count()
        slow = [socket.create_connection((HOST, server.server_port)) for _ in range(20)]
        for one in slow:
            one.sendall(b"GET / HT")
            assert one.recv(100) == b""  # it was closed
            one.close()
        hasty = socket.create_connection((HOST, server.server_port))
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        hasty.sendall(f"GET /{server.key}/ HTTP/1.1\r\nHost: {HOST}:{server.server_port}\r\n\r\n".encode())
        hasty.close()
        end = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < end:
            time.sleep(0.05)
        assert threading.active_count() <= before
        server.shutdown()
    assert capfd.readouterr().err == ""
