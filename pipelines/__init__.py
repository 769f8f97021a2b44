"""Commands (preprocess, select, train, check, sweep, budget, bench, audit), and what lies beneath them."""
