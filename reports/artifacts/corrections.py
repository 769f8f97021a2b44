"""corrections: the noise that each correction of the paper costs, by accounting at the size of Criteo-Kaggle."""

from __future__ import annotations

from reports.algorithms import label
from reports.bench import ONCE, frozen
from reports.entry import Content, Inputs
from reports.tables import Column, Table
from reports.wording import number


def content(inputs: Inputs) -> Content:
    section = frozen("corrections", {"examples", "epsilon", "setting", "paper_noise", "noise"})
    first = section.records[0]
    at = first["values"]
    caption = (
        "The corrections to the paper's accounting and their cost in noise, by accounting only: one epoch of "
        f"{at['examples']:,} examples (Criteo Kaggle has 45,840,617), batch size {first['batch_size']:,}, ε = "
        f"{number(at['epsilon'])}, δ = 1/N. For the paper's method: its gradient noise (σ₂), the claimed ε and the ε "
        "that can be proven. For the corrected method, whose ε is proven: its gradient noise, and the increase."
    )
    noise, epsilon = "{:.4f}".format, "{:.3f}".format
    table = Table(
        [
            Column("correction", "correction"),
            Column("algorithm", "algorithm", label),
            Column("setting", "at"),
            Column("paper_noise", "σ₂, paper", noise),
            Column("claimed", "ε claimed", epsilon),
            Column("proven", "ε proven", epsilon),
            Column("noise", "σ₂, corrected", noise),
            Column("more", "more noise", "{:+.1%}".format),
            Column("note", "note"),
        ]
    )
    for record in section.records:
        values = record["values"]
        paper, corrected = values.get("paper_noise"), values.get("noise")
        table.rows.append(
            (
                record["case"],
                record["competitor"],
                values.get("setting"),
                paper,
                values.get("claimed"),
                values.get("proven"),
                corrected,
                corrected / paper - 1 if paper and corrected else None,
                record["note"],
            )
        )
    return Content(caption + ONCE, table=table)
