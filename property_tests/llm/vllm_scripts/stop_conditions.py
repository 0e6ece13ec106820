"""Ending by text, by token and by length."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], max_model_len=256)
prompt = "Once upon a time"
base = {"temperature": 0.0, "max_tokens": 60}
for more in ({"stop": ["."]}, {"stop": ".", "include_stop_str_in_output": True}, {"max_tokens": 3}):
    completion = llm.generate([prompt], SamplingParams(**(base | more)))[0].outputs[0]
    print(completion.finish_reason, completion.stop_reason, completion.text)
    if "stop" in more:
        assert completion.finish_reason == "stop"
        assert completion.stop_reason == "."
        assert completion.text.endswith(".") == more.get("include_stop_str_in_output", False)
    else:
        assert completion.finish_reason == "length"
third = completion.token_ids[2]
completion = llm.generate([prompt], SamplingParams(**base, stop_token_ids=[third]))[0].outputs[0]
assert completion.stop_reason == third
