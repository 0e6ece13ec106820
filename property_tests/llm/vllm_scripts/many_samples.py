"""Several samples of one prompt, repeatable by a seed."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], gpu_memory_utilization=0.5, max_num_seqs=16, max_model_len=128)
params = SamplingParams(n=4, temperature=1.0, seed=1234, max_tokens=12)
first, second = (llm.generate("The cat", params)[0] for _ in range(2))
for completion in first.outputs:
    print(completion.index, completion.finish_reason, completion.text)
assert [each.text for each in first.outputs] == [each.text for each in second.outputs]
assert [each.index for each in first.outputs] == [0, 1, 2, 3]
