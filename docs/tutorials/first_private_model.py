# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---
# %% [markdown]
# # A first private model in ten minutes
#
# You train a model that predicts late flights, with and without privacy, and see what privacy costs and what a sparse
# update saves. The data come with a Python package; nothing is downloaded. It takes two minutes on two cores.
#
# Each `dpfest ...` is a command; in a terminal, type what stands in the quotes.

# %%
import shlex
import subprocess


def dpfest(line, last=2):
    ended = subprocess.run(["dpfest", *shlex.split(line)], check=True, capture_output=True, text=True)
    print("\n".join(ended.stdout.splitlines()[-last:]))


# %% [markdown]
# ## Three controls
#
# Train these before anything else. *Without privacy*: the best that this model can do. *DP-SGD*: noise on every row of
# every table, in every step. *Frozen embeddings*: tables keep their random values, and only the layers above train.

# %%
dpfest("sweep data=nycflights algorithm=nonprivate,dpsgd,frozen privacy.epsilon=1 sweep.jobs=2", last=5)

# %% [markdown]
# `sweep` trains every combination of values with commas, here two runs at a time, and lists the best ones with the AUC on
# validation rows and on test rows. If frozen embeddings were as good as DP-SGD, you could stop here: they cost no
# embedding gradient at all.
#
# ## Sparse updates
#
# DP-FEST counts, with noise, how often each row occurs, and trains only the k most frequent. Its guarantee is of the same
# kind as DP-SGD's: ε covers the count and all steps.

# %%
dpfest("train data=nycflights algorithm=fest algorithm.selection.rows=1000 privacy.epsilon=1")

# %% [markdown]
# The last line names the folder of the run. `release/` in it may be published; `private/` may not.
#
# ## All of it in one table
#
# `frame` reads every finished run: a line for each, its settings and its results as columns.

# %%
from pipelines.train.trained import frame

runs = frame("runs")
shown = runs.select(
    "algorithm.name", "privacy.epsilon", "utility.value", "utility.standard_error", "embedding_gradient.reduction"
)
print(shown.sort("utility.value", descending=True))

# %% [markdown]
# The columns are the algorithm, the ε that was spent, the AUC on test rows, its standard error, and how many times smaller
# than the tables the noised gradient is. Differences below two standard errors are chance; train several seeds
# (`seed=0,1,2` with `dpfest sweep`) before you believe one.
#
# ## Use it
#
# The model scores rows that it has never seen. Here: the test rows of the data.

# %%
from pipelines.train.trained import load

best = runs.filter(runs["algorithm.name"] == "fest")["run"][0]
trained = load(f"runs/{best}")
print(next(trained.scored_split("test")).head(3))
print(f"AUC {trained.evaluate_split('test')['auc']:.4f}")

# %% [markdown]
# ## Next
#
# - [Your own click table](own_click_table.py), from a file to a figure.
# - [One epsilon for a study](one_epsilon.py): what choosing among runs costs.
# - Your own PyTorch model: [LIBRARY](../LIBRARY.md).
