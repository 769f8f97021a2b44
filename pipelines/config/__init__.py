"""Typed settings: composed by Hydra, checked, wrong keys answered with the nearest right one."""
