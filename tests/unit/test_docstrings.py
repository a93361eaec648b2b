from dataclasses import dataclass

from raydpzv.docstrings import docstring


@dataclass
class Base:
    first: int = 0
    """The first,
    in two lines."""
    second: int = 0
    """The second."""
    third: int = 0


@dataclass
class Derived(Base):
    second: int = 1
    """Another second."""


def test_a_docstring_is_the_one_declared_last_on_one_line():
    assert docstring(Derived, "first") == "The first, in two lines."
    assert docstring(Derived, "second") == "Another second."
    assert docstring(Base, "second") == "The second."
    assert docstring(Derived, "third") is None
