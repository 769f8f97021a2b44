"""``python -m dpfest`` is the command ``dpfest``, in the form that torchrun starts: ``torchrun -m dpfest train``."""

from importlib.metadata import entry_points

(command,) = entry_points(group="console_scripts", name="dpfest")
command.load()()
