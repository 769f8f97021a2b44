"""What many runs cost together, remembered: composing hundreds of plans takes seconds, and reports are made again.

Each number is a function of the plans and of the accountant, of which its key is a digest. They lie in `costs.json`
beside what was measured, for the reference in docs/reference (`make readme` writes it), and a report adds its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = "costs.json"


class Costs:
    """Costs by the digest of what determines them.

    Args:
        folders: where earlier reports left them; a file that cannot be read is as if there were none.
    """

    def __init__(self, *folders: Path) -> None:
        self._known: dict[str, float] = {}
        for folder in folders:
            try:
                found = json.loads((folder / FILE).read_text(encoding="utf-8"))
                self._known |= {str(key): float(value) for key, value in found.items()}
            except (OSError, ValueError, AttributeError, TypeError):
                continue
        self._asked: dict[str, float] = {}

    def of(self, what: str, about: Iterable[Any], compute: Callable[[], float]) -> float:
        """Return a cost, computed unless it is known.

        Args:
            what: the quantity.
            about: all that determines it beside the accountant, in an order that does not matter.
            compute: computes it.
        """
        words = [what, version("dp-accounting"), *sorted(map(repr, about))]
        key = hashlib.sha256("\n".join(words).encode()).hexdigest()[:24]
        if key not in self._known:
            self._known[key] = compute()
        self._asked[key] = self._known[key]
        return self._asked[key]

    @property
    def asked(self) -> Mapping[str, float]:
        """The costs that were asked for, by key."""
        return dict(sorted(self._asked.items()))

    def text(self) -> str:
        """Return the content of `costs.json`."""
        return json.dumps(self.asked, indent=0) + "\n"
