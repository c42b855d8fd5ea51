"""Where the data of sites lie, when all of them are tried on one machine."""

from __future__ import annotations

from pathlib import Path

from fairlead.core import DataError
from fairlead.data.files import is_table


def data_of(folder: Path, site: str) -> Path:
    """A site's data in a folder of all sites': FOLDER/SITE.csv or another table, or FOLDER/SITE/."""
    found = [p for p in sorted(folder.glob(f"{site}.*")) if is_table(p)] + [p for p in [folder / site] if p.is_dir()]
    if len(found) != 1:
        what = " and ".join(p.name for p in found) or "nothing"
        raise DataError(f"{folder} has {what} for the site '{site}'; expected one table {site}.csv, or a folder {site}")
    return found[0].resolve()
