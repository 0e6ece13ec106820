"""What programs written for vLLM do around a call: they use its tokenizer, and let it cut prompts."""

import pytest

from nanofn import SamplingParams
from nanofn.errors import RequestError


def test_the_tokenizer_is_that_of_transformers(llm):
    """It renders a conversation by itself, and the ids that it makes are a prompt like the one that `chat` makes."""
    tokenizer = llm.get_tokenizer()
    turn = [{"role": "user", "content": "Hello!"}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    params = SamplingParams(temperature=0.0, seed=1, max_tokens=5)
    (by_hand,) = llm.generate({"prompt_token_ids": tokenizer.encode(text)}, params)
    (by_chat,) = llm.chat(turn, params)
    assert by_hand.prompt_token_ids == by_chat.prompt_token_ids
    assert by_hand.outputs == by_chat.outputs


@pytest.mark.parametrize(("count", "num_kept"), [(1, 1), (5, 5), (127, 127), (-1, 127)])
def test_a_prompt_is_cut_at_its_beginning(llm, count, num_kept):
    """Its last tokens stay; -1 leaves room for one more in `max_model_len`, which is 128."""
    ids = tuple([3 + place for place in range(300)])
    params = SamplingParams(max_tokens=1, truncate_prompt_tokens=count)
    long, short = llm.generate([list(ids), list(ids[:3])], params)
    assert long.prompt_token_ids == ids[-num_kept:]
    assert short.prompt_token_ids == ids[:3][-num_kept:]
    assert len(long.outputs[0].token_ids) == 1


def test_a_prompt_that_is_too_long_after_the_cut_is_refused(llm):
    """As one that is not cut at all."""
    for count in (128, 1000, None):
        with pytest.raises(RequestError, match="max_model_len 128"):
            llm.generate([list(range(3, 303))], SamplingParams(max_tokens=1, truncate_prompt_tokens=count))
