"""The model's own parameters, a shared prefix, and its statistics."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], max_model_len=512, block_size=16, max_num_batched_tokens=2048)
own = llm.get_default_sampling_params()
print(own.temperature, own.top_p, own.top_k)
shared = "Once upon a time there was a little girl who lived in a house by the sea. Every day she went out to play. "
params = SamplingParams(temperature=0.0, max_tokens=8)
first = llm.generate(shared + "One day", params)
second = llm.generate([shared + "Her dog", shared + "Her cat"], params)
for output in first + second:
    print(output.num_cached_tokens, output.outputs[0].text)
assert all(output.num_cached_tokens >= 16 for output in second)
assert llm.reset_prefix_cache()
assert llm.generate(shared, params)[0].num_cached_tokens == 0
