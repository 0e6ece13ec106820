"""A conversation, and several at once."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], max_model_len=512)
params = SamplingParams(temperature=0.5, seed=1, max_tokens=24)
conversation = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me a story about a dog."},
]
(single,) = llm.chat(conversation, params, use_tqdm=False)
several = llm.chat([conversation, [{"role": "user", "content": "Hello!"}]], sampling_params=params)
for output in (single, *several):
    print(repr(output.outputs[0].text))
assert single.outputs[0].text == several[0].outputs[0].text
assert len(several) == 2
