"""Hydra configuration groups; every value here is the default of the dataclass that it configures."""
