# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---
# %% [markdown]
# # From DP-SGD to one epsilon for a study
#
# ε of a run covers that run. Whoever trains ten and publishes the best has spent more. This page trains a model of one's own
# with DP-SGD, makes its update sparse by changing one argument, and ends with a search over settings that has *one* ε. It
# takes a minute on two cores.

# %%
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import dpfest

torch.manual_seed(0)
items = (50_000 ** torch.rand(60_000, 5)).long()  # five items an example: a few are popular, most are rare
clicked = torch.bernoulli(torch.randn(50_000)[items].sum(1).sigmoid())
data = torch.utils.data.TensorDataset(items[:50_000], clicked[:50_000])
held_out = items[50_000:], clicked[50_000:]


def model_of(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.EmbeddingBag(50_000, 8, mode="sum"), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.normal_(model[0].weight, std=0.1)
    return model


def loss_fn(model, batch):  # one loss an example
    items, clicked = batch
    return F.binary_cross_entropy_with_logits(model(items).squeeze(1), clicked, reduction="none")


def held_out_loss(model):
    with torch.no_grad():
        return float(loss_fn(model.eval(), held_out).mean())


# %% [markdown]
# ## DP-SGD
#
# `make_private` takes the model, its optimiser, the data and the loss of each example, and hands out Poisson batches until
# the planned steps are spent.

# %%
budget = {"epsilon": 3.0, "delta": 1e-5, "batch_size": 1_000, "steps": 60}


def trained(algorithm):
    model = model_of()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
    training = dpfest.make_private(model, optimizer, data, loss_fn, algorithm=algorithm, **budget)
    rows = [sum(training.step(batch).release.rows_per_table) for batch in training]
    print(f"{type(algorithm).__name__}: loss {held_out_loss(model):.4f}, epsilon {training.epsilon():.2f}, ", end="")
    print(f"{sum(rows) / len(rows):,.0f} of 50,000 rows a step")


trained(dpfest.DPSGD(clipping_norm=4))

# %% [markdown]
# ## A sparse update, by one argument
#
# DP-AdaFEST adds noise to the counts of each batch's rows, and updates the rows whose noisy count reaches a threshold. The
# second noise is paid for: the gradient's is a little larger, at the same ε.

# %%
trained(dpfest.AdaFEST(threshold=5, noise_ratio=2, clipping_norm=4))
trained(dpfest.Frozen(clipping_norm=4))

# %% [markdown]
# ## One epsilon for the choice
#
# Which threshold? Trying several and keeping the best spends more than one run's ε. A private search draws how many runs
# it makes, and each run's settings from a grid; only the best leaves, and one ε covers it all (Papernot and Steinke, 2022).

# %%
common = {"examples": len(data), "batch_size": 1_000, "steps": 60}
grid = [
    partial(dpfest.plan, dpfest.AdaFEST(threshold=threshold, noise_ratio=2, clipping_norm=4), **common)
    for threshold in (3, 5, 8)
]
planned = dpfest.plan_search(dpfest.Search(3), grid, epsilon=3.0, delta=1e-5)
print(f"epsilon of each run {planned.epsilon_of_run:.2f}, of the search {planned.epsilon:.2f}")


def run(plan, key):
    model = model_of()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
    training = dpfest.make_private(model, optimizer, data, loss_fn, plan=plan, key=key)
    for batch in training:
        training.step(batch)
    return -held_out_loss(model), (model, training.ledger)  # a score, and what is to be released


best = dpfest.select_best(run, planned, key=dpfest.NoiseKey.fresh())
model, ledger = best.result
print(f"best: {best.plan.algorithm}, held-out loss {-best.score:.4f}, epsilon of all of it {best.epsilon:.2f}")

# %% [markdown]
# Publish `best.ledger(ledger)`, and nothing else: no other run, no log, nor how many runs there were. Held-out rows chose
# the winner, and ε does not cover them.
#
# At the prompt the same is `dpfest sweep search=negative_binomial search.mean=3 ...`
# ([EXPERIMENTS](../EXPERIMENTS.md#private-search)).
