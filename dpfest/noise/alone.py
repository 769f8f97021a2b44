"""One training, one process, one thread at a time: what must not be copied, forked or run beside another.

Noise is a function of key, purpose and step. Another copy of a training takes the same step from other weights, or on
other examples, under the same noise: the difference of the two releases has none. So whatever draws from a key refuses
to be copied or pickled, and to step in another process than its own.
"""

from __future__ import annotations

import os
import threading
from contextlib import ContextDecorator
from typing import Any, NoReturn

from dpfest.errors import UserError


class Uncopied:
    """Base of what draws noise: refuses ``copy``, ``deepcopy`` and ``pickle``, by name."""

    def _refuse_a_copy(self, *how: Any) -> NoReturn:
        raise UserError(
            f"A {type(self).__name__} cannot be copied or pickled: the copy would draw the same noise for another "
            "gradient, and the difference of the two releases would have none. A second training beside this one is "
            "fork(steps) of it; to continue elsewhere, save its state_dict()."
        )

    __copy__ = __deepcopy__ = __reduce_ex__ = _refuse_a_copy


class OneProcess(Uncopied):
    """Base of what draws or takes steps: refuses to do so in another process than the one that made it."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """Remember the process."""
        made = super().__new__(cls)
        object.__setattr__(made, "_process", os.getpid())  # of a frozen dataclass, too
        return made

    _process: int

    def refuse_another_process(self) -> None:
        """Refuse to go on in a process that was forked from the one that made this.

        Raises:
            UserError: says so, and how to train in two processes.
        """
        if os.getpid() != self._process:
            raise UserError(
                f"This {type(self).__name__} was made in process {self._process}, and this is process {os.getpid()}: a "
                "forked process would draw the same noise for another gradient. Make it in the process that trains; a "
                "second training beside it is fork(steps)."
            )


class _Lock(ContextDecorator):
    """A lock that one thread may take repeatedly; a forked process begins with a free one."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *ended: Any) -> None:
        self._lock.release()


PROCESS_STATE = _Lock()
"""Held while the state of the process is compared or changed: the generators of torch, numpy and Python. Two trainings
in two threads take turns, step by step."""
