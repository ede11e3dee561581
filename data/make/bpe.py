"""The tokenizer of the bundled models: byte-level BPE of 1,024 tokens.

One special token, `<|bos|>` (id 0), is beginning, end and padding at once, as in GPT-2; it
is put before every text by the tokenizer's own post-processor. There is no unknown token:
all 256 bytes are in the vocabulary, so every string has ids and comes back exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

BOS = "<|bos|>"
VOCAB = 1024


def train_tokenizer(texts: Iterable[str], context: int, vocab: int = VOCAB) -> PreTrainedTokenizerFast:
    """Learn the merges from the texts; the same texts give the same tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=[(BOS, bpe.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        eos_token=BOS,
        pad_token=BOS,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> Tensor:
    """Ids of a text of any length, without BOS."""
    return torch.tensor(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
