"""Run directories in the form of the contract with plausible numbers, for tests of the report."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from pipelines.runs.cards import Card, Maker, write_cards
from pipelines.runs.release import config_text
from pipelines.system.files import json_text

BUCKETS = [1000, 24, 58000, 200, 12, 96000, 431, 15000, 3, 3301, 7600, 310, 40000]
TABLES = [(f"feature_{i}", rows, int(2 * rows**0.25)) for i, rows in enumerate(BUCKETS)]
PARAMETERS = sum(rows * dim for _, rows, dim in TABLES)
EXAMPLES = 261_876
OPTIMIZER = {
    "dense": {"name": "adam", "learning_rate": 0.001},
    "tables": {"name": "sgd", "learning_rate": 0.1},
}
TRAIN = {"batch_size": 2048, "epochs": 1.0, "steps": None}
UNITS = {"example": 1_000_000, "basket_id": 150_000, "household_id": 2_469}


def write_run(
    runs: Path,
    algorithm: str,
    *,
    test: float,
    validation: float | None = None,
    coordinates: float = PARAMETERS,
    seed: int = 0,
    epsilon: float | None = 1.0,
    dataset: str = "nycflights",
    fidelity: str = "rigorous",
    settings: dict[str, Any] | None = None,
    status: str = "done",
    period: int | None = None,
    wall_seconds: float = 20.0,
    timings: Mapping[str, float] = MappingProxyType({}),
    data: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write one run folder; `changes` replace top-level keys of its summary.json, `period` makes it one of a stream."""
    stream = {} if period is None else {"stream": {"train_days": 18, "period": period}}
    algorithm_settings = {"name": algorithm} | (settings or {})
    summary = {
        "schema": 2,
        "dataset": dataset,
        "model": "pctr",
        "algorithm": algorithm,
        "seed": seed,
        "profile": "demo",
        "examples": EXAMPLES,
        "batch_size": 2048,
        "steps": 128,
        "utility": {
            "metric": "auc",
            "value": test,
            "split": "test",
            "validation": test if validation is None else validation,
            "standard_error": 0.002,
            "loss": 0.6,
            "constant_loss": 0.52,
            "calibrated_loss": 0.48,
            "reliability": [[100, share / 10, share**3 / 1000, share / 10] for share in range(10)],
            "calibration": {"scale": 0.3, "shift": 0.1},
        },
        "embedding_gradient": {
            "parameters": PARAMETERS,
            "coordinates_mean": coordinates,
            "reduction": PARAMETERS / coordinates if coordinates else None,
            "tables": [
                {
                    "name": name,
                    "rows": rows,
                    "dim": dim,
                    "rows_mean": min(rows, 1600 * (1 - math.exp(-rows / 1600))),
                }
                for name, rows, dim in TABLES
            ],
        },
        "privacy": {
            "epsilon": epsilon * 0.9995,
            "sound_epsilon": epsilon * 0.9995,
            "delta": 1 / changes.get("examples", EXAMPLES),
            "fidelity": fidelity,
            "sampling": "poisson" if fidelity == "rigorous" else "shuffled",
            "step": {
                "kind": "gaussian",
                "what": "training step",
                "count": 1,
                "part": [],
                "sampling_probability": 2048 / EXAMPLES,
                **(noise := noise_of(algorithm)),
            },
            **noise,
            "selection": None,
            "periods": None,
            "public_vocabulary": True,
        }
        if epsilon is not None
        else None,
        "periods": None,
        "hyperparameters": (
            settings_of := {"algorithm": algorithm_settings, "optimizer": OPTIMIZER, "train": TRAIN, **stream}
        ),
    } | changes
    config = {
        **settings_of,
        **(summary["hyperparameters"] or {}),
        "data": {"name": dataset, **(data or {})},
        "model": {"name": summary["model"], "hidden": [598, 598, 598, 598]},
        "privacy": {"fidelity": fidelity, "epsilon": epsilon or 1.0, "delta": None},
        "seed": seed,
    }
    name = hashlib.sha256(json.dumps([summary, config], sort_keys=True).encode()).hexdigest()[:12]
    folder = runs / dataset / algorithm / name
    folder.mkdir(parents=True)
    for part in ("release", "private"):
        (folder / part).mkdir()
        (folder / part / "config.yaml").write_text(config_text(config))
    (folder / "release" / "summary.json").write_text(json_text(summary))
    ledger = ledger_of(summary, config, f"Of {name}.")
    (folder / "release" / "ledger.json").write_text(json_text(ledger))
    (folder / "private" / "timings.json").write_text(json.dumps({"wall_seconds": wall_seconds} | timings))
    (folder / "status.json").write_text(json.dumps({"status": status}))
    return folder


def noise_of(algorithm: str) -> dict[str, float | None]:
    """The noise of a step."""
    own = 12.0 if algorithm == "adafest" else None
    return {"noise_multiplier": 0.9, "map_noise_multiplier": own, "gradient_noise_multiplier": 0.92}


def ledger_of(summary: Mapping[str, Any], config: Mapping[str, Any], statement: str) -> dict[str, Any]:
    """The ledger that a summary goes with."""
    spent = summary.get("privacy") or {}
    return {
        "run": {
            "settings": config.get("algorithm"),
            **{key: summary.get(key) for key in ("algorithm", "examples", "batch_size", "steps")},
        },
        "target_epsilon": config["privacy"]["epsilon"] if spent else None,
        **{key: spent.get(key) for key in ("epsilon", "sound_epsilon", "delta", "fidelity", "sampling")},
        "fixed_noise_seed": True,
        "events": [],
        "planned": [spent["step"] | {"count": summary["steps"]}] if spent.get("step") else [],
        "statements": [statement],
        **({"search": spent["search"] | {"epsilon": spent["epsilon"]}} if spent.get("search") else {}),
    }


def write_cards_of(runs: Path, file: Path) -> Path:
    """The runs of a folder as a file of cards; returns its folder."""
    cards = []
    for release in sorted(runs.glob("*/*/*/release")):
        ledger, summary = (json.loads((release / f"{name}.json").read_text()) for name in ("ledger", "summary"))
        config = yaml.safe_load((release / "config.yaml").read_text())
        cards.append(Card(config, ledger, summary, Maker("0.1.0", "51c0a5d", "make reproduce")))
    write_cards(file, cards)
    return file.parent


def write_map(runs: Path, crosses: float | None = None) -> None:
    """The map: a centre and a point beside it on each of three axes; on a fourth, if there are `crosses`. DP-FEST at
    100 rows keeps 95% of the gain, at 10 rows 80%; DP-AdaFEST keeps 70%, thresholding 92% at 4x, smaller tables 93% at
    20x; with few values the gain is 0.002."""
    centre = {"table_rows": 1000, "zipf_exponent": 1.1, "tail_signal": 0.5}
    changes: list[dict[str, float]] = [{}, {"table_rows": 100}, {"zipf_exponent": 0.6}, {"tail_signal": 0.9}]
    for change in [*changes, *([{"crosses": crosses}] if crosses is not None else [])]:
        data = {**centre, **change}
        tables = [{"name": f"feature_{i}", "rows": data["table_rows"], "dim": 5, "rows_mean": 9.0} for i in range(4)]
        if "crosses" in change:
            tables += [{"name": f"cross_{i}", "rows": 2_000, "dim": 5, "rows_mean": 9.0} for i in range(2)]
        gain = 0.002 if data["table_rows"] == 100 else 0.1
        for name, kept, coordinates, settings in (
            ("frozen", 0.0, 0.0, {}),
            ("dpsgd", 1.0, 20_000.0, {}),
            ("fest", 0.95, 500.0, {"selection": {"rows": 100}}),
            ("fest", 0.8, 50.0, {"selection": {"rows": 10}}),
            ("fest", 0.95, 400.0, {"selection": {"rows": 100, "split": "joint"}}),
            ("adafest", 0.7, 100.0, {"threshold": 4.0, "noise_ratio": 1.0}),
            ("threshold", 0.92, 5_000.0, {"false_rate": 0.25}),
            ("smaller_tables", 0.93, 1_000.0, {"max_rows": 50}),
        ):
            gradient = {"parameters": 20_000, "coordinates_mean": coordinates, "tables": tables}
            utility = 0.6 + kept * gain
            write_run(
                runs, name, test=utility, dataset="map_synthetic", settings=settings, data=data, examples=120_000,
                embedding_gradient=gradient,
            )  # fmt: skip


def write_comparison(
    runs: Path, epsilons: tuple[float, ...] = (1.0, 3.0, 8.0), seeds: tuple[int, ...] = (0, 1), **shared: Any
) -> None:
    """A whole comparison: every algorithm over its grid, utility falling as reduction rises."""

    def wobble(*key: object) -> float:
        return (int(hashlib.sha256(repr(key).encode()).hexdigest()[:6], 16) / 2**24 - 0.5) * 0.002

    for seed in seeds:
        write_run(
            runs,
            "nonprivate",
            test=0.786 + wobble(seed),
            epsilon=None,
            seed=seed,
            coordinates=190_000,
            **shared,
        )
        for epsilon in epsilons:
            gain = 0.012 * math.log(epsilon)

            def put(
                algorithm: str,
                settings: dict,
                test: float,
                coordinates: float,
                seed=seed,
                epsilon=epsilon,
                gain=gain,
            ) -> None:
                value = test + gain + wobble(algorithm, settings, seed, epsilon)
                write_run(
                    runs, algorithm, test=value, validation=value + wobble(value), coordinates=coordinates,
                    seed=seed, epsilon=epsilon, settings=settings, **shared,
                )  # fmt: skip

            put("frozen", {"clipping_norm": 1.0}, 0.688, 0.0)
            for norm in (0.5, 1.0, 2.0):
                put("dpsgd", {"clipping_norm": norm}, 0.720 - 0.002 * abs(math.log2(norm)), PARAMETERS)
            for bands in (4, 8):
                put("dpsgd", {"clipping_norm": 1.0, "bands": bands}, 0.720 + 0.001 * bands, PARAMETERS)
            for k in (300, 1000, 3000, 10_000, 30_000):
                for split in ("equal", "joint"):
                    selection = {"mechanism": "gaussian", "rows": k, "split": split}
                    fest = {"clipping_norm": 1.0, "selection": selection}
                    put("fest", fest, 0.719 - 0.03 * math.exp(-k / 3000), k * 11.0)
                    both = fest | {"contribution_clipping_norm": 1.0, "threshold": 10.0, "noise_ratio": 5.0}
                    put("adafest_plus", both, 0.7185 - 0.016 * math.exp(-k / 1500), k * 0.12)
            for ratio in (0.5, 1.0, 5.0, 10.0):
                for threshold in (5.0, 10.0, 20.0, 50.0, 100.0):
                    if (ratio, threshold) == (0.5, 100.0):
                        continue
                    size = 6e5 * math.exp(-1.1 * threshold / (1 + ratio)) + 3e3 / threshold
                    loss = 0.02 * (threshold / 60) ** 2 + 0.006 / (1 + ratio)
                    settings = {
                        "clipping_norm": 1.0, "contribution_clipping_norm": 1.0,
                        "threshold": threshold, "noise_ratio": ratio,
                    }  # fmt: skip
                    put("adafest", settings, 0.7195 - loss, size)
            for rows in (30, 100, 1000):
                put(
                    "exponential",
                    {"clipping_norm": 1.0, "rows_per_step": rows},
                    0.67 + 0.004 * math.log10(rows),
                    rows * 11.0,
                )


def write_streaming(runs: Path, periods: tuple[int, ...] = (1, 4, 18), dataset: str = "nycflights_stream") -> None:
    """Streams in which all that the paper says of them is so."""
    for days in periods:
        gain, shared = 0.001 * days, {"dataset": dataset, "period": days}
        write_run(runs, "nonprivate", test=0.78, epsilon=None, coordinates=190_000, **shared)
        write_run(runs, "frozen", test=0.68 + gain, coordinates=0.0, **shared)
        write_run(runs, "dpsgd", test=0.71 + gain, **shared)
        for source, loss in (("first_day", 0.009), ("streaming", 0.0015), ("all_days", 0.001)):
            for rows in (300, 3000):
                selection = {"mechanism": "gaussian", "rows": rows, "source": source}
                test = 0.71 + gain - loss - (0.004 if rows == 300 else 0)
                settings = {"clipping_norm": 1.0, "selection": selection}
                write_run(runs, "fest", test=test, coordinates=rows * 11.0, settings=settings, **shared)
                if source == "streaming":
                    settings = settings | {"selection": selection | {"split": "joint"}}
                    write_run(runs, "fest", test=test, coordinates=rows * 11.0, settings=settings, **shared)
        for threshold in (5.0, 20.0):
            test = 0.7098 + gain - 0.0001 * threshold
            write_run(
                runs, "adafest", test=test, coordinates=5e3 / threshold, settings={"threshold": threshold}, **shared
            )
        both = {"threshold": 5.0, "selection": {"mechanism": "gaussian", "rows": 3000, "source": "streaming"}}
        write_run(runs, "adafest_plus", test=0.7095 + gain, coordinates=50.0, settings=both, **shared)
        both = both | {"selection": {**both["selection"], "split": "joint"}}  # type: ignore[dict-item]
        write_run(runs, "adafest_plus", test=0.7095 + gain, coordinates=50.0, settings=both, **shared)


def write_units(runs: Path) -> None:
    """Four algorithms at two ε under three units of privacy."""
    for loss, (column, count) in enumerate(UNITS.items()):
        for algorithm, gain in (("frozen", 0.0), ("dpsgd", 0.05), ("adafest", 0.04), ("threshold", 0.02)):
            for epsilon in (1.0, 8.0):
                settings = {"algorithm": {"name": algorithm}, "optimizer": OPTIMIZER, "train": TRAIN}
                folder = write_run(
                    runs, algorithm, test=0.8 + gain - 0.1 * loss, epsilon=epsilon, dataset="journey", examples=count,
                    hyperparameters={**settings, "unit": {"max_examples": 8, "combine": "mean"}},
                )  # fmt: skip
                path = folder / "release" / "config.yaml"
                config = yaml.safe_load(path.read_text())
                if column != "example":
                    config["privacy"]["unit"] = column
                    told = folder / "release" / "summary.json"
                    summary = json.loads(told.read_text())
                    summary["privacy"]["unit"] = column.removesuffix("_id")
                    told.write_text(json_text(summary))
                path.write_text(config_text(config))


def _training_audit() -> dict[str, Any]:
    sound = {
        "sabotage": None, "claim": 2.0, "bound": 1.3, "at_delta": 0.9, "made": 200, "right": 150, "tightness": 0.65,
        "verdict": "sound", "seconds": 5.0,
    }  # fmt: skip
    caught = sound | {"sabotage": "map not paid for", "bound": 6.0, "tightness": 3.0, "verdict": "broken"}
    about = {"steps": 64, "rate": 0.125, "periods": 1, "canaries": 20_000, "ideal": 1.4, "confidence": 0.95}
    training = {"algorithm": "adafest", "settings": {}, "training": "sampled", "claim": 2.0, "delta": 5e-5}
    return {**training, **about, "cases": [sound, caught]}


def write_audit(report: Path, **changed: Any) -> None:
    """Audits of two algorithms, and of a training of one, as `dpfest audit` leaves them; `changed` are keys of the
    first one's entry."""

    def entry(algorithm: str, bounds: dict[str | None, float]) -> dict[str, Any]:
        cases = [
            {
                "sabotage": sabotage,
                "bound": bound,
                "tightness": bound,
                "verdict": "broken" if bound > 1 else "sound" if sabotage is None else "missed",
                "seconds": 3.0,
            }
            for sabotage, bound in bounds.items()
        ]
        about = {"settings": {}, "claim": 1.0, "delta": 0.01, "confidence": 0.95, "draws": 500_000}
        return {"algorithm": algorithm, **about, "cases": cases}

    frozen = entry("frozen", {None: 0.93, "gradient noise halved": 2.4, "no noise": 11.1})
    flaws = {"gradient noise halved": 1.7, "no noise on untouched rows": 0.2, "no noise": 11.1}
    adafest = entry("adafest", {None: 0.0, **flaws})
    (report / "audit").mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": 1, "audits": [frozen | changed, adafest], "trainings": [_training_audit()]})
    (report / "audit" / "audit.json").write_text(text, encoding="utf-8")


def write_bench(report: Path, section: str, times: Mapping[tuple[str, int], float | None], reference: str) -> None:
    """A section as `dpfest bench` leaves it, from the seconds of each competitor at each size."""
    records = [
        {
            "section": section,
            "competitor": competitor,
            "case": f"{rows:,} rows",
            "reference": reference,
            "table_rows": rows,
            "batch_size": 2048,
            "median_seconds": seconds,
            "min_seconds": seconds,
            "max_seconds": seconds,
            "repeats": 3,
            "ratio": None if seconds is None else seconds / (times[reference, rows] or 1),
            "working_bytes": 2_000_000,
            "note": None,
        }
        for (competitor, rows), seconds in times.items()
    ]
    machine = {"processor": "a processor", "threads": 2, "torch": "2.13", "device": "cpu"}
    (report / "bench").mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine, "records": records})
    (report / "bench" / f"{section}.json").write_text(text, encoding="utf-8")


def write_benches(report: Path) -> None:
    """Every section that an artifact shows: `embedding`, at the paper's sizes, and `step`."""
    times: dict[tuple[str, int], float | None] = {}
    for rows in (100_000, 200_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000):
        times |= {("dpsgd", rows): 1e-7 * rows, ("adafest", rows): 0.002}
        if rows > 100_000:
            times["adafest, smallest table", rows] = 0.0016
    write_bench(report, "embedding", times | {("dpsgd", 20_000_000): None, ("adafest", 20_000_000): 0.002}, "adafest")
    write_bench(report, "step", {("pytorch sparse", 338_782): 0.1, ("adafest", 338_782): 0.09}, "pytorch sparse")
