"""From what packages hold to texts: parsing, and leaving out what a small model should not learn.

Each function returns groups of documents. What belongs together (one chat, one entry of the dictionary, a stretch of a
novel) is one group, so that a held-out group shares nothing with what is trained on.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence

from nanofn.embedded.markup import END_OF_TEXT, has_markup, write_turns

CHAT_SYSTEM = "Two people are chatting."
"""Stands before real chats, so that the model can tell people's small talk from its own way of answering."""

MIN_TURNS, PIECE_TURNS = 4, 8
"""Shorter chats are left out; longer ones are cut, since a small model looks back a short way."""

MAX_TURN_CHARS = 600
NOVEL_CHARS = 1500
"""How long a document of a novel gets before the next paragraph starts another."""

# Stems, at the start of a word. A chat with one is left out whole.
_COARSE = re.compile(
    r"\b(?:fuck|shit|bitch|cunt|dick(?!ens)|cock(?!atoo|roach|pit|tail|er)|puss(?:y|ies)|porn|slut|whore|nigg|fag|rape|"
    r"nazi|hitler|suicid|masturb|boob|penis|vagina|horny|sexy|sexual|sex\b|ass\b|asshole|bastard|damn|wtf|stfu|kill)",
    re.IGNORECASE,
)
_PRIVATE = re.compile(
    r"\S+@\S+|https?:|www\.|\.(?:com|net|org|edu)\b|\+?\d[\d\s().-]{6,}\d|(?:^|\s)@\w+|\b(?:instagram|snapchat|facebook|twitter)\b",
    re.IGNORECASE,
)
_TYPOGRAPHY = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-", "\u2026": "..."}
)


def plain(text: str) -> str:
    """Write quotes and dashes as keyboards do, drop other characters beyond ASCII and letters, and join blanks."""
    kept = "".join(
        char for char in text.translate(_TYPOGRAPHY) if " " <= char <= "~" or char.isalpha() or char.isspace()
    )
    return " ".join(kept.split())


def is_fit(text: str) -> bool:
    """Tell whether a text has no coarse word, no address, number or handle of a person, and no token's name."""
    return not (_COARSE.search(text) or _PRIVATE.search(text) or has_markup(text))


def chats(data: bytes) -> Iterator[list[str]]:
    """Yield the pieces of each fit chat of chitchat's dataset.json: whole exchanges, in the chat template's form."""
    for chat in json.loads(data).values():
        turns = _turns(chat["messages"])
        if len(turns) < MIN_TURNS or not all(is_fit(turn) and len(turn) <= MAX_TURN_CHARS for turn in turns):
            continue
        pieces = [turns[start : start + PIECE_TURNS] for start in range(0, len(turns), PIECE_TURNS)]
        yield [_write_chat(piece) for piece in pieces if len(piece) > 1]


def _turns(messages: Iterable[Sequence[dict[str, str]]]) -> list[str]:
    """Join what one person says in a row; empty messages vanish."""
    turns: list[tuple[str, str]] = []
    for message in (each for burst in messages for each in burst):
        text = plain(message["text"])
        if not text:
            continue
        if turns and turns[-1][0] == message["sender"]:
            turns[-1] = (message["sender"], _join(turns[-1][1], text))
        else:
            turns.append((message["sender"], text))
    return [text for _, text in turns]


def _join(first: str, second: str) -> str:
    return f"{first} {second}" if first[-1] in ".!?," else f"{first}. {second}"


def _write_chat(turns: Sequence[str]) -> str:
    whole = turns[: len(turns) // 2 * 2]
    roles = ("user", "assistant") * (len(whole) // 2)
    return write_turns([("system", CHAT_SYSTEM), *zip(roles, whole, strict=True)]) + END_OF_TEXT


def dictionary(data: str, first_senses: frozenset[str]) -> Iterator[list[str]]:
    """Yield, per entry of a WordNet data file, a question about its meaning with the answer, and its example sentences.

    Args:
        data: The file's text. A line is: offset, file number, kind, number of words in hexadecimal, word, ... | gloss.
        first_senses: "word offset" for every word whose most usual sense this is; other senses are not asked for.
    """
    for line in data.splitlines():
        head, bar, gloss = line.partition(" | ")
        if not bar or line.startswith("  "):
            continue
        offset, lexical_file, kind, _, word, *_ = head.split()
        meaning, examples = _read_gloss(gloss)
        found = [f"{example}{END_OF_TEXT}" for example in examples]
        if meaning and word.isalpha() and word.islower() and f"{word} {offset}" in first_senses:
            found.insert(0, _write_meaning(word, kind, lexical_file, meaning))
        if found:
            yield found


def first_senses(index: str) -> frozenset[str]:
    """Read a WordNet index file: the first offset of a word is its most usual sense."""
    found = []
    for line in index.splitlines():
        if line.startswith("  "):
            continue
        word, _, num_senses, *rest = line.split()
        found.append(f"{word} {rest[-int(num_senses)]}")
    return frozenset(found)


def _read_gloss(gloss: str) -> tuple[str, list[str]]:
    text = re.sub(r"\([^()]*\)", "", plain(gloss))
    quoted = [plain(each) for each in re.findall(r'"([^"]*)"', text)]
    meaning = " ".join(text.partition('"')[0].partition(";")[0].split()).rstrip(" ;:,")
    usable = bool(meaning) and meaning[0].isalpha() and not meaning.startswith("used ") and is_fit(meaning)
    return meaning if usable else "", [_sentence(each) for each in quoted if len(each.split()) > 3 and is_fit(each)]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


_COUNTED = {"05", "06", "18"}
"""WordNet's files of animals, made things and people: there a meaning that begins with "a" is of a thing one counts."""


def _write_meaning(word: str, kind: str, lexical_file: str, meaning: str) -> str:
    article = "an" if word[0] in "aeiou" else "a"
    if kind == "n" and lexical_file in _COUNTED and meaning.startswith(("a ", "an ")):
        said, answer = f"What is {article} {word}?", f"{article.capitalize()} {word} is {meaning}."
    else:
        asked = f"to {word}" if kind == "v" else word
        said = f'What does "{asked}" mean?'
        answer = f'"{asked[0].upper()}{asked[1:]}" means {"to " if kind == "v" else ""}{meaning}.'
    return write_turns([("user", said), ("assistant", answer)]) + END_OF_TEXT


def novels(data: bytes) -> Iterator[list[str]]:
    """Yield stretches of whole paragraphs of the books in an R package's Rdata.rdb; titles and headings are left out."""
    place = 0
    while place < len(data):
        unpacker = zlib.decompressobj()
        book = unpacker.decompress(data[place + 4 :])
        place = len(data) - len(unpacker.unused_data)
        length = 0
        stretch: list[str] = []
        for paragraph in _paragraphs(_strings(book)):
            stretch.append(paragraph)
            length += len(paragraph)
            if length >= NOVEL_CHARS:
                yield ["\n\n".join(stretch) + END_OF_TEXT]
                stretch, length = [], 0
        if stretch:
            yield ["\n\n".join(stretch) + END_OF_TEXT]


def _strings(serialised: bytes) -> Iterator[str]:
    """Read a vector of strings in R's XDR format, version 3: format, versions, encoding, type, count, then each."""
    (encoding_length,) = struct.unpack_from(">i", serialised, 14)
    place = 18 + encoding_length + 4
    (count,) = struct.unpack_from(">i", serialised, place)
    place += 4
    for _ in range(count):
        (length,) = struct.unpack_from(">i", serialised, place + 4)
        yield serialised[place + 8 : place + 8 + length].decode()
        place += 8 + length


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    joined = "\n".join(lines)
    for block in re.split(r"\n\s*\n", joined):
        text = plain(block).replace("_", "").replace("--", " - ")
        is_heading = text.isupper() or text.upper().startswith(("CHAPTER", "VOLUME")) or len(text.split()) < 5
        if not is_heading and not has_markup(text):
            yield text
