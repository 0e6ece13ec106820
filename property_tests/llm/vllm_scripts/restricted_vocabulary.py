"""Only some tokens, no bad words, and not too early an end."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], max_model_len=256)
allowed = list(range(260, 400))
params = SamplingParams(
    temperature=1.0, seed=5, max_tokens=30, min_tokens=10, allowed_token_ids=allowed, bad_words=["the", "and"]
)
completion = llm.generate(["Once upon a time"], params)[0].outputs[0]
print(completion.text)
assert set(completion.token_ids) <= set(allowed)
assert len(completion.token_ids) >= 10
free = SamplingParams(temperature=0.0, max_tokens=40)
(word, *_) = llm.generate(["Once upon a time"], free)[0].outputs[0].text.split()
banned = llm.generate(["Once upon a time"], SamplingParams(temperature=0.0, max_tokens=40, bad_words=[word]))[0]
print(banned.outputs[0].text)
assert word not in banned.outputs[0].text.split()
