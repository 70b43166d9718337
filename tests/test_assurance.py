"""A declaration is that of the class that wrote it, and does not survive an overridden method."""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.assurance import Assurance, Assurances, find_assurances

ONE, TWO = Assurance.OWN_DATA, Assurance.ONE_GRADIENT


class Base:
    assures: Assurances = frozenset({ONE, TWO})
    size = 1

    def step(self) -> int:
        return 1

    @property
    def length(self) -> int:
        return 1


class Mixin:
    def step(self) -> int:
        return 2


def test_a_class_that_overrides_nothing_has_the_declaration_of_its_base() -> None:
    @dataclass(frozen=True)
    class Larger(Base):
        size: int = 2

        def __post_init__(self) -> None:
            """Nothing."""

        def another(self) -> int:
            return 3

    assert find_assurances(Base()) == find_assurances(Larger()) == {ONE, TWO}


def test_a_class_that_overrides_a_method_declares_anew() -> None:
    class Silent(Base):
        def step(self) -> int:
            return 2

    class Below(Silent):
        """Overrides nothing."""

    class Property(Base):
        @property
        def length(self) -> int:
            return 2

    class Mixed(Mixin, Base):
        """The method of a class beside."""

    class Declared(Silent):
        assures = Base.assures - {TWO}

        def step(self) -> int:
            return 3

    assert not any(find_assurances(part) for part in (Silent(), Below(), Property(), Mixed(), object()))
    assert find_assurances(Declared()) == {ONE}


def test_a_declaration_may_depend_on_parameters() -> None:
    class Either(Base):
        def __init__(self, *, both: bool) -> None:
            self.both = both

        @property
        def assures(self) -> Assurances:  # type: ignore[override]
            return Base.assures if self.both else frozenset()

    assert find_assurances(Either(both=True)) == {ONE, TWO}
    assert find_assurances(Either(both=False)) == frozenset()
