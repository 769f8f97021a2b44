"""Hugging Face's model types as they are, with dropout: gradients are those of one example at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from dpfest.gradients.capture import Recorder
from dpfest.noise.key import NoiseKey
from tests.dpfest.test_any_model import assert_clipped, one_at_a_time

EXAMPLES, LENGTH, ROWS = 4, 6, 40
BERT = {
    "vocab_size": ROWS, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 20,
}  # fmt: skip
GPT2 = {
    "vocab_size": ROWS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 20, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BART = {
    "vocab_size": ROWS, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "max_position_embeddings": 20,
}  # fmt: skip
DISTIL = {"vocab_size": ROWS, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 20}
T5 = {"vocab_size": ROWS, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
RELATIVE = {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8}
TYPES: dict[str, Callable[[], nn.Module]] = {
    "BERT": lambda: hf.BertForSequenceClassification(hf.BertConfig(**BERT)),
    "RoBERTa": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**BERT)),
    "XLM-R": lambda: hf.XLMRobertaForSequenceClassification(hf.XLMRobertaConfig(**BERT)),
    "DistilBERT": lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**DISTIL)),
    "ALBERT": lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(**BERT, embedding_size=4)),
    "ELECTRA": lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(**BERT, embedding_size=4)),
    "GPT-2": lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(**GPT2)),
    "DeBERTa": lambda: hf.DebertaForSequenceClassification(hf.DebertaConfig(**RELATIVE)),
    "GPT-2, tied": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "BERT, masked, tied": lambda: hf.BertForMaskedLM(hf.BertConfig(**BERT)),
    "T5, tied": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)),
    "BART, tied": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)),
}


def losses_of(model: Any, batch: Any) -> Tensor:
    tokens, labels = batch
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    logits = model(**inputs).logits
    if logits.dim() == 2:
        return F.cross_entropy(logits, labels, reduction="none")
    return F.cross_entropy(logits.transpose(1, 2), tokens.roll(1, 1), reduction="none").mean(1)


@pytest.mark.parametrize("name", TYPES)
def test_gradients_of_a_model_type_are_those_of_one_example_at_a_time(name: str) -> None:
    torch.manual_seed(0)
    model = TYPES[name]().double().train()
    batch = torch.randint(5, ROWS, (EXAMPLES, LENGTH)), torch.randint(2, (EXAMPLES,))
    recorder = Recorder(model, losses_of, NoiseKey.from_seed(0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The loss uses the table")
        recording = recorder.record(batch, np.arange(EXAMPLES), 0)
    recording.backward()
    tied = name.endswith("tied")
    assert bool(recorder.sites.open) == (tied or name == "DeBERTa")
    assert_clipped(recorder, recording, one_at_a_time(recorder, losses_of, batch))
