"""Words to normal variates on a GPU: what :mod:`dpfest.noise.box_muller` computes in float64, and whether it is sure.

Products and sums may be fused: the error bound covers it. What is unsure goes to a list, which the host decides.
"""

import triton
import triton.language as tl


@triton.jit
def _logarithm(x):
    """Return ln x of a normal x > 0: that of ``kernels.c``, error below 2.5 units in the last place."""
    root = 0x3FE6A09E667F3BCD
    bits = x.to(tl.int64, bitcast=True) - root
    k = (bits >> 52).to(tl.float64)
    m = ((bits & 0xFFFFFFFFFFFFF) + root).to(tl.float64, bitcast=True)
    f = m - 1
    s = f / (2 + f)
    z = s * s
    r = z * 0.14616449685043406 + 0.15331721600556042
    r = r * z + 0.18182889125261723
    r = r * z + 0.2222221113479508
    r = r * z + 0.28571428625975487
    r = r * z + 0.39999999999899505
    r = r * z + 0.666666666666667
    r = r * z
    return k * 0.6931471803691238 - ((s * (f - r) - k * 1.9082149292705877e-10) - f)


@triton.jit
def _sine_of_half(a):
    """Return sin(pi a / 4), |a| <= 1: ``box_muller._SINE``."""
    q = a * a
    p = q * 6.877360573166326e-12 + -1.7571500746983935e-09
    p = p * q + 3.133616225433416e-07
    p = p * q + -3.657620415891387e-05
    p = p * q + 0.002490394570188844
    p = p * q + -0.08074551218828054
    p = p * q + 0.7853981633974483
    return p * a


@triton.jit
def pair(radius, angle, deviation):
    """Return the cosine and the sine variate of signed words, and two factors that :func:`unsure` takes."""
    u = tl.abs(radius.to(tl.float64)) * 1.0842021724855044e-19  # 2^-63
    u = tl.where(u == 0, 1.0842021724855044e-19, u)
    log_u = _logarithm(u)
    twice = tl.sqrt(log_u * -8.0)
    sine = _sine_of_half(angle.to(tl.float64) * 1.0842021724855044e-19)
    square = sine * sine
    scaled = twice * deviation
    cosine = (0.5 - square) * scaled
    cosine = tl.where(radius < 0, -cosine, cosine)
    sine = sine * tl.sqrt(1 - square) * scaled
    # box_muller._error times radius and u, so that nothing is divided: 2^-52 u + 2^-62 + 3 2^-51 radius^2 u, and 2^-20
    # of it for these very products. Of u below 2^-30 nothing is sure, nor of u rounded to 1, whose radius is 0.
    error = (2.220446049250313e-16 - log_u * 2.6645352591003757e-15) * u + 2.168404344971009e-19
    return cosine, sine, tl.where(u > 9.313225746154785e-10, 0.5 * twice * u, 0.0), error * 1.00000095367431640625


@triton.jit
def unsure(distance, factor, error, deviation):
    """Return whether a variate at this distance from a midpoint, in units, may be on its other side."""
    return distance * factor <= deviation * error


@triton.jit
def nearest(x):
    """Return the nearest whole number to |x| < 2^51, halves to even."""
    return (x + 6755399441055744.0) - 6755399441055744.0


@triton.jit
def rint(x):
    """Return the nearest whole number to any x, halves to even."""
    size = tl.abs(x)
    whole = (size + 4503599627370496.0) - 4503599627370496.0
    return tl.where(size < 4503599627370496.0, tl.where(x < 0, -whole, whole), x)


@triton.jit
def append(found, number, flag, value, places, values, room):
    """Append numbers and values of flagged lanes to a list; ``found`` counts those for which there was no room, too."""
    slot = tl.atomic_add(found + number * 0, flag.to(tl.int32), mask=flag)
    kept = flag & (slot < room)
    tl.store(places + slot, number, mask=kept)
    tl.store(values + slot, value, mask=kept)
