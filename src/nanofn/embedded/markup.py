"""The tokens that part texts and turns, and how a conversation is written with them."""

from collections.abc import Iterable

END_OF_TEXT, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)


def write_turns(turns: Iterable[tuple[str, str]]) -> str:
    """Write (role, content) pairs as the chat template does."""
    return "".join(f"{START_OF_TURN}{role}\n{content}{END_OF_TURN}\n" for role, content in turns)


def has_markup(text: str) -> bool:
    """Tell whether a text holds a special token's name, which would be read as the token."""
    return any(token in text for token in SPECIAL_TOKENS)
