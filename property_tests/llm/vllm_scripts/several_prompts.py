"""Several prompts, one set of parameters."""

import sys

from vllm import LLM, SamplingParams


def main():
    """Generate and print."""
    prompts = ["Once upon a time", "The little dog", "One day a girl"]
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16)
    llm = LLM(model=sys.argv[1], seed=0, max_model_len=256)
    outputs = llm.generate(prompts, params)
    for output in outputs:
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished for output in outputs)


if __name__ == "__main__":
    main()
