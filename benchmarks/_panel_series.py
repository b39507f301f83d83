"""Real series that packages bring: M1 yearly in aeon's, statsmodels' sets, and those of R."""

import bz2
import gzip
import importlib.util
import lzma
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

LONGEST = 400
"""Values of a series that are used, the last ones."""
HORIZONS = {1: 6, 4: 8, 12: 18}


class Named(NamedTuple):
    """A series, and the set it is judged in."""

    name: str
    values: np.ndarray
    season: int
    set: str

    @property
    def horizon(self) -> int:
        """As in the competitions: 6 years, 8 quarters, 18 months; fewer for short series."""
        return min(HORIZONS[self.season], len(self.values) // 4)


def of_aeon(wheel: Path) -> Iterator[Named]:
    """M1 yearly, 181 series, from the wheel of aeon: ``pip download --no-deps aeon``."""
    with zipfile.ZipFile(wheel) as archive:
        path = next(name for name in archive.namelist() if name.endswith("m1_yearly_dataset.tsf"))
        lines = archive.read(path).decode("latin-1").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("@data"))
    for line in filter(str.strip, lines[start + 1 :]):
        name, *_, values = line.split(":")
        yield Named(name, np.array([float(x) for x in values.split(",")]), 1, "M1 yearly")


def of_statsmodels(folder: Path | None = None) -> Iterator[Named]:
    """Sets of statsmodels, from its CSV files; its code is not needed."""
    import pandas as pd

    if folder is None:
        spec = importlib.util.find_spec("statsmodels")
        if spec is None or spec.origin is None:
            return
        folder = Path(spec.origin).parent
    data = folder / "datasets"

    def read(name: str, **options: object) -> pd.DataFrame:
        return pd.read_csv(data / name / f"{name}.csv", **options)

    macro = read("macrodata")
    columns = {"realgdp": "GDP", "infl": "inflation", "unemp": "unemployment", "cpi": "CPI"}
    columns |= {"realcons": "consumption", "realinv": "investment", "tbilrate": "bill rate"}
    for column, name in columns.items():
        yield Named(name, macro[column].to_numpy(float), 4, "statsmodels")
    yield Named("sunspots", read("sunspots").iloc[:, -1].to_numpy(float), 1, "statsmodels")
    yield Named("Nile", read("nile").iloc[:, -1].to_numpy(float), 1, "statsmodels")
    elnino = read("elnino").iloc[:, 1:].to_numpy(float).ravel()
    yield Named("El Nino", elnino[-LONGEST:], 12, "statsmodels")
    weekly = read("co2")
    dates = pd.to_datetime(weekly["date"].astype(str), format="%Y%m%d")
    monthly = pd.Series(weekly["co2"].to_numpy(float), dates).resample("MS").mean().interpolate()
    yield Named("CO2", monthly.to_numpy()[-LONGEST:], 12, "statsmodels")
    strikes = read("copper")
    yield Named("copper", strikes["WORLDCONSUMPTION"].to_numpy(float), 1, "statsmodels")


def of_r(library: Path, package: str) -> Iterator[Named]:
    """Series of one column of an R package, with a period of 1, 4 or 12, by `rdata`.

    Args:
        library: the folder of packages in what ``dpkg-deb -x`` unpacked.
        package: as "datasets" or "forecast".
    """
    import rdata

    data = library / package / "data"
    listing = rdata.conversion.convert(
        rdata.parser.parse_data(gzip.decompress((data / "Rdata.rdx").read_bytes()))
    )
    stored = (data / "Rdata.rdb").read_bytes()
    for name, (offset, length) in sorted(listing["variables"].items()):
        chunk = stored[offset : offset + length]
        (size,) = struct.unpack(">I", chunk[:4])
        unpacked = _unpacked(chunk[4:])
        assert len(unpacked) == size
        found = _series_of(rdata.parser.parse_data(unpacked).object)
        if found is not None:
            values, period = found
            yield Named(str(name), values[-LONGEST:], period, f"R {package}")


def _unpacked(chunk: bytes) -> bytes:
    """A chunk begins with a letter where it is not zlib's: R's levels of compression."""
    if chunk[:1] == b"2":
        return bz2.decompress(chunk[1:])
    if chunk[:1] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        return lzma.decompress(chunk[1:], format=lzma.FORMAT_RAW, filters=filters)
    return zlib.decompress(chunk)


def _series_of(parsed: object) -> tuple[np.ndarray, int] | None:
    """Values and period of a `ts` object of one column without gaps."""
    attributes, node = {}, getattr(parsed, "attributes", None)
    while node is not None and getattr(node, "value", None) is not None and len(node.value) == 2:
        tag = node.tag
        tag = getattr(tag, "referenced_object", None) or tag
        name = getattr(tag.value, "value", b"")
        attributes[name.decode() if isinstance(name, bytes) else str(name)] = node.value[0]
        node = node.value[1]
    if "tsp" not in attributes or "dim" in attributes:
        return None
    period = round(float(attributes["tsp"].value[2]))
    values = np.asarray(parsed.value, dtype=float)  # type: ignore[attr-defined]
    if period not in HORIZONS or len(values) < 20 or not np.isfinite(values).all():
        return None
    return values, period


def all_of(wheel: Path | None, statsmodels: Path | None, libraries: list[Path]) -> list[Named]:
    """Those that are there; what is not is said on the error stream."""
    series = []
    if wheel is not None:
        series += list(of_aeon(wheel))
    series += list(of_statsmodels(statsmodels))
    for library in libraries:
        for package in ("datasets", "forecast"):
            if (library / package / "data" / "Rdata.rdx").exists():
                series += list(of_r(library, package))
    if not series:
        print("no series: pass --aeon, --statsmodels or --r-library", file=sys.stderr)
    return series
