"""Change one value of config.toml and nothing else in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from akashic_cli.render.files import write_atomically
from akashic_daemon.config import load
from akashic_daemon.errors import ConfigError
from akashic_daemon.paths import ensure_private_dir


def change_setting(file: Path, name: str, text: str) -> Any:
    """Set `section.key` to what `text` means for its type and return that value.

    The file is written only if the whole of it is valid afterwards. Raises ConfigError.
    """
    # The environment is kept out: it must neither hide an invalid value nor get into the file.
    config = load(file, env={}, flags={name: text}).config
    section, key = name.split(".", 1)
    value = getattr(config, section).model_dump()[key]  # sizes as people write them
    try:
        document = tomlkit.parse(file.read_text(encoding="utf-8") if file.exists() else "")
        document.setdefault(section, tomlkit.table())[key] = value
    except (OSError, TOMLKitError) as error:
        raise ConfigError(f"changing {name} in {file}: {error}", hint="edit the file by hand") from error
    if not file.parent.exists():
        ensure_private_dir(file.parent)
    write_atomically(file, tomlkit.dumps(document))
    return value


def toml_value(value: Any) -> str:
    """Return a scalar as TOML writes it; JSON's form is TOML's for text, numbers and booleans."""
    return json.dumps(value, ensure_ascii=False)
