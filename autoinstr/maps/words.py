"""How messages speak of words: shown in quotes, and with the one that was meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean 'near'?`, or nothing where no known word is near."""
    import difflib  # every process of a run starts with this module; few make a mistake

    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6) or difflib.get_close_matches(
        word.lower(), words, n=1
    )
    return f", did you mean {near[0]!r}?" if near else ""


def suggest(word: str, known: Iterable[str]) -> str:
    """What follows an unknown word: the near one, else all that are known."""
    words = list(known)
    return did_you_mean(word, words) or (f"; known: {', '.join(words)}" if words else "")


def shown(text: str, limit: int = 80) -> str:
    """`text` in quotes, as a message shows it: on one line, and never longer than `limit` characters."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
