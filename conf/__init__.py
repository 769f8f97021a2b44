"""Hydra configuration groups; values equal the defaults of the dataclasses that they configure."""
