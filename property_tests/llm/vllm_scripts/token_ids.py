"""Prompts as token ids, bare and in dicts, decoded greedily."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=128)
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
ids = [30, 31, 32, 33]
outputs = llm.generate(
    [{"prompt_token_ids": ids}, {"prompt": "Once upon a time"}], sampling_params=params, use_tqdm=False
)
for output in outputs:
    print(output.request_id, list(output.prompt_token_ids), list(output.outputs[0].token_ids))
assert list(outputs[0].prompt_token_ids) == ids
assert len(outputs[0].outputs[0].token_ids) == 8
