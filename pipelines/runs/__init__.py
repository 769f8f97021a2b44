"""A run: its folder and hash, its schedule, its summary, and its release."""
