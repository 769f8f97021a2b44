"""The private step: its order, its noise, and where rows lie in one process."""
