"""Small tokenizers of the kinds that checkpoints have."""

from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from nanofn.text.tokenizer import Tokenizer

END = "</s>"


def byte_fallback() -> Tokenizer:
    """SentencePiece's kind, as Llama 2 and Mistral have it: `▁` joins words, unknown characters fall back to bytes."""
    tokens = ["<unk>", "<s>", END, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", "ab", "é"]
    backend = Backend(
        models.BPE(
            vocab={token: place for place, token in enumerate(tokens)},
            merges=[("▁", "a"), ("▁", "b"), ("a", "b")],
            byte_fallback=True,
            unk_token="<unk>",
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", END)])
    return Tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token=END)
    )


def byte_level() -> Tokenizer:
    """GPT-2's kind, as Qwen and Llama 3 have it: every byte is a token, with a few merges and an added plain token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "Ġa", "ab"]
    backend = Backend(
        models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[("Ġ", "a"), ("a", "b")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END))
