"""Figures and tables from run directories alone: one module an artifact, one style, the same bytes again."""
