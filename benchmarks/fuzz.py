"""Broken input of many kinds, for `benchmarks.torture`: each case takes a generator and an empty folder.

A case may end well or raise a `FairleadError`; anything else is a defect.
"""

from __future__ import annotations

import datetime
import decimal
import json
import random
import shutil
import string
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import fairlead
import fairlead.cli
from fairlead.clients import Node
from fairlead.clients.node import only, placed
from fairlead.clients.wire import Ask, pack_ask, unpack_reply
from fairlead.core import Federation, InputError, Plan, Split
from fairlead.core.training import Training
from fairlead.data import survey
from fairlead.methods import METHODS, WRAPPERS
from fairlead.report import write_page
from fairlead.runs.files import read_tensors, write_tensors
from fairlead.servers import STAGES
from fairlead.settings import Settings, check, resolve

Draw = random.Random
ODD_TEXT = ["", " ", "\x00", "é", "\u202e", "-1", "0", "nan", "inf", "1e309", "1" * 400, "None", "a" * 5000, "../../x"]
ODD_TEXT += [
    "'",
    '"',
    "[1]",
    "{}",
    "1,2,3",
    "0.5,0.5",
    "1,1,1,1",
    "x=1",
    "--help",
    "99999999999999999999",
    "1_000",
    "٣",
]
ODD_VALUES: list[Any] = [None, True, False, 0, -1, 1, 10**6, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.0, -0.5, 1e-320]
ODD_VALUES += [1e308, float("inf"), float("nan"), [], [1], ["a"], [[]], {}, {"a": 1}, {"a": {"b": {}}}, *ODD_TEXT]


def plain(value: object) -> object:
    """A value that JSON takes."""
    return value if value == value and value not in (float("inf"), -float("inf")) else str(value)


def odd_column(draw: Draw, n: int) -> pa.Array:
    """A column of a type that tables may have, though nobody expects it."""
    now = datetime.datetime(2024, 1, 1)
    kinds: list[Callable[[], pa.Array]] = [
        lambda: pa.array([draw.randbytes(draw.randrange(4)) for _ in range(n)], pa.binary()),
        lambda: pa.array([[draw.random()] * draw.randrange(3) for _ in range(n)], pa.list_(pa.float64())),
        lambda: pa.array([draw.randrange(2**64) for _ in range(n)], pa.uint64()),
        lambda: pa.array([draw.randrange(-(2**63), 2**63) for _ in range(n)], pa.int64()),
        lambda: pa.array(
            [now + datetime.timedelta(seconds=draw.randrange(10**9)) for _ in range(n)], pa.timestamp("ns")
        ),
        lambda: pa.array([now.date()] * n, pa.date32()),
        lambda: pa.array([datetime.time(1, 2)] * n, pa.time64("us")),
        lambda: pa.array([datetime.timedelta(seconds=i) for i in range(n)], pa.duration("us")),
        lambda: pa.array([decimal.Decimal("1.50")] * n, pa.decimal128(9, 2)),
        lambda: pa.array([{"a": i, "b": "x"} for i in range(n)]),
        lambda: pa.array([None] * n, pa.null()),
        lambda: pa.array([draw.choice([True, False, None]) for _ in range(n)], pa.bool_()),
        lambda: pa.array([draw.choice([1e308, -1e308, float("inf"), float("nan"), 0.0]) for _ in range(n)]),
        lambda: pa.array([draw.choice(ODD_TEXT) for _ in range(n)]),
        lambda: pa.array([f"{i}" for i in range(n)]),
        lambda: pa.array(["a", "b"] * (n // 2) + ["a"] * (n % 2)).dictionary_encode(),
        lambda: pa.array([draw.random() for _ in range(n)], pa.float16() if draw.random() < 0.3 else pa.float32()),
        lambda: pa.array([i % 3 for i in range(n)], pa.int8()),
    ]
    return draw.choice(kinds)()


def parquet_table(draw: Draw, folder: Path) -> None:
    """A table whose columns are of any type."""
    n = draw.choice([0, 1, 2, 5, 30, 60])
    names = draw.sample(["y", "site", "a", "b", "c", "owner", "split", "", "y "], draw.randrange(1, 6))
    usual = {"y": pa.array([i % 2 for i in range(n)]), "site": pa.array([f"s{i % 3}" for i in range(n)])}
    columns = {m: usual[m] if m in usual and draw.random() < 0.6 else odd_column(draw, n) for m in names}
    pq.write_table(pa.table(columns), folder / "t.parquet")
    read_data(draw, folder / "t.parquet")


def read_data(draw: Draw, path: Path) -> None:
    """Read a table as `fairlead data` would, and divide it."""
    asked: dict[str, Any] = {"data": str(path), "label": draw.choice(["y", "y", "y", "a", "nothing", "a,b", ""])}
    if draw.random() < 0.8:
        asked["column"] = draw.choice(["site", "site", "site", "a", "b", "y", "nothing"])
    for key, values in {"task": ["classes", "quantity"], "positive": [">0", "yes", "a|b", ">x", ""]}.items():
        if draw.random() < 0.2:
            asked[key] = draw.choice(values)
    for key in ("drop", "numeric", "words"):
        if draw.random() < 0.15:
            asked[key] = draw.choice(["a", "b,c", "nothing", ""])
    experiment = resolve(check(asked))
    source = experiment.scenario.load(experiment.data_dir)
    survey(experiment.scenario, source)
    experiment.scenario.build(0, source=source)


GOOD_CSV = "site,age,sex,y\n" + "".join(f"s{i % 3},{20 + i},{'mf'[i % 2]},{i % 2}\n" for i in range(40))


def csv_table(draw: Draw, folder: Path) -> None:
    """A table in text with some of its bytes changed, cut or doubled."""
    data = bytearray(GOOD_CSV.encode(draw.choice(["utf-8", "utf-16", "latin-1", "utf-8-sig"])))
    for _ in range(draw.randrange(8)):
        at = draw.randrange(len(data))
        change = draw.randrange(4)
        if change == 0:
            data[at] = draw.randrange(256)
        elif change == 1:
            del data[at : at + draw.randrange(1, 30)]
        elif change == 2:
            data[at:at] = draw.choice([b",", b"\n", b'"', b"\x00", b";", b"\r", "é".encode(), b"1e999", b"," * 50])
        else:
            data[at:at] = data[at : at + draw.randrange(1, 60)]
        if not data:
            break
    path = folder / draw.choice(["t.csv", "t.tsv", "t.txt", "t.csv.gz", "t.xlsx", "t.parquet"])
    path.write_bytes(bytes(data))
    read_data(draw, path)


def image_table(draw: Draw, folder: Path) -> None:
    """Images in parquet files, with columns of any type and metadata that may be no JSON."""
    n = draw.choice([0, 1, 6, 20])
    png = _png()
    columns = {
        "image": pa.array([{"bytes": png, "path": None}] * n) if draw.random() < 0.5 else odd_column(draw, n),
        "label": pa.array([i % 2 for i in range(n)]) if draw.random() < 0.5 else odd_column(draw, n),
        "site": odd_column(draw, n),
    }
    table = pa.table({m: columns[m] for m in draw.sample(list(columns), draw.randrange(1, 4))})
    told = draw.choice([b"{", b"[]", b"null", b'{"info": 3}', b'{"info": {"features": []}}', b"\xff", b"{}"])
    table = table.replace_schema_metadata({"huggingface": told}) if draw.random() < 0.6 else table
    (folder / "pictures").mkdir()
    for part in draw.sample(["train", "test", "validation"], draw.randrange(1, 3)):
        pq.write_table(table, folder / "pictures" / f"{part}-0.parquet")
    if draw.random() < 0.15:
        (folder / "pictures" / "train-0.parquet").write_bytes(draw.randbytes(50))
    experiment = resolve(check({"data": "pictures", "data_dir": folder, "clients": 2}))
    source = experiment.scenario.load(experiment.data_dir)
    experiment.scenario.build(0, source=source)


@cache
def _png() -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def array_files(draw: Draw, folder: Path) -> None:
    """A folder of arrays."""
    for i in range(draw.randrange(1, 4)):
        n = draw.choice([0, 3, 12])
        x = draw.choice(
            [np.zeros((n, 2)), np.zeros((n, 2), np.uint64), np.zeros(n), np.array(["a"] * n), np.zeros((2, n))]
        )
        y = draw.choice(
            [np.arange(n) % 2, np.zeros(n), np.array(["b"] * n), np.zeros((n, 2)), np.arange(n, dtype=np.uint64)]
        )
        if draw.random() < 0.2:
            x = x.astype(object)
        names = draw.choice([{"x": x, "y": y}, {"x": x}, {"data": x, "target": y}, {"x": y, "y": x}])
        np.savez(folder / f"{i}.npz", **names)  # type: ignore[arg-type]
    if draw.random() < 0.3:
        (folder / "0.npz").write_bytes(draw.randbytes(40))
    experiment = resolve(check({"data": str(folder)}))
    experiment.scenario.build(0, source=experiment.scenario.load(None))


def setting_values(draw: Draw, folder: Path) -> None:
    """Settings with odd values."""
    del folder
    names = draw.sample([n for n in Settings.model_fields if n != "data_dir"], draw.randrange(1, 4))
    experiment = resolve(check({name: draw.choice(ODD_VALUES) for name in names}))
    if experiment.scenario.data == "digits":
        experiment.scenario.build(0)


def command_line(draw: Draw, folder: Path) -> None:
    """A command with odd options, or with an odd settings file."""
    asked = ["compare", draw.choice(["fedavg", "local", "", "fedavg+", "+ft", draw.choice(ODD_TEXT)])]
    if draw.random() < 0.5:
        values = {
            n: draw.choice(ODD_VALUES) for n in draw.sample([*Settings.model_fields, "methods", "seeds", "out"], 2)
        }
        lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
        (folder / "c.toml").write_text("\n".join(lines), encoding="utf-8", errors="replace")
        asked += ["--config", str(folder / "c.toml")]
    else:
        for name in draw.sample(list(Settings.model_fields), draw.randrange(1, 3)):
            asked += [f"--{name.replace('_', '-')}", draw.choice(ODD_TEXT)]
    asked += ["--out", str(folder / "out")]
    if not any(part in ("--rounds", "--config") for part in asked):
        asked += ["--rounds", "1"]
    command(asked)


def _toml(value: object) -> str:
    return json.dumps(plain(value)).replace("null", '"null"').replace(": ", " = ")


def command(asked: list[str]) -> None:
    """The command `fairlead`; an error of the option parser is a sentence."""
    try:
        fairlead.cli.app(asked, standalone_mode=False)
    except fairlead.FairleadError:
        raise
    except Exception as error:
        if hasattr(error, "format_message") or type(error).__name__ in ("Exit", "Abort"):
            raise InputError(str(error)) from error
        raise


def method_options(draw: Draw, folder: Path) -> None:
    """A method with an option of an odd value, for a round."""
    from fairlead.catalogue import keywords_of

    known = {**METHODS, **STAGES, **WRAPPERS}
    with_options = [name for name, factory in known.items() if keywords_of(factory)]
    name = draw.choice(with_options)
    key = draw.choice(list(keywords_of(known[name])))
    values = ["0", "-1", "1e308", "1e-308", "nan", "inf", "9" * 12, "2147483648", "1.5", "x", "true", "1e3", "0.999"]
    method = name if name in METHODS else f"fedavg+{name}"
    settings = {"clients": 3, "rounds": 1, "engine": "loop", "model": "logistic", "scenario": "rotated-digits"}
    fairlead.compare([method], out=folder / "out", set={name: {key: draw.choice(values)}}, **settings)  # type: ignore[arg-type]


def method_names(draw: Draw, folder: Path) -> None:
    """A name that is none."""
    del folder
    letters = string.ascii_lowercase + "+-./\\ \x00é"
    name = draw.choice(["", draw.choice(list(METHODS))]) + "".join(draw.choices(letters, k=draw.randrange(1, 8)))
    fairlead.parse(name)


TEMPLATE = Path("template")  # where the finished comparison is that cases damage copies of


def make_template() -> None:
    """A finished comparison, for all cases."""
    folder = TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"clients": 3, "rounds": 2, "engine": "loop", "model": "logistic", "evaluate_every": 1}
    (folder / "t.csv").write_text(GOOD_CSV)
    fairlead.compare(["fedavg", "scaffold"], out=folder / "out", scenario="rotated-digits", **settings)


def copied(folder: Path) -> Path:
    """A copy of the finished comparison."""
    return Path(shutil.copytree(TEMPLATE / "out", folder / "out"))


def damaged_file(draw: Draw, folder: Path) -> None:
    """A comparison one of whose files has changed bytes."""
    out = copied(folder)
    path = draw.choice(sorted(p for p in out.rglob("*") if p.is_file() and p.suffix != ".lock"))
    data = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 4)):
        if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.2 else data))
    if draw.random() < 0.5:
        for summary in out.glob("runs/*/summary.json"):
            summary.unlink()
    fairlead.resume(out)
    write_page(out)


def changed_json(draw: Draw, folder: Path) -> None:
    """A comparison one of whose JSON files has a value that somebody else put there."""
    out = copied(folder)
    path = draw.choice(sorted(out.rglob("*.json")))
    value = json.loads(path.read_text())
    _replace_somewhere(value, draw)
    path.write_text(json.dumps(value))
    if draw.random() < 0.3:
        for summary in out.glob("runs/*/summary.json"):
            summary.unlink()
    what = draw.randrange(3)
    if what == 0:
        fairlead.resume(out)
    elif what == 1:
        write_page(out)
    else:
        command(["predict", str(out), "--owner", "0", str(TEMPLATE / "t.csv")])


def _replace_somewhere(value: Any, draw: Draw) -> None:
    """Change, add or delete one entry of nested lists and mappings."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and draw.random() < 0.8:
            value = value[key]
            continue
        if draw.random() < 0.15:
            del value[key]
        elif isinstance(value, dict) and draw.random() < 0.15:
            value["of a later version"] = 1
        else:
            value[key] = plain(draw.choice(ODD_VALUES))
        return


def forged_checkpoint(draw: Draw, folder: Path) -> None:
    """A checkpoint with sound checksums and tensors that somebody else put there."""
    out = copied(folder)
    path = draw.choice(sorted(out.glob("runs/*/checkpoint.safetensors")))
    tensors, facts = read_tensors(path)
    told = {n: t for n, t in facts.items() if n not in ("format", "tensors", "facts")}
    for _ in range(draw.randrange(1, 3)):
        name = draw.choice(sorted(tensors))
        x = tensors[name]
        what = draw.randrange(6)
        if what == 0:
            del tensors[name]
        elif what == 1:
            tensors[draw.choice(["attic/x", "clients/x", "server/x", "message/x", "x", ""])] = x.clone()
        elif what == 2:
            tensors[name] = x[..., : max(x.shape[-1] - 1, 0)].clone() if x.ndim else x
        elif what == 3:
            tensors[name] = draw.choice(
                [x.to(torch.int64), x.to(torch.float64), x.to(torch.bool), x.to(torch.bfloat16)]
            )
        elif what == 4:
            tensors[name] = (x * -1) if x.dtype != torch.bool else x
        else:
            told[draw.choice(["round", "best", "earlier", "later"])] = draw.choice(
                [*ODD_TEXT, "[1, 2, 3, 4]", "3", "1"]
            )
        if not tensors:
            break
    write_tensors(path, tensors, **told)
    for summary in out.glob("runs/*/summary.json"):
        summary.unlink()
    fairlead.resume(out, rounds=draw.choice([None, 3]))


@cache
def node() -> tuple[Node, bytes]:
    """A client on a machine of its own, and a question it understands."""
    split = Split(torch.randn(12, 4), torch.arange(12) % 2, torch.tensor([0, 6, 12]))
    federation = Federation(split, split, split, ("a", "b"))
    module = torch.nn.Linear(4, 2)
    method = fairlead.parse("fedavg").method
    plan, training = Plan(rounds=3), Training()
    one = Node(1, placed(only(federation, 1), 1, 2), training, method, module, plan, TEMPLATE / "node")
    w = torch.cat([p.detach().flatten() for p in module.parameters()])[None]
    return one, pack_ask(Ask("run", "train", 1, client=1), {"w": w})


def messages(draw: Draw, folder: Path) -> None:
    """A question with changed bytes, to a client on a machine of its own."""
    del folder
    one, good = node()
    data = bytearray(good)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(min(len(data), 400) if draw.random() < 0.7 else len(data))
        data[at] = draw.randrange(256) if draw.random() < 0.5 else data[at] ^ (1 << draw.randrange(8))
    cut = draw.randrange(len(data)) if draw.random() < 0.2 else len(data)
    unpack_reply(one.answer(bytes(data[:cut])))


CASES = [
    parquet_table,
    csv_table,
    image_table,
    array_files,
    setting_values,
    command_line,
    method_options,
    method_names,
    damaged_file,
    changed_json,
    forged_checkpoint,
    messages,
]
