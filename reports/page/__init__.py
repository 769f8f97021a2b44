"""The report as one self-contained page: every figure, table, claim and run, with nothing fetched from anywhere."""
