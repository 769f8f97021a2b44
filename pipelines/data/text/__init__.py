"""Labelled texts: readers of each format, from lines to rows of token ids."""
