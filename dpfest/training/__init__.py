"""Training: the loop, its checks and saved states, and rows counted beforehand."""
