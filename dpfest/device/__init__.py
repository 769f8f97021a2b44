"""Parts of a step on a GPU: kernels in Triton, handed to the one step (:mod:`dpfest.step.order`) in place of a CPU's.

Triton comes with PyTorch's builds for GPUs. The kernels were seen interpreted on a CPU and compiled for three GPUs, and
**no GPU has run them yet**: they serve under ``DPFEST_DEVICE_KERNELS=1`` alone, for those who want to test them. Else,
and on a CPU, the parts that the rest of the library describes run: draws have the same bits, sums of floats other last
bits. A state is bound to which ran. The kernels read as the step does: :mod:`~dpfest.device.gather` (the rows that the
forward pass reads; :mod:`~dpfest.device.graph` starts that pass, and the one back, as one),
:mod:`~dpfest.device.lookups` (which rows an example touched, its map), :mod:`~dpfest.device.noise` (which rows survive;
noise), :mod:`~dpfest.device.sums` (norms and clipped sums), :mod:`~dpfest.device.update`.

Rules that they obey: no float is added atomically, so that a step that is taken again has the same bits; noise is a
function of place (:mod:`dpfest.noise.places`), never of a lane's or a list's order; float64 scalars are read from
memory, as Triton makes a Python float a float32.
"""
