"""Write a small made-up dataset as anemoi-datasets lays one out: zarr 2, gridded, a chunk a date.

usage: make_dataset.py OUT.zarr [DATES] [N of the octahedral grid]
"""

from __future__ import annotations

import shutil
import sys

import numpy as np
import zarr
from numcodecs import Blosc

HOURS = 6
FIELDS = ["10u", "10v", "2t", "msl", "q_850", "t_850", "u_850", "v_850", "z_500", "tp"]
CONSTANT = ["lsm", "z", "cos_latitude", "sin_latitude", "cos_longitude", "sin_longitude"]
FORCING = [*CONSTANT, "cos_julian_day", "sin_julian_day"]


class Sums:
    """Mean, deviation and extremes of each variable, added up date by date."""

    def __init__(self, variables: int) -> None:
        self.count = 0
        self.sums = np.zeros(variables)
        self.squares = np.zeros(variables)
        self.maximum = np.full(variables, -np.inf)
        self.minimum = np.full(variables, np.inf)

    def add(self, values: np.ndarray) -> None:
        self.count += values.shape[1]
        self.sums += values.sum(1)
        self.squares += (values**2).sum(1)
        self.maximum = np.maximum(self.maximum, values.max(1))
        self.minimum = np.minimum(self.minimum, values.min(1))

    def result(self) -> dict[str, np.ndarray]:
        mean = self.sums / self.count
        deviation = np.sqrt(np.maximum(self.squares / self.count - mean**2, 1e-12))
        return {"mean": mean, "stdev": deviation, "maximum": self.maximum, "minimum": self.minimum}


def octahedral(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of the reduced Gaussian grid oN; anemoi's named grids are downloads."""
    points, _ = np.polynomial.legendre.leggauss(2 * number)
    rows = np.degrees(np.arcsin(points))[::-1]
    half = [20 + 4 * row for row in range(number)]
    counts = half + half[::-1]
    latitudes = np.concatenate([np.full(count, row) for count, row in zip(counts, rows, strict=True)])
    longitudes = np.concatenate([np.arange(count) * 360.0 / count for count in counts])
    return latitudes, longitudes


def fields_of(
    date: int, latitude: np.ndarray, longitude: np.ndarray, noise: np.random.Generator
) -> np.ndarray:
    """All variables at a date, waves that travel; shape (variables, points)."""
    phase = 2 * np.pi * date / 120
    day = 2 * np.pi * ((date / 4) % 365.25) / 365.25
    land = (np.sin(3 * longitude) * np.cos(2 * latitude) > 0.2).astype("f4")
    values = [
        10 * np.cos(latitude) * np.sin((number + 1) * longitude + phase)
        + noise.normal(0, 1, latitude.size)
        + 5 * number
        for number in range(len(FIELDS))
    ]
    values[-1] = np.maximum(values[-1] - 45, 0) * 1e-3
    values += [land, 500 * land * np.abs(np.sin(5 * longitude))]
    values += [np.cos(latitude), np.sin(latitude), np.cos(longitude), np.sin(longitude)]
    values += [np.full(latitude.size, np.cos(day)), np.full(latitude.size, np.sin(day))]
    return np.array(values, dtype="f4")


def metadata_of(variable: str) -> dict[str, object]:
    if variable in FORCING:
        return {"computed_forcing": variable not in ("lsm", "z"), "constant_in_time": variable in CONSTANT}
    name, _, level = variable.partition("_")
    where = {"levtype": "pl", "levelist": int(level)} if level else {"levtype": "sfc"}
    return {"mars": {"param": name, **where}}


def main(out: str, dates: int = 400, number: int = 32) -> None:
    latitudes, longitudes = octahedral(number)
    latitude, longitude = np.radians(latitudes), np.radians(longitudes)
    variables = [*FIELDS, *FORCING]
    shape = (dates, len(variables), 1, latitudes.size)
    times = np.datetime64("2020-01-01T00:00:00", "s") + np.arange(dates) * np.timedelta64(HOURS * 3600, "s")
    noise = np.random.default_rng(0)
    shutil.rmtree(out, ignore_errors=True)
    store = zarr.open_group(out, mode="w", zarr_version=2)
    codec = Blosc("zstd", clevel=3, shuffle=Blosc.BITSHUFFLE)
    data = store.create_dataset(
        "data", shape=shape, chunks=(1, *shape[1:]), dtype="f4", compressor=codec, fill_value=np.nan
    )
    whole, tendencies, before = Sums(len(variables)), Sums(len(variables)), None
    for date in range(dates):
        values = fields_of(date, latitude, longitude, noise)
        data[date] = values[:, None, :]
        values = values.astype("f8")
        whole.add(values)
        if before is not None:
            tendencies.add(values - before)
        before = values

    def put(name: str, values: np.ndarray) -> None:
        store.create_dataset(name, data=values, chunks=values.shape, compressor=None)

    for name, values in {"dates": times, "latitudes": latitudes, "longitudes": longitudes}.items():
        put(name, values)
    for name, values in whole.result().items():
        put(name, values)
    for name, values in tendencies.result().items():
        put(f"statistics_tendencies_{HOURS}h_{name}", values)
    put("sums", whole.sums)
    put("squares", whole.squares)
    put("count", np.full(len(variables), whole.count))
    put("has_nans", np.zeros(len(variables), bool))
    store.attrs.update(
        {
            "uuid": "00000000-0000-0000-0000-00000000a0e1",
            "version": "0.30",
            "layout": "gridded",
            "resolution": f"o{number}",
            "frequency": f"{HOURS}h",
            "variables": variables,
            "field_shape": [latitudes.size],
            "ensemble_dimension": 2,
            "flatten_grid": True,
            "constant_fields": CONSTANT,
            "variables_metadata": {variable: metadata_of(variable) for variable in variables},
            "start_date": str(times[0]),
            "end_date": str(times[-1]),
            "statistics_start_date": str(times[0]),
            "statistics_end_date": str(times[-1]),
            "missing_dates": [],
            "data_request": {},
            "dtype": "float32",
            "order_by": "dates",
            "recipe": {"name": "tiny"},
            "description": "synthetic",
            "licence": "CC0-1.0",
            "attribution": "none",
        }
    )
    zarr.consolidate_metadata(out)
    raw, stored = (f"{size / 1e6:.0f} MB" for size in (data.nbytes, data.nbytes_stored))
    print(f"{out}: {data.shape}, chunks {data.chunks}, {raw}, {stored} stored")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
