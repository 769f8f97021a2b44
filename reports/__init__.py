"""Figures, tables and claims from finished runs only: one module per artifact, one style, reproducible bytes."""
