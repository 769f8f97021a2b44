"""Shell completion of what follows a subcommand, by Hydra's own completion, inside Typer's."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence


def complete(words: Sequence[str], incomplete: str) -> list[str]:
    """Completions of the last word of a command line, as the shell wants them.

    bash cuts words at `=`, so it has passed `algorithm`, `=`, `ada` for `algorithm=ada` and wants `adafest` back;
    other shells pass and want whole words.
    """
    before = list(words)
    word, cut = incomplete, 0
    if incomplete == "=" and before:
        word = before.pop() + "="
        cut = len(word)
    elif len(before) > 1 and before[-1] == "=":
        cut = len(before[-2]) + 1
        word = f"{before[-2]}={incomplete}"
        del before[-2:]
    return [choice[cut:] for choice in completions(_joined(before), word)]


def completions(before: Sequence[str], word: str) -> list[str]:
    """What `word` can become after the words `before`.

    A shell puts a space behind the only completion; where that would end a word too early (`algorithm.threshold=`, a
    dot), its continuations are offered beside it.
    """
    found = _query(before, word)
    if len(found) == 1 and found[0] != word and found[0][-1] in "=./":
        found += [choice for choice in _query(before, found[0]) if choice != found[0]]
    return found


def _query(before: Sequence[str], word: str) -> list[str]:
    """Hydra's answer. It wants a line without our subcommand, by the protocol of its own bash completion."""
    from cli.launch import launch
    from cli.tasks import train

    answer = io.StringIO()
    os.environ["COMP_LINE"] = " ".join(["dpfest", *before, word])
    # Whatever cannot be completed is completed by nothing: an error message would land in the user's command line.
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(
        Exception, SystemExit
    ):
        launch(train, ["--shell-completion", "query=bash"])
    return [choice for choice in answer.getvalue().split() if not _internal(choice)]


def _internal(choice: str) -> bool:
    return choice.startswith(("scale", "hydra.", "sweep.records"))


def _joined(words: Sequence[str]) -> list[str]:
    """Words that were cut at `=`, whole again."""
    whole: list[str] = []
    for word in words:
        if whole and (word == "=" or whole[-1].endswith("=")):
            whole[-1] += word
        else:
            whole.append(word)
    return whole

