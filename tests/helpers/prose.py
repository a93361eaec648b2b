"""Sentences of a Markdown page, and what docs promise about them."""

import re
from dataclasses import dataclass

LONGEST_SENTENCE = 35
LONGEST_MEAN = 20
BANNED = (
    r"\bgo(?:es|ing)? on\b(?! (?:a|the|one|every|each|all|that|its|your|this) )",
    r"\bwent on\b",
    r"\bstands? (?:in|there|still|beside|for)\b",
    r"\bhangs? on\b",
    r"\bbegun\b",
    r"\bwhoever\b",
    r"\b(?:is|are|was|were) brought\b",
    r"(?:^|[.!?] )(?:Who|What|Where|Whoever|Of runs that)\b(?![^.!?]*\?)",
)
"""Turns that made earlier pages hard to read, as regular expressions over one sentence."""


@dataclass(frozen=True)
class Prose:
    """The running text of a page: `sentences` in order, without code, tables, headings and
    pictures.
    """

    sentences: tuple[str, ...]

    @property
    def words(self) -> int:
        """Words of all sentences."""
        return sum(map(count, self.sentences))

    @property
    def mean(self) -> float:
        """Mean words a sentence."""
        return self.words / max(1, len(self.sentences))

    @property
    def faults(self) -> list[str]:
        """What the page breaks, each with its sentence."""
        long = [f"{count(s)} words: {s}" for s in self.sentences if count(s) > LONGEST_SENTENCE]
        turns = [
            f"{match.group(0).strip()!r}: {sentence}"
            for sentence in self.sentences
            for pattern in BANNED
            if (
                match := re.search(
                    pattern, sentence, re.IGNORECASE if pattern.startswith(r"\b") else 0
                )
            )
        ]
        mean = [f"mean {self.mean:.1f} words a sentence"] if self.mean > LONGEST_MEAN else []
        return mean + long + turns


def count(sentence: str) -> int:
    """Return the words of a sentence; symbols and numbers between words are none."""
    return sum(any(letter.isalpha() for letter in word) for word in sentence.split())


def prose(page: str) -> Prose:
    """Return the running text of a Markdown page."""
    page = re.sub(r"(?m)^\s*\|.*$|^#.*$|^\s*<[^>]+>\s*$", "", without_code(page))
    page = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", page)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"`[^`]*`", "code", page)
    page = page.replace("*", "")
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", page)
    lines = (" ".join(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", block).split()) for block in blocks)
    pieces = (
        piece
        for line in lines
        for piece in re.split(r"(?<=[.!?:])\s+(?=[A-Z(\"'“0-9εσ]|code\b)|;\s+", line)
    )
    return Prose(tuple(piece for piece in pieces if count(piece) > 1))


def without_code(page: str) -> str:
    """Return a Markdown page without fenced blocks, comments, and what it folds, which is
    generated.
    """
    page = re.sub(r"(?s)<!--.*?-->", " ", page)
    page = re.sub(r"(?s)<details>.*?</details>", "\n\n", page)
    return re.sub(r"(?s)^ *(`{3,}).*?^ *\1\s*$", "\n\n", page, flags=re.MULTILINE)
