"""assemble: from options to a loaded engine's parts, and the one line that says what was chosen."""

import logging
import sys
from pathlib import Path

import torch
from attrs import frozen

from nanofn.config import Limits
from nanofn.device.checkpoint import Checkpoint, load_checkpoint
from nanofn.device.executor import EagerExecutor, Executor
from nanofn.device.memory import CPU_SHARE, free_bytes, pool_size
from nanofn.embedded import MODEL_FOLDER
from nanofn.errors import ConfigError
from nanofn.llm.options import EngineOptions
from nanofn.model.kv_cache import block_bytes
from nanofn.request import TokenId
from nanofn.sampling.params import SamplingParams
from nanofn.text.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger("nanofn")


@frozen(eq=False)
class Parts:
    """What `LLM` is made of."""

    limits: Limits
    executor: Executor
    tokenizer: Tokenizer
    vocab_size: int
    eos_token_ids: tuple[TokenId, ...]
    default_params: SamplingParams
