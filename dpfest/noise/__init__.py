"""Random bits and exact draws: the key, its keystreams, and distributions whose law holds for the floats themselves."""
