"""What the step's own parts call in their place on a GPU (:func:`dpfest.devices.serving`), in the order of a step."""

from dpfest.device.gather import look_up_together, reads
from dpfest.device.graph import Graphs
from dpfest.device.lookups import clipped_map, look_up
from dpfest.device.noise import add_noise, adds, surviving_rows
from dpfest.device.sums import add_squared_norms
from dpfest.device.update import take_steps

__all__ = [
    "Graphs",
    "add_noise",
    "add_squared_norms",
    "adds",
    "clipped_map",
    "look_up",
    "look_up_together",
    "reads",
    "surviving_rows",
    "take_steps",
]
