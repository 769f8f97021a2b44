"""Datasets: what reads them, how their values become table rows, and the files that training gathers from."""
