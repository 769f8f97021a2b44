"""The definition of the flight features: 13 numbers and 26 categories from schedule, aircraft and weather.

A flight's features are a function of its own line and of public tables without flights (the register of aircraft, the
weather): adding or removing a flight changes no other's features. The functions never receive actual departure or
arrival times, delays, or statistics of the labels.
"""

from __future__ import annotations

import polars as pl

SCALES: dict[str, tuple[float, float]] = {
    "departure_minute": (720, 360),
    "arrival_minute": (900, 360),
    "scheduled_minutes": (180, 120),
    "distance": (1000, 750),
    "temperature": (55, 18),
    "humidity": (60, 20),
    "wind_speed": (10, 6),
    "wind_gust": (0, 25),
    "precipitation": (0, 0.05),
    "visibility": (9, 2),
    "pressure_change": (0, 2),
    "pressure": (1018, 8),
    "dew_point": (42, 19),
}
"""Numeric features with the constants (centre, scale), set by hand, that bring them to about unit size."""

CROSSES: dict[str, tuple[tuple[str, ...], int]] = {
    "origin": (("origin",), 5),
    "carrier": (("carrier",), 48),
    "destination": (("dest",), 328),
    "hour": (("hour",), 51),
    "weekday": (("weekday",), 14),
    "weekday_part": (("weekday", "part"), 123),
    "weather": (("weather",), 131),
    "wind_at_origin": (("wind", "origin"), 131),
    "aircraft_model": (("model",), 256),
    "aircraft": (("tailnum",), 4_096),
    "flight": (("carrier", "flight"), 6_000),
    "route_hour": (("origin", "dest", "hour"), 2_048),
    "route_carrier": (("origin", "dest", "carrier"), 512),
    "carrier_origin_hour": (("carrier", "origin", "hour"), 512),
    "origin_quarter_hour": (("origin", "quarter"), 300),
    "date": (("date",), 730),
    "origin_date": (("origin", "date"), 2_048),
    "date_hour": (("date", "hour"), 7_000),
    "origin_date_hour": (("origin", "date", "hour"), 20_000),
    "carrier_date": (("carrier", "date"), 5_500),
    "carrier_origin_date": (("carrier", "origin", "date"), 12_000),
    "carrier_origin_date_part": (("carrier", "origin", "date", "part"), 20_000),
    "destination_date": (("dest", "date"), 31_000),
    "destination_date_part": (("dest", "date", "part"), 50_000),
    "aircraft_destination": (("tailnum", "dest"), 30_000),
    "aircraft_date": (("tailnum", "date"), 40_000),
}
"""Categorical features: the columns whose values form the category, and the size of the table that they are hashed
into. The first fifteen and aircraft_destination contain no date, so they carry over to later days.
"""


def departure_features(flights: pl.DataFrame, planes: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    """Return all columns that :data:`SCALES` and :data:`CROSSES` name, one row per flight, in the same order."""
    date = pl.date(2013, "month", "day")
    departure = pl.col("hour") * 60 + pl.col("minute")
    arrival = pl.col("sched_arr_time") // 100 * 60 + pl.col("sched_arr_time") % 100
    table = flights.with_columns(
        date=(date.dt.ordinal_day() - 1).cast(pl.Int32),
        weekday=date.dt.weekday(),
        part=pl.col("hour") // 4,
        quarter=departure // 15,
        departure_minute=departure,
        arrival_minute=arrival,
        # Local times at both ends, as printed in the schedule; time zones are not corrected for.
        scheduled_minutes=(arrival - departure) % 1440,
    )
    table = table.join(planes.select("tailnum", "model"), on="tailnum", how="left", maintain_order="left")
    return table.join(weather_features(weather), on=["origin", "time_hour"], how="left", maintain_order="left")


def weather_features(weather: pl.DataFrame) -> pl.DataFrame:
    """Return the weather by origin and hour: numbers, wind sector, and one category of visibility, rain and wind."""
    visibility = _level("visib", [1, 3, 6, 9])
    rain = _level("precip", [0.001, 0.03, 0.1])
    wind = _level("wind_speed", [8, 15, 22])
    hours = weather.unique(["origin", "time_hour"], keep="first", maintain_order=True).sort("origin", "time_hour")
    return hours.select(
        "origin",
        "time_hour",
        "wind_speed",
        "wind_gust",
        temperature="temp",
        humidity="humid",
        precipitation="precip",
        visibility="visib",
        pressure="pressure",
        dew_point="dewp",
        pressure_change=pl.col("pressure") - pl.col("pressure").shift(3).over("origin"),
        wind=pl.col("wind_dir") // 30,
        weather=pl.concat_str([visibility, rain, wind], separator="/"),
    )


def _level(column: str, edges: list[float]) -> pl.Expr:
    """Return how many edges a value exceeds; unknown stays unknown."""
    return pl.sum_horizontal([(pl.col(column) > edge).cast(pl.Int32) for edge in edges], ignore_nulls=False).cast(
        pl.String
    )
