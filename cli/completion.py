"""Shell completion after a subcommand: Hydra's completion within Typer's."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence


def complete(words: Sequence[str], incomplete: str) -> list[str]:
    """Return completions of the last word of a command line, in the form that the shell expects.

    bash splits words at `=`: for `algorithm=ada` it passes `algorithm`, `=`, `ada`, for `algorithm=` only
    `algorithm` and an empty word (Typer drops the `=`), and expects `adafest`. Other shells pass and expect
    whole words.
    """
    before = list(words)
    word, cut = incomplete, 0
    if len(before) > 1 and before[-1] == "=":
        word = f"{before[-2]}={incomplete}"
        cut = len(before[-2]) + 1
        del before[-2:]
    elif not incomplete and before and _is_key(before):
        word = before.pop() + "="
        cut = len(word)
    return [choice[cut:] for choice in completions(_joined(before), word)]


def _is_key(words: Sequence[str]) -> bool:
    """Whether the last word is a key that still lacks its `=`, and no flag or flag's value."""
    return "=" not in words[-1] and not any(word.startswith("-") for word in words[-2:])


def completions(before: Sequence[str], word: str) -> list[str]:
    """Return the completions of `word` after the words `before`.

    A shell appends a space to a unique completion; where that would end a word too early
    (`algorithm.threshold=`, a dot), its continuations are returned as well.
    """
    choices = _query(before, word)
    if len(choices) == 1 and choices[0] != word and choices[0][-1] in "=./":
        choices += [choice for choice in _query(before, choices[0]) if choice != choices[0]]
    return choices


def _query(before: Sequence[str], word: str) -> list[str]:
    """Query Hydra by the protocol of its bash completion, which expects a line without our subcommand."""
    from cli.launch import launch
    from cli.tasks import train

    answer = io.StringIO()
    os.environ["COMP_LINE"] = " ".join(["dpfest", *before, word])
    # On any error return no completion: a message would end up in the user's command line.
    with (
        contextlib.redirect_stdout(answer),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(Exception, SystemExit),
    ):
        launch(train, ["--shell-completion", "query=bash"])
    return [choice for choice in answer.getvalue().split() if not _internal(choice)]


def _internal(choice: str) -> bool:
    return choice.startswith(("scale", "hydra."))


def _joined(words: Sequence[str]) -> list[str]:
    """Join words that were split at `=`."""
    whole: list[str] = []
    for word in words:
        if whole and (word == "=" or whole[-1].endswith("=")):
            whole[-1] += word
        else:
            whole.append(word)
    return whole
