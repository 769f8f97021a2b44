"""tab_vocab: the vocabulary sizes of the 26 categorical features, the paper's and ours."""

from __future__ import annotations

from itertools import zip_longest

from reports.entry import Content, Inputs
from reports.published import TAB_VOCAB
from reports.tables import Column, Table


def content(inputs: Inputs) -> Content:
    population = inputs.population
    tables = max((run.tables for run in population.runs), key=lambda tables: sum(table.rows for table in tables))
    same = tuple(table.rows for table in tables) == tuple(size for (size,) in TAB_VOCAB.rows.values())
    caption = (
        f"Vocabulary size of each categorical feature: the paper's on {TAB_VOCAB.data}, ours on {population.dataset}. "
        + (
            "Categories are hashed into the published sizes, which reveal nothing about the data."
            if same
            else "Features are paired by position only; the difference is that of the table sizes."
        )
    )
    size = "{:,}".format
    columns = [
        Column("paper_feature", "feature, paper"),
        Column("paper", "paper", size),
        Column("feature", "feature, ours"),
        Column("ours", "ours", size),
        Column("difference", "ours − paper", "{:+,}".format),
        Column("dimension", "dimension, ours"),
    ]
    if not tables:
        return Content(caption, table=Table(columns), missing=["The runs do not record their tables."], epsilons=[])
    rows = [
        (
            published and published[0],
            published and published[1][0],
            ours and ours.name,
            ours and ours.rows,
            ours.rows - int(published[1][0]) if ours and published else None,
            ours and ours.dimension,
        )
        for published, ours in zip_longest(TAB_VOCAB.rows.items(), tables)
    ]
    theirs, mine = sum(int(size) for (size,) in TAB_VOCAB.rows.values()), sum(table.rows for table in tables)
    rows.append(("all", theirs, f"all {len(tables)}", mine, mine - theirs, None))
    return Content(caption, table=Table(columns, list(rows)), epsilons=[])
