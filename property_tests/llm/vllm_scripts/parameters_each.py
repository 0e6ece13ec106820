"""A list of parameters, one for each prompt."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], max_model_len=256, enable_prefix_caching=True)
prompts = ["Once upon a time"] * 3
params = [
    SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
    SamplingParams(temperature=0.9, top_k=10, seed=3, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.9, min_p=0.1, seed=4, max_tokens=14, ignore_eos=True),
]
outputs = llm.generate(prompts, params)
for output in outputs:
    print(len(output.outputs[0].token_ids), output.outputs[0].text)
assert [len(output.outputs[0].token_ids) for output in outputs] == [4, 9, 14]
