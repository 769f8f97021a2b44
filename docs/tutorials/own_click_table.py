# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---
# %% [markdown]
# # Your own click table
#
# From a file of clicks to a private model, its scores, and the figure of utility against the size of an update. Replace
# the table that the first cell makes by your own; the rest stays. It takes two minutes on two cores;
# [OWN_TABLE](../OWN_TABLE.md) explains each step.

# %%
import shlex
import subprocess
from pathlib import Path

import numpy as np
import polars as pl

random = np.random.default_rng(0)
count = 40_000
shop, item = random.zipf(1.3, count) % 300, random.zipf(1.2, count) % 20_000
taste = random.normal(size=20_000)[item] + 0.5 * random.normal(size=300)[shop]
price = random.lognormal(1, 1, count)
clicked = random.random(count) < 1 / (1 + np.exp(1 - taste + 0.1 * price))
names = {"shop": [f"s{one}" for one in shop], "item": [f"i{one}" for one in item]}
pl.DataFrame({**names, "price": price, "clicked": clicked}).write_parquet("clicks.parquet")


def dpfest(line, last=2):
    ended = subprocess.run(["dpfest", *shlex.split(line)], check=True, capture_output=True, text=True)
    print("\n".join(ended.stdout.splitlines()[-last:]))


# %% [markdown]
# ## What is each column?
#
# `dpfest init` proposes a role for each column and writes `conf/data/clicks.yaml`. The sizes of tables and the constants of
# numbers are published with every run and must not come from the data: replace them by what you would defend without
# having seen the rows.

# %%
dpfest("init clicks.parquet", last=30)
print(Path("conf/data/clicks.yaml").read_text())

# %% [markdown]
# ## What will privacy cost?
#
# `dpfest card` prepares the data and says what is in them: exactly, so do not publish it. `dpfest budget` says, before
# training, how much noise there will be, and how often a value must occur to be told from it.

# %%
dpfest("card data=clicks", last=30)
dpfest("budget data=clicks algorithm=fest privacy.epsilon=1", last=12)

# %% [markdown]
# ## Controls, then sparse updates
#
# A private run needs larger learning rates than an ordinary one. Two are tried, two runs at a time; the one with the better
# AUC *on validation rows*, the first number of a line, serves for all that follows. Frozen tables have no learning rate:
# their two lines differ by chance.

# %%
dpfest("sweep data=clicks algorithm=frozen,dpsgd optimizer.tables.learning_rate=10,30 sweep.jobs=2", last=6)

# %%
rate = "optimizer.tables.learning_rate=30"
dpfest(f"sweep data=clicks algorithm=fest algorithm.selection.rows=100,1000 {rate} sweep.jobs=2", last=4)

# %%
from pipelines.train.trained import frame

runs = frame("runs").sort("utility.validation", descending=True)
columns = ["algorithm.name", "algorithm.selection.rows", "optimizer.tables.learning_rate", "utility.validation"]
print(runs.select(*columns, "embedding_gradient.reduction"))

# %% [markdown]
# ## The figure
#
# Loss of AUC against DP-SGD, by how many times smaller an update is. Up and right is better. One seed bounds nothing: a bar
# crosses the figure. `seed=0,1,2` in each sweep would give bars that tell.

# %%
from reports import figures

figure = figures.frontier("runs")
figure.savefig("frontier.png")
figure

# %% [markdown]
# ## Scores of new rows
#
# New rows need neither the label nor a unit.

# %%
best = runs.filter(pl.col("algorithm.name") == "fest")["run"][0]
dpfest(f"predict runs/{best} data.path=clicks.parquet -o scores.parquet")
print(pl.read_parquet("scores.parquet").head(3))

# %% [markdown]
# `runs/.../release/` holds what may leave: the model, its settings, its ledger, and `MODEL_CARD.md`, which says in words what
# is guaranteed. Six private runs on the same rows were made here, each with its own ε. If you publish the best of them,
# the choice costs more: [one epsilon for a study](one_epsilon.py).
