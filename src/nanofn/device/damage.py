"""What reading a damaged checkpoint raises: errors of nanofn's, whatever stumbled over it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanofn.errors import CheckpointError, NanofnError


@contextmanager
def typed_errors(path: str | Path) -> Iterator[None]:
    """Turn whatever values of other types and sizes than a checkpoint's lead to into errors of the checkpoint.

    Args:
        path: The checkpoint, for the message.

    Raises:
        CheckpointError: In place of errors of types, values, arithmetic, look-ups and files.
    """
    try:
        yield
    except NanofnError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); check its permissions and its disk") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds what no checkpoint does ({type(error).__name__}: {error})") from error
