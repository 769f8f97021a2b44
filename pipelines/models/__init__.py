"""Models that the runner can train."""
