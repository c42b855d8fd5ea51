"""Write a study as a Flower app: a folder that `flwr run` takes."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.core import InputError, require
from fairlead.machines.site import VERSION
from fairlead.machines.study import SETTINGS, Study

APP = Path(__file__).parent / "app"
PACKAGE = "fairlead_study"
PYPROJECT = """\
# A study of Fairlead. `flwr run` sends this folder to the SuperLink, and that to the sites' SuperNodes; Fairlead itself
# must be installed there: pip install 'fairlead[flower]=={version}'

[project]
name = "fairlead-study"
version = "1.0.0"
description = "A study of Fairlead"
dependencies = ["fairlead[flower]=={version}"]

[tool.flwr.app]
publisher = "fairlead"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
# Who takes part, by the names in their --node-config; what is trained beside training alone; how many times.
sites = {sites}
methods = {methods}
seeds = {seeds}
# The study's folder on the SuperLink's machine, as a full path: records, checkpoints and results go there.
out = {out}
# How long a site may take for an answer, and how much longer than the others, in seconds.
wait-seconds = 600
grace-seconds = 20
# true: a site may be any node that gives its name, as without authentication nodes have no lasting identity.
insecure = {insecure}
secure-aggregation = false
# As for `fairlead compare`; "" leaves the choice to Fairlead.
{settings}
"""


def write_app(folder: Path, study: Study, out: Path, *, insecure: bool = False) -> None:
    """The folder of an app for this study."""
    require(not (folder / "pyproject.toml").exists(), f"{folder} holds an app already; choose another folder")
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "server_app.py", "client_app.py"):
        shutil.copyfile(APP / name, package / name)
    text = PYPROJECT.format(
        version=VERSION,
        package=PACKAGE,
        sites=json.dumps(",".join(study.sites)),
        methods=json.dumps(",".join(study.methods)),
        seeds=study.seeds,
        out=json.dumps(str(out)),
        insecure=json.dumps(insecure),
        settings="\n".join(f"{key.replace('_', '-')} = {_toml(study.settings.get(key))}" for key in SETTINGS),
    )
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def read_config(folder: Path) -> dict[str, Any]:
    """The config of an app, as the ServerApp is given it."""
    path = folder / "pyproject.toml"
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise InputError(f"{folder} holds no app ({error}); write one with: fairlead flower init {folder}") from error
    return found


def _toml(value: Any) -> str:
    if value is None:
        return '""'
    if isinstance(value, Mapping):
        value = " ".join(f"{name}.{key}={v}" for name, options in value.items() for key, v in options.items())
    elif isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return json.dumps(value)
