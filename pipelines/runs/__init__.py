"""One run: its folder and hash, what it trains on, its summary, and what of it may leave."""
