"""What events cost: epsilon and delta of releases and their composition, by dp_accounting and bounds of our own."""
