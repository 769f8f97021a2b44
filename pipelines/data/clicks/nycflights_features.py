"""The definition of the flight features: 13 numbers and 26 categories from schedule, aircraft and weather.

A flight's features are a function of its own line and of public tables without flights (the register of aircraft, the
weather): adding or removing a flight changes no other's features. The functions never receive actual departure or
arrival times, delays, or statistics of the labels.
"""

from __future__ import annotations

import polars as pl

from pipelines.data.clicks.packaged import Category, Number

NUMBERS: dict[str, Number] = {
    "departure_minute": Number(720, 360),
    "arrival_minute": Number(900, 360),
    "scheduled_minutes": Number(180, 120),
    "distance": Number(1000, 750),
    "temperature": Number(55, 18),
    "humidity": Number(60, 20),
    "wind_speed": Number(10, 6),
    "wind_gust": Number(0, 25),
    "precipitation": Number(0, 0.05),
    "visibility": Number(9, 2),
    "pressure_change": Number(0, 2),
    "pressure": Number(1018, 8),
    "dew_point": Number(42, 19),
}
"""Numeric features with the constants (centre, scale), set by hand, that bring them to about unit size."""

CATEGORIES: dict[str, Category] = {
    "origin": Category(("origin",), 5),
    "carrier": Category(("carrier",), 48),
    "destination": Category(("dest",), 328),
    "hour": Category(("hour",), 51),
    "weekday": Category(("weekday",), 14),
    "weekday_part": Category(("weekday", "part"), 123),
    "weather": Category(("weather",), 131),
    "wind_at_origin": Category(("wind", "origin"), 131),
    "aircraft_model": Category(("model",), 256),
    "aircraft": Category(("tailnum",), 4_096),
    "flight": Category(("carrier", "flight"), 6_000),
    "route_hour": Category(("origin", "dest", "hour"), 2_048),
    "route_carrier": Category(("origin", "dest", "carrier"), 512),
    "carrier_origin_hour": Category(("carrier", "origin", "hour"), 512),
    "origin_quarter_hour": Category(("origin", "quarter"), 300),
    "date": Category(("date",), 730),
    "origin_date": Category(("origin", "date"), 2_048),
    "date_hour": Category(("date", "hour"), 7_000),
    "origin_date_hour": Category(("origin", "date", "hour"), 20_000),
    "carrier_date": Category(("carrier", "date"), 5_500),
    "carrier_origin_date": Category(("carrier", "origin", "date"), 12_000),
    "carrier_origin_date_part": Category(("carrier", "origin", "date", "part"), 20_000),
    "destination_date": Category(("dest", "date"), 31_000),
    "destination_date_part": Category(("dest", "date", "part"), 50_000),
    "aircraft_destination": Category(("tailnum", "dest"), 30_000),
    "aircraft_date": Category(("tailnum", "date"), 40_000),
}
"""Categorical features: the columns whose values form the category, and the size of the table that they are hashed
into. The first fifteen and aircraft_destination contain no date, so they carry over to later days.
"""


def departure_features(flights: pl.DataFrame, planes: pl.DataFrame, weather: pl.DataFrame) -> pl.DataFrame:
    """Return all columns that :data:`NUMBERS` and :data:`CATEGORIES` name, one row per flight, in the same order."""
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
