"""Small image folders in Hugging Face layout."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path | None:
    """Keep made-up data out of the user's cache; real data belong there, and are decoded once."""
    if "real_data" in request.fixturenames:
        return None
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FAIRLEAD_CACHE", str(folder))
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Any]:
    """A function that writes a data set of random PNGs and returns the pixels, part after part."""

    def write(
        name: str,
        counts: dict[str, int],
        *,
        size: tuple[int, int] = (4, 4),
        mode: str = "L",
        image: str = "image",
        label: str = "label",
        extra: dict[str, Callable[..., Any]] | None = None,
        classes: tuple[str, str] = ("a", "b"),
    ) -> np.ndarray:
        rng = np.random.default_rng(0)
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        pixels = []
        for part, n in counts.items():
            shape = (n, *size[::-1]) if mode == "L" else (n, *size[::-1], 3)
            x = rng.integers(0, 256, shape, dtype=np.uint8)
            pixels.append(x)
            y = np.arange(n) % len(classes)
            table = {image: [{"bytes": png(a), "path": None} for a in x], label: y}
            if extra:
                table |= {key: make(n) for key, make in extra.items()}
            info = {"info": {"features": {label: {"names": list(classes), "_type": "ClassLabel"}}}}
            schema = pa.table(table).replace_schema_metadata({"huggingface": json.dumps(info)})
            pq.write_table(schema, folder / f"{part}-00000-of-00001.parquet")
        return np.concatenate(pixels)

    return write


def png(array: np.ndarray) -> bytes:
    """An array of pixels as the bytes of a PNG."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()
