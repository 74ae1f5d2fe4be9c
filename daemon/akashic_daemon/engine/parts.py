"""What fingerprints are made of, so that two can be told apart in words.

The chat template is no part of a fingerprint, for KV doesn't depend on it; but it decides which tokens a history becomes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from akashic_daemon.engine.base import ModelInfo

_LABELS = {
    "weights": "model file",
    "tokenizer": "tokenizer",
    "chat_template": "chat template",
    "rope": "rope parameters",
    "engine": "engine",
    "build": "engine version",
    "layout_version": "layout version of KV",
    "kv_type": "KV type",
    "computed_in": "type that is computed in",
    "fused_attention": "fused attention",
    "sparse_blocks": "pages that attention reads",
    "rope_factors": "LongRoPE factors",
    "offloaded": "layers on a GPU",
}
_OF_THE_FILE = frozenset({"weights", "tokenizer", "chat_template", "rope"})
_DIGEST = re.compile(r"(\w+:)?[0-9a-f]{32}")


def parts(weights: str, settings: Mapping[str, str | int | float | bool | None]) -> dict[str, str]:
    """Return as text what `fingerprint.fingerprint` takes."""
    said = {True: "on", False: "off"}
    return {"weights": weights, **{k: said[v] if isinstance(v, bool) else str(v) for k, v in settings.items()}}


def template_digest(info: ModelInfo) -> str:
    """Return the tagged digest of a model's chat template."""
    return "template1:" + hashlib.blake2b((info.chat_template or "").encode(), digest_size=16).hexdigest()


def parts_of(info: ModelInfo) -> dict[str, str]:
    """Return the parts of a loaded model, and its name, chat template and rope parameters among them."""
    rope = sorted(f"{key.split('.rope.')[1]}={value}" for key, value in info.metadata.items() if ".rope." in key)
    return {
        "model": info.name,
        "chat_template": template_digest(info),
        **({"rope": " ".join(rope)} if rope else {}),
        **info.parts,
    }


def difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Say which parts differ; of another model's file no more than that it is another one's."""
    renamed = old.get("model") != new.get("model")
    said = [f"model {old.get('model')} -> {new.get('model')}"] if renamed else []
    for name, label in _LABELS.items():
        a, b = old.get(name), new.get(name)
        if a == b or (renamed and name in _OF_THE_FILE):
            continue
        if a is None or b is None or _DIGEST.fullmatch(a) or _DIGEST.fullmatch(b):
            said.append(f"{label} changed")
        else:
            said.append(f"{label} {a} -> {b}")
    return ", ".join(said) or "something changed that was not recorded"
