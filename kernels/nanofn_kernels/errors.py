"""What a caller can get wrong about a kernel's arguments. Every error carries name, expected and actual."""


class ArgumentError(ValueError):
    """An argument of a kernel cannot be used. Raised before anything runs, so nothing was written.

    Attributes:
        name: The argument, as the signature spells it.
        expected: What the kernel takes.
        actual: What it was given.
    """

    def __init__(self, name: str, expected: object, actual: object) -> None:
        self.name, self.expected, self.actual = name, expected, actual
        super().__init__(f"{name}: expected {expected}, got {actual}")


class ShapeError(ArgumentError):
    """A size is wrong or does not agree with another argument's."""


class DtypeError(ArgumentError):
    """An element type is not supported, or does not agree with another argument's."""


class StrideError(ArgumentError):
    """An axis that must be contiguous is not, or a tensor is on another device."""
