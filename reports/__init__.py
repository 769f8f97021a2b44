"""Figures and tables from finished runs alone: one module an artifact, one style, the same bytes again."""
