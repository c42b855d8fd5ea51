"""What a run was made from, as short texts: equal content gives equal text, in any process.

Data count by the content of their tensors, a model by its architecture and initial weights, a method by its code: byte
code, constants, defaults, closures and the globals it uses, those of its helpers too. Code of installed packages counts
by name and file, the rest of this library by `ARITHMETIC`. What can be compared in none of these ways is unknown, and a
run made from it is never reused. What a function reads from files or the network while it runs is not seen.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import json
import platform
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Raise it with every change that gives the same settings other numbers: older run folders are then refused.
ARITHMETIC = 5
UNKNOWN = "unknown: "
# Method code that is looked into. The rest of the library stands behind ARITHMETIC.
WALKED = ("fairlead.methods", "fairlead.servers", "fairlead.functional")
MADE = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__annotate__", "__annotate_func__"}
MADE |= {"__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl"}
NAMED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)


class _Unknown(Exception):
    """Something that has no content to compare."""


def fingerprint(thing: object) -> str:
    """A short text that is the same for the same content; it begins with `UNKNOWN` where there is no telling.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(2)) != fingerprint(torch.ones(2))
    True
    >>> fingerprint(iter([1].append for _ in ())).startswith(UNKNOWN)
    True
    """
    try:
        return _Walk().of(thing, "").hex()[:16]
    except _Unknown as found:
        return f"{UNKNOWN}{found}"
    except RecursionError:
        return f"{UNKNOWN}it is nested too deeply to compare"


def arithmetic() -> dict[str, str]:
    """The versions that the bits of a result depend on."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"arithmetic": str(ARITHMETIC), "torch": str(torch.__version__), "python": python}


def versions() -> dict[str, str]:
    """The versions of the software, for the reader of a result; from a checkout, its commit as well."""
    found = {"fairlead": _own_version(), "torch": str(torch.__version__), "python": platform.python_version()}
    return found | ({"commit": commit} if (commit := checkout()) else {})


@cache
def _own_version() -> str:
    try:
        return version("fairlead")
    except PackageNotFoundError:  # running from a source tree that is not installed
        return "unknown"


@cache
def checkout() -> str | None:
    """The commit of the source tree this runs from, "-dirty" added where files differ; None for an installed copy."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    # Not `describe --dirty`: it writes the index anew, and where it is cut off its lock stays in the repository.
    git = ["git", "--no-optional-locks", "-C", str(root)]
    asked = (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        commit, changed = (
            subprocess.run(git + words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + "-dirty" * bool(changed)


def digest(value: object) -> str:
    """A short name for plain settings."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _hash(*parts: bytes | str) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        text = part.encode() if isinstance(part, str) else part
        whole.update(len(text).to_bytes(8, "little"))
        whole.update(text)
    return whole.digest()


@cache
def _package(module: str) -> str | None:
    """How code of an installed package is told apart: by its module and file. None for code to look into."""
    root = module.partition(".")[0]
    if root == "fairlead":
        return None if module.startswith(WALKED) else module
    if root in sys.stdlib_module_names and root != "__main__":
        return module
    file = getattr(sys.modules.get(module), "__file__", None) or getattr(sys.modules.get(root), "__file__", None)
    if file is None or not {"site-packages", "dist-packages"} & set(Path(file).parts):
        return None
    version = str(getattr(sys.modules.get(root), "__version__", ""))
    code = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file.endswith(".py") else ""
    return f"{module} {version} {code}"


class _Walk:
    """A hash of hashes, down to plain values; each object once, cycles by how far up they lead."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[object, bytes]] = {}  # objects are kept, so that no other takes their id
        self._open: dict[int, int] = {}

    def of(self, thing: Any, path: str) -> bytes:
        if thing is None or type(thing) in (bool, int, float, complex, str, bytes):
            return _hash(type(thing).__name__, repr(thing))
        key = id(thing)
        if key in self._done:
            return self._done[key][1]
        if key in self._open:
            return _hash("cycle", str(len(self._open) - self._open[key]))
        self._open[key] = len(self._open)
        try:
            result = _hash(*self._parts(thing, path))
        finally:
            del self._open[key]
        self._done[key] = (thing, result)
        return result

    def _parts(self, thing: Any, path: str) -> Iterator[bytes | str]:
        """What a thing is made of, by its kind."""
        kinds: tuple[tuple[bool, Callable[[Any, str], Iterator[bytes | str]]], ...] = (
            (isinstance(thing, Tensor), self._tensor),
            (isinstance(thing, np.ndarray), self._array),
            (type(thing) in (list, tuple, set, frozenset), self._items),
            (isinstance(thing, tuple) and hasattr(thing, "_fields"), self._named_tuple),
            (_is_plain_mapping(thing), self._mapping),
            (dataclasses.is_dataclass(thing) and not isinstance(thing, type), self._dataclass),
            (isinstance(thing, types.ModuleType), self._module),
            (isinstance(thing, type), self._class),
            (isinstance(thing, types.FunctionType), self._function),
            (isinstance(thing, types.MethodType), self._method),
            (isinstance(thing, NAMED), self._builtin),
            (isinstance(thing, types.CodeType), self._code),
            (isinstance(thing, property), self._property),
            (isinstance(thing, staticmethod | classmethod), self._unbound),
            (True, self._object),
        )
        return next(parts for fits, parts in kinds if fits)(thing, path)

    def _array(self, x: Any, path: str) -> Iterator[bytes | str]:
        yield from ("array", x.dtype.str, str(x.shape))
        yield self.of(x.tolist(), path) if x.dtype == object else np.ascontiguousarray(x).tobytes()

    def _items(self, thing: Any, path: str) -> Iterator[bytes | str]:
        items = [self.of(x, path) for x in thing]
        ordered = isinstance(thing, list | tuple)
        yield type(thing).__name__ if ordered else "set"
        yield from items if ordered else sorted(items)

    def _named_tuple(self, thing: Any, path: str) -> Iterator[bytes | str]:
        yield self.of(type(thing), path)
        yield from (self.of(x, _inside(path, name)) for name, x in zip(thing._fields, thing, strict=True))

    def _mapping(self, thing: Any, path: str) -> Iterator[bytes | str]:
        yield "dict"
        for key, value in thing.items():
            yield from (self.of(key, path), self.of(value, _inside(path, key)))

    def _dataclass(self, thing: Any, path: str) -> Iterator[bytes | str]:
        """The fields alone: what an object has computed and kept besides is no part of what it is."""
        yield self.of(type(thing), path)
        for field in dataclasses.fields(thing):
            yield from (field.name, self.of(getattr(thing, field.name), _inside(path, field.name)))

    def _tensor(self, x: Tensor, path: str) -> Iterator[bytes | str]:
        if x.layout != torch.strided or x.is_quantized or x.device.type == "meta":
            raise _Unknown(f"a {x.layout} tensor on {x.device}{_at(path)}")
        flat = x.detach().cpu().contiguous().flatten()
        yield from ("tensor", str(x.dtype), str(tuple(x.shape)), str(x.requires_grad))
        yield flat.view(torch.uint8).numpy().data if flat.numel() else b""  # type: ignore[misc]

    def _module(self, thing: types.ModuleType, path: str) -> Iterator[bytes | str]:
        yield from ("module", _package(thing.__name__) or thing.__name__)

    def _method(self, thing: types.MethodType, path: str) -> Iterator[bytes | str]:
        yield from ("method", self.of(thing.__func__, path), self.of(thing.__self__, path))

    def _builtin(self, thing: Any, path: str) -> Iterator[bytes | str]:
        yield from ("builtin", str(getattr(thing, "__module__", "")), thing.__qualname__)
        owner = getattr(thing, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType | type):
            yield self.of(owner, path)

    def _code(self, code: types.CodeType, path: str) -> Iterator[bytes | str]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        yield from ("code", code.co_code, code.co_exceptiontable, repr(counts), repr(names))
        yield self.of(code.co_consts, path)

    def _property(self, thing: property, path: str) -> Iterator[bytes | str]:
        yield "property"
        yield from (self.of(f, path) for f in (thing.fget, thing.fset, thing.fdel))

    def _unbound(self, thing: Any, path: str) -> Iterator[bytes | str]:
        yield from (type(thing).__name__, self.of(thing.__func__, path))

    def _class(self, cls: type, path: str) -> Iterator[bytes | str]:
        package = _package(cls.__module__)
        yield from ("class", package or "", cls.__qualname__)
        if package is None:
            yield from (self.of(type(cls), path), self.of(cls.__bases__, path))
            for name in sorted(vars(cls).keys() - MADE):
                yield from (name, self.of(vars(cls)[name], _inside(path, name)))

    def _function(self, f: types.FunctionType, path: str) -> Iterator[bytes | str]:
        package = _package(f.__module__ or "__main__")
        if package is not None:
            yield from ("function", package, f.__qualname__)
            if f.__closure__ is None:
                return
        yield from (
            "function",
            self.of(f.__code__, path),
            self.of(f.__defaults__, path),
            self.of(f.__kwdefaults__, path),
        )
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            try:
                yield from (name, self.of(cell.cell_contents, _inside(path, name)))
            except ValueError:  # a variable that is not set yet
                yield name
        if package is not None:
            return
        names, attributes = _globals(f.__code__, path)
        for name in sorted(names & f.__globals__.keys()):
            yield from (name, self._global(f.__globals__[name], attributes, _inside(path, name)))
        yield self.of({n: v for n, v in vars(f).items() if n != "__wrapped__"}, path)

    def _global(self, thing: Any, attributes: set[str], path: str) -> bytes:
        """A global that a function uses; of a module of the user's own, what may be taken from it."""
        if not isinstance(thing, types.ModuleType) or _package(thing.__name__) is not None:
            return self.of(thing, path)
        inside = vars(thing)
        return _hash(*(_hash(n, self._global(inside[n], attributes, path)) for n in sorted(attributes & inside.keys())))

    def _object(self, thing: Any, path: str) -> Iterator[bytes | str]:
        """Anything else, by what `pickle` would keep of it; what it refuses has no content to compare."""
        try:
            reduced = thing.__reduce_ex__(4)
        except Exception as error:
            raise _Unknown(f"an object of type {type(thing).__qualname__}{_at(path)}") from error
        yield self.of(type(thing), path)
        if isinstance(reduced, str):
            wrapped = getattr(thing, "__wrapped__", None)
            yield from (reduced, self.of(wrapped, path))
            return
        # A function, its arguments, and maybe a state; then iterators over the items of a list and of a dict.
        yield from (self.of(part, path) for part in reduced[:3])
        yield from (self.of(None if items is None else list(items), path) for items in reduced[3:5])


def _is_plain_mapping(thing: object) -> bool:
    return isinstance(thing, dict | types.MappingProxyType) and type(thing).__module__ in ("builtins", "collections")


def _inside(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _at(path: str) -> str:
    return f" ({path})" if path else ""


def _globals(code: types.CodeType, path: str) -> tuple[set[str], set[str]]:
    """The globals a function reads, those of functions inside it too, and the attributes it may take from them."""
    names: set[str] = set()
    attributes = set(code.co_names)
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(str(step.argval))
        elif step.opname == "IMPORT_NAME" and not _installed(str(step.argval)):
            raise _Unknown(f"an import of '{step.argval}' while it runs{_at(path)}; import it at the top of the file")
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            more, further = _globals(const, path)
            names, attributes = names | more, attributes | further
    return names, attributes


def _installed(module: str) -> bool:
    return module.partition(".")[0] == "fairlead" or (module in sys.modules and _package(module) is not None)
