"""Log-probabilities of output and prompt."""

import math
import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], max_model_len=256)
params = SamplingParams(temperature=0.7, max_tokens=5, logprobs=3, prompt_logprobs=1, seed=0)
(output,) = llm.generate(["The little dog"], params)
completion = output.outputs[0]
for token_id, candidates in zip(completion.token_ids, completion.logprobs, strict=True):
    for candidate, logprob in candidates.items():
        print(candidate == token_id, logprob.rank, repr(logprob.decoded_token), round(math.exp(logprob.logprob), 4))
assert output.prompt_logprobs[0] is None
assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
total = sum(
    candidates[token_id].logprob for token_id, candidates in zip(completion.token_ids, completion.logprobs, strict=True)
)
assert math.isclose(total, completion.cumulative_logprob, abs_tol=1e-5)
