"""Typed settings: composed by Hydra and checked; an unknown key is reported with the nearest known one."""
