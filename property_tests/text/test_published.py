"""Tokenizers and chat templates of published models: llama.cpp's vectors, transformers' rendering."""

import pytest
from transformers import AutoTokenizer

from nanofn.device.gguf_header import read_gguf_header
from nanofn.errors import UnsupportedModelError
from nanofn.text.gguf_tokenizer import gguf_tokenizer
from text.real_material import VOCABULARIES, material, real_tokenizer, vectors


@pytest.fixture(scope="module")
def theirs():
    """Qwen3's tokenizer in transformers."""
    return AutoTokenizer.from_pretrained(material("qwen3 tokenizer"), local_files_only=True)


def from_vocabulary(name, **changes):
    """The tokenizer of one of llama.cpp's vocabularies, some of its metadata changed."""
    header = read_gguf_header(material("vectors") / f"ggml-vocab-{name}.gguf")
    return gguf_tokenizer(header.metadata | changes)


def test_qwen3_encodes_the_public_vectors():
    """47 texts of spaces, digits, scripts and emoji: llama.cpp's ids, and the text back."""
    tokenizer, cases = real_tokenizer("qwen3"), vectors("qwen2")
    assert len(cases) == 47
    assert [tokenizer.encode_plain(text) for text, _ in cases] == [ids for _, ids in cases]
    assert [tokenizer.decode(ids, skip_special_tokens=False) for _, ids in cases] == [text for text, _ in cases]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_tokenizer_rebuilt_from_gguf_encodes_the_public_vectors(name):
    """The same for what a GGUF file says of Qwen's and of Llama 3's."""
    tokenizer, cases = from_vocabulary(name), vectors(name)
    assert len(cases) == 47
    assert [tokenizer.encode_plain(text) for text, _ in cases] == [ids for _, ids in cases]
    assert [tokenizer.decode(ids, skip_special_tokens=False) for _, ids in cases] == [text for text, _ in cases]


def test_qwen_from_gguf_is_qwen_from_json():
    """Composed and decomposed letters, added tokens, digits after blanks: the two sources agree."""
    texts = ["e\u0301\ufb01 a  12 345", "<|im_start|>user\n<think>", "don't DON'T", "\r\n \n\t x", "\U0001f600\u200d"]
    ours, json = from_vocabulary("qwen2"), real_tokenizer("qwen3")
    # llama.cpp's vocabulary has no <think>: Qwen2.5 did not.
    texts[1] = "<|im_start|>user\n"
    assert [ours.encode(text) for text in texts] == [json.encode(text) for text in texts]


def test_llama3_begins_with_its_first_token_once():
    """`encode` adds what the tokenizer adds by itself, a template's text gets nothing more."""
    tokenizer = from_vocabulary("llama-bpe")
    start = tokenizer.inner.bos_token_id
    assert tokenizer.encode("a") == [start, *tokenizer.encode_plain("a")]
    assert tokenizer.decode([start]) == ""


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.model": "llama"}, r"tokenizer\.ggml\.model 'llama'"),
        ({"tokenizer.ggml.pre": "gpt-4o"}, r"tokenizer\.ggml\.pre 'gpt-4o'.*llama-bpe, qwen2, smollm"),
        ({"tokenizer.ggml.pre": None}, r"tokenizer\.ggml\.pre None"),
    ],
)
def test_another_kind_in_gguf_is_refused_by_name(change, named):
    """Before a single text is cut by a wrong rule; the way out is the model's own tokenizer.json."""
    with pytest.raises(UnsupportedModelError, match=named + ".*tokenizer=FOLDER"):
        gguf_tokenizer({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"} | change)


CONVERSATIONS = {
    "one turn": [{"role": "user", "content": "Hi"}],
    "a system turn": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "earlier thoughts": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHello!"},
        {"role": "user", "content": "1+1?"},
    ],
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize(
    "given", [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"tools": TOOLS}], ids=str
)
def test_qwen3_renders_as_transformers_does(conversation, given, theirs):
    """Thinking on, off and not said; tools; thoughts of earlier turns: the same ids."""
    messages = CONVERSATIONS[conversation]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **given)
    assert real_tokenizer("qwen3").render_chat(messages, **given) == expected


def test_qwen3_is_told_not_to_think_by_an_empty_thought():
    """Known ids: thinking is the default, and without it the prompt ends with thoughts that are empty."""
    tokenizer, messages = real_tokenizer("qwen3"), CONVERSATIONS["one turn"]
    asked = [151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198]
    assert tokenizer.render_chat(messages) == asked
    assert tokenizer.render_chat(messages, enable_thinking=True) == asked
    assert tokenizer.render_chat(messages, enable_thinking=False) == [*asked, 151667, 271, 151668, 271]
    assert tokenizer.thinks()


def test_qwen3_rows_without_a_token_decode_to_nothing():
    """The models have 151,936 logits, the tokenizer 151,669 tokens."""
    tokenizer = real_tokenizer("qwen3")
    assert tokenizer.vocab_size == 151_669
    assert tokenizer.decode([151_669, 151_935]) == ""


def test_smollm2_splits_every_digit():
    """Its own rule, which a plain byte-level tokenizer does not have: two blanks before a digit show it."""
    tokenizer = real_tokenizer("smollm2")
    assert tokenizer.encode("a  7") == [81, 256, 39]
    digits = tokenizer.encode("123")
    assert [tokenizer.decode([each]) for each in digits] == ["1", "2", "3"]
    assert tokenizer.eos_token_id == 2
