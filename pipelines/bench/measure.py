"""Competitors take turns, so that a drift of the machine affects all of them equally."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch

Turn = Callable[[int], float]
"""Takes the turn of this number and returns the seconds of one step."""

Times = dict[str, dict[int, float]]
"""Seconds of one step, by competitor and turn."""

WARM_UP, LEAST_TURNS = 2, 3
_TURN_SECONDS, _TURN_STEPS = 0.1, 100


def take_turns(
    competitors: Mapping[str, Turn],
    reference: str,
    *,
    repeats: int,
    seconds: float,
    warm_up: int = WARM_UP,
    least: int = LEAST_TURNS,
) -> Times:
    """Time `repeats` turns after `warm_up` uncounted ones; each turn starts with another competitor.

    A competitor that has run for `seconds` in total leaves after its `least`-th turn. The reference stays until all
    others have left, because a ratio needs both in one turn. One warm-up turn suffices for steps of a second.
    """
    names = list(competitors)
    times: Times = {name: {} for name in names}
    spent = dict.fromkeys(names, 0.0)

    def done(name: str) -> bool:
        return len(times[name]) >= least and spent[name] >= seconds

    others = [name for name in names if name != reference] or names
    for turn in range(warm_up + repeats):
        if all(map(done, others)):
            break
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            if name in others and done(name):
                continue
            if 0 < turn < warm_up and spent[name] > 1:
                continue
            started = time.perf_counter()
            taken = competitors[name](turn)
            spent[name] += time.perf_counter() - started
            if turn >= warm_up:
                times[name][turn] = taken
    return times


def steps(step: Callable[[int], object], device: torch.device) -> Turn:
    """Return a turn of enough numbered steps that scheduling does not dominate its time.

    Their number follows from the fastest turn so far, because a slow one may have waited for another process.
    """
    number, fastest = 0, math.inf

    def turn(turn: int) -> float:
        nonlocal number, fastest
        count = max(1, min(_TURN_STEPS, round(_TURN_SECONDS / fastest))) if number else 1
        _wait(device)
        started = time.perf_counter()
        for _ in range(count):
            step(number)
            number += 1
        _wait(device)
        taken = (time.perf_counter() - started) / count
        fastest = min(fastest, taken)
        return taken

    return turn


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Turn:
    """Return a turn of work that is done once."""

    def turn(number: int) -> float:
        started = clock()
        work()
        return clock() - started

    return turn


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
