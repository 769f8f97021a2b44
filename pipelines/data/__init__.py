"""Datasets: readers, vocabularies, and the files that training gathers rows from."""
