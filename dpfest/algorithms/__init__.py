"""The algorithms: which rows each lets survive, what it adds, and what a step of it costs."""
