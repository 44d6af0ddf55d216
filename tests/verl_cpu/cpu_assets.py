# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Make a tiny Qwen2 (115 k parameters), its tokenizer and a toy data set. Nothing is downloaded.

Usage: python -m tests.verl_cpu.cpu_assets FOLDER
"""

import json
import random
import sys
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(folder):
    """Train a byte-level tokenizer on the toy sentences; verl needs a newline to be exactly one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    corpus = [f"what is {i} + {j} ?\nuser\nassistant\nsystem\nanswer {i + j}\n" for i in range(10) for j in range(10)]
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(corpus, trainer)
    pieces = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in pieces["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=pieces["vocab"], merges=merges, pad_token="<|pad|>", eos_token="<|im_end|>", unk_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"], padding_side="left",
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_model(folder, tokenizer):
    """Write a randomly initialised model, always the same."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = Qwen2Config(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder, safe_serialization=True)
    generation = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def make_data(folder):
    """Write 64 different additions to train on and 8 of them to validate with."""
    import pandas as pd

    pairs = random.Random(0).sample([(a, b) for a in range(10) for b in range(10)], 64)
    rows = [
        {
            "data_source": "toy/add",
            "prompt": [{"role": "user", "content": f"what is {a} + {b} ?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": index, "split": "train"},
        }
        for index, (a, b) in enumerate(pairs)
    ]
    pd.DataFrame(rows).to_parquet(folder / "train.parquet")
    pd.DataFrame(rows[:8]).to_parquet(folder / "val.parquet")


def make_assets(folder):
    """Make everything, unless it is there already."""
    folder = Path(folder)
    done = folder / "done"
    if done.exists():
        return folder
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    make_model(model, make_tokenizer(model))
    make_data(folder)
    done.touch()
    return folder


if __name__ == "__main__":
    make_assets(sys.argv[1])
