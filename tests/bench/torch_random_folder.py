"""Write a Hugging Face folder of random weights in Llama-3-8B's shape, for `akashic bench decode` where no model is to be had.

PYTHONPATH=daemon:kernels:tests python tests/bench/torch_random_folder.py /dev/shm/random-8b [--layers 32]

16 GB of bf16 with all layers. Its tokenizer knows bytes; the vocabulary beyond them is there to be computed only.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from torch_folder import write_tokenizer

WIDTH, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY = 4096, 32, 8, 128, 14336, 128256


def matrix(out: int, into: int, device: str) -> torch.Tensor:
    """Return a random matrix that keeps its input's size."""
    made: torch.Tensor = torch.randn(out, into, device=device).div_(into**0.5)
    return made.to(torch.bfloat16).cpu()


def layer(number: int, device: str) -> dict[str, torch.Tensor]:
    """Return a layer's tensors."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (q, WIDTH), "self_attn.k_proj": (kv, WIDTH), "self_attn.v_proj": (kv, WIDTH),
        "self_attn.o_proj": (WIDTH, q), "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }  # fmt: skip
    at = f"model.layers.{number}."
    out = {f"{at}{name}.weight": matrix(*shape, device) for name, shape in shapes.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    return out | {f"{at}{name}.weight": torch.ones(WIDTH, dtype=torch.bfloat16) for name in norms}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    wanted = parser.parse_args()
    folder: Path = wanted.folder
    folder.mkdir(parents=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "head_dim": HEAD_DIM,
        "num_hidden_layers": wanted.layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "intermediate_size": INNER, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "max_position_embeddings": 65536,
        "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 258,
        "bos_token_id": 256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    beside = {
        "model.embed_tokens.weight": matrix(VOCABULARY, WIDTH, device),
        "lm_head.weight": matrix(VOCABULARY, WIDTH, device),
        "model.norm.weight": torch.ones(WIDTH, dtype=torch.bfloat16),
    }
    where: dict[str, str] = {}
    for number in range(wanted.layers + 1):
        tensors = beside if number == wanted.layers else layer(number, device)
        name = f"model-{number + 1:05}-of-{wanted.layers + 1:05}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    write_tokenizer(folder)


if __name__ == "__main__":
    main()
