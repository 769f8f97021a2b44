"""The stages of an experiment (preprocess, select, train, sweep), and the datasets and models they use."""
