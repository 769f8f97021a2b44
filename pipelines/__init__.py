"""Commands (preprocess, select, train, sweep, budget, bench, audit) and the datasets, models and runs beneath them."""
