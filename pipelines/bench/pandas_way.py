"""The same preprocessing in pandas: vectorised, in chunks, without a loop over rows.

A fair comparison: it checks nothing, hashes categories to buckets, transforms counts, splits and writes records.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.data.clicks.criteo import CATEGORICAL_NAMES, NUMERIC_NAMES, PUBLISHED_SIZES
from pipelines.data.dataset import SPLITS
from pipelines.data.rows import RECORD

_CHUNK_ROWS = 200_000


def convert(source: Path, folder: Path) -> None:
    """Write the rows of a Criteo file, plain or .gz, to ``<split>.bin``."""
    import pandas as pd

    kinds: dict[str, str] = {"label": "float32", **dict.fromkeys(CATEGORICAL_NAMES, "str")}
    names = ["label", *NUMERIC_NAMES, *CATEGORICAL_NAMES]
    chunks = pd.read_csv(
        source,
        sep="\t",
        header=None,
        names=names,
        dtype=kinds | dict.fromkeys(NUMERIC_NAMES, "float64"),
        chunksize=_CHUNK_ROWS,
        compression="gzip" if source.suffix == ".gz" else None,
    )
    generator = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context((folder / f"{split}.bin").open("wb")) for split in SPLITS]
        for chunk in chunks:
            records = np.zeros(len(chunk), RECORD)
            records["label"] = chunk["label"].to_numpy()
            counts = chunk[list(NUMERIC_NAMES)].fillna(0).to_numpy()
            records["numeric"] = np.log1p(np.maximum(counts, 0))
            for feature, name in enumerate(CATEGORICAL_NAMES):
                records["categorical"][:, feature] = _buckets(chunk[name], PUBLISHED_SIZES[feature])
            part = np.searchsorted([0.8, 0.85], generator.random(len(records)), side="right")
            for number, stream in enumerate(streams):
                stream.write(records[part == number].tobytes())


def _buckets(column: object, size: int) -> NDArray[np.int32]:
    import pandas as pd

    hashed = pd.util.hash_array(pd.Series(column).fillna("").to_numpy(dtype=object))
    return (hashed % np.uint64(size)).astype(np.int32)
