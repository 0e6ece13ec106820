"""Against repetition, and with a bias."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], max_model_len=256)
plain = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
strict = SamplingParams(
    temperature=0.0, max_tokens=80, ignore_eos=True, repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=1.0
)
distinct = []
for params in (plain, strict):
    completion = llm.generate(["The sea, the sea, the sea"], params)[0].outputs[0]
    distinct.append(len(set(completion.token_ids)))
    print(distinct[-1], completion.text)
assert distinct[1] > distinct[0]
biased = llm.generate(["The cat"], SamplingParams(temperature=0.0, max_tokens=3, logit_bias={77: 100.0}))[0]
assert list(biased.outputs[0].token_ids) == [77, 77, 77]
