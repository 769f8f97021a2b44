"""Shell completion through the real entry, by the protocol of Typer's own scripts."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command


def bash(dpfest_here: Command, *words: str) -> list[str]:
    """What bash is given; it cuts words at `=` and joins them by newlines."""
    ended = dpfest_here(_DPFEST_COMPLETE="complete_bash", COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algo"], ["algorithm.", "algorithm="]),
        (["algorithm", "=", "ada"], ["adafest", "adafest_plus"]),
        (["algorithm=ada"], ["algorithm=adafest", "algorithm=adafest_plus"]),
        (["algorithm", "=", "fest", "algorithm.sel"], ["algorithm.selection.rows="]),
        (["privacy.eps"], ["privacy.epsilon=", "privacy.epsilon=1.0"]),
        (["--multi"], ["--multirun"]),
        (["nokey", "=", "3", "algorithm", "=", "ada"], ["adafest"]),
    ],
)
def test_bash_completes_what_follows_a_subcommand(dpfest_here: Command, words: list[str], expected: list[str]) -> None:
    found = bash(dpfest_here, "dpfest", "train", *words)
    assert set(expected) <= set(found)
    if "=" not in words:
        assert all(choice.startswith(words[-1]) for choice in found)


def test_bash_completes_values_right_after_the_equals_sign(dpfest_here: Command) -> None:
    assert "dpsgd" in bash(dpfest_here, "dpfest", "train", "algorithm", "=")


def test_subcommands_and_their_own_options_complete_too(dpfest: Command) -> None:
    """In a process of its own, as a shell asks."""
    assert bash(dpfest, "dpfest", "tra") == ["train"]
    assert bash(dpfest, "dpfest", "sweep", "--fail") == ["--fail-fast"]


def test_zsh_and_fish_get_whole_words(dpfest_here: Command) -> None:
    line = "dpfest train algorithm=ada"
    zsh = dpfest_here(_DPFEST_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line).stdout
    assert '"algorithm=adafest"' in zsh
    fish = dpfest_here(
        _DPFEST_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", _TYPER_COMPLETE_ARGS=line
    ).stdout
    assert fish.split() == ["algorithm=adafest", "algorithm=adafest_plus"]


def test_typer_still_shows_its_script(dpfest: Command) -> None:
    ended = dpfest("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_DPFEST_COMPLETE=complete_bash" in ended.stdout
