"""Two published models from their GGUF files: transformers' greedy tokens and perplexity in fp32.

`nox -s prove -- property_tests/llm/test_published_models.py` fetches them (570 MB) and takes minutes.
"""

import math

import pytest
import torch

from nanofn import LLM, SamplingParams
from nanofn.device.gguf_header import read_gguf_header
from nanofn.device.gguf_names import config_json_of
from text.real_material import material

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TIE = 1e-4
"""A difference is excused only where transformers' own two best logits are closer than this."""

NUM_TOKENS = 40
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three fruits.",
    "Write a Python function that adds two numbers.",
    "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.",
    "What is 12 times 11?",
    "Name a primary colour.",
    "Why is the sky blue?",
    "Write a haiku about snow.",
    "What does HTTP stand for?",
    "How many legs has a spider?",
    "Give me a synonym of 'happy'.",
    "Explain recursion in one sentence.",
    "What is the boiling point of water in °C?",
    "Continue: 1, 1, 2, 3, 5,",
    "Is a tomato a fruit? Answer with yes or no.",
    "Schreibe einen Satz auf Deutsch.",
    "What is the largest planet of the solar system?",
    "Say 'hello' in Japanese. 🙂",
)
PARAGRAPH = (
    "A glacier is a body of dense ice that moves slowly under its own weight. It forms where more snow falls in a year "
    "than melts, so that layer after layer is pressed into ice. Glaciers cover about a tenth of the land, most of it in "
    "Antarctica and Greenland, and they hold more fresh water than all rivers and lakes together. Where they end in the "
    "sea, large pieces break off and drift away as icebergs."
)


@pytest.fixture(scope="module", params=["smollm2", "qwen2.5-coder"])
def path(request):
    """The GGUF file."""
    return material(request.param, may_fetch=True)


@pytest.fixture(scope="module")
def theirs(path):
    """The same file in transformers, dequantised to fp32."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return loaded.eval()


@pytest.fixture(scope="module")
def llm(path):
    """Our engine on the same file."""
    with LLM(path, dtype="float32", max_model_len=512, max_num_seqs=8) as made:
        yield made


def test_weights_are_transformers_to_the_bit(theirs, llm):
    """Dequantised alike, every one of them."""
    ours = llm._executor._params
    stored = theirs.state_dict()
    assert torch.equal(ours.embedding, stored["model.embed_tokens.weight"])
    assert torch.equal(ours.head, stored["lm_head.weight"])
    assert torch.equal(ours.final_norm, stored["model.norm.weight"])
    for index, layer in enumerate(ours.layers):
        prefix = f"model.layers.{index}."
        joined = {
            "qkv_weight": [f"self_attn.{x}_proj.weight" for x in "qkv"],
            "output_weight": ["self_attn.o_proj.weight"],
            "gate_up_weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
            "down_weight": ["mlp.down_proj.weight"],
            "input_norm": ["input_layernorm.weight"],
            "mlp_norm": ["post_attention_layernorm.weight"],
        }
        if layer.qkv_bias is not None:
            joined["qkv_bias"] = [f"self_attn.{x}_proj.bias" for x in "qkv"]
        for field, names in joined.items():
            assert torch.equal(getattr(layer, field), torch.cat([stored[prefix + name] for name in names])), (
                index,
                field,
            )


def test_the_config_is_what_transformers_reads(path, theirs):
    """Sizes, base, eps and ends of text."""
    ours = config_json_of(read_gguf_header(path), path)
    config = theirs.config
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        assert ours[name] == getattr(config, name), name
    assert ours["num_key_value_heads"] == config.num_key_value_heads
    assert ours["rms_norm_eps"] == config.rms_norm_eps
    assert ours["rope_theta"] == config.rope_parameters["rope_theta"]
    assert ours["max_position_embeddings"] == config.max_position_embeddings


def test_prompts_are_those_of_transformers(path, llm):
    """The chat template of the file, rendered and encoded."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for question in QUESTIONS:
        turn = [{"role": "user", "content": question}]
        expected = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        assert llm.tokenizer.render_chat(turn) == expected


@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(theirs, llm, capsys):
    """Twenty conversations in one batch, up to forty tokens each: a difference only where transformers has a tie."""
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    outputs = llm.chat(conversations, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS))
    num_ties = num_tokens = 0
    for question, output in zip(QUESTIONS, outputs, strict=True):
        prompt, tokens = list(output.prompt_token_ids), list(output.outputs[0].token_ids)
        # One pass over prompt and output gives transformers' choice after each of our tokens.
        best = theirs(torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1].topk(2)
        differing = (best.indices[:, 0] != torch.tensor(tokens)).nonzero().flatten().tolist()
        if differing:
            margin = (best.values[differing[0], 0] - best.values[differing[0], 1]).item()
            assert margin < TIE, f"{question!r} differs at output {differing[0]}"
            num_ties += 1
        num_tokens += len(tokens)
        ended = output.outputs[0].finish_reason == "stop"
        assert ended == (tokens[-1] == llm.tokenizer.eos_token_id)
        assert ended or len(tokens) == NUM_TOKENS
    with capsys.disabled():
        print(f" ({num_tokens} tokens, {num_ties} ties)", end="")
    assert num_ties <= 1


@torch.inference_mode()
def test_perplexity_is_that_of_transformers(theirs, llm, capsys):
    """Of a paragraph, to four digits; its words in another order are far less likely."""
    found = {}
    shuffled = " ".join(sorted(PARAGRAPH.split()))
    for text in (PARAGRAPH, shuffled):
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        output = llm.generate(text, params)[0]
        ids = output.prompt_token_ids
        pairs = list(zip(output.prompt_logprobs, ids, strict=True))[1:]
        found[text] = math.exp(-sum(each[token].logprob for each, token in pairs) / len(pairs))
    ids = torch.tensor([list(llm.tokenizer.encode(PARAGRAPH))])
    expected = theirs(ids, labels=ids, use_cache=False).loss.exp().item()
    with capsys.disabled():
        print(f" ({ids.shape[1]} tokens, {found[PARAGRAPH]:.5g}, transformers {expected:.5g})", end="")
    assert f"{found[PARAGRAPH]:.4g}" == f"{expected:.4g}"
    assert found[shuffled] > 5 * found[PARAGRAPH]
