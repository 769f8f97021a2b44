"""Which rows are trained: noisy maps and thresholds in a step, the most frequent rows before training."""
