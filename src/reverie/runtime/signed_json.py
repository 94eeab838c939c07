"""JSON objects that carry their own checksum: one changed bit, blank or key is noticed when they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reverie.runtime.durable_files import digest


def signed(content: Mapping[str, Any]) -> bytes:
    """The text of ``content`` with its checksum under ``digest``."""
    return _rendered({**content, "digest": content_digest(content)})


def content_digest(content: Mapping[str, Any]) -> str:
    """The checksum that ``signed`` writes."""
    return digest(_rendered(content))


def verified(data: bytes) -> dict[str, Any]:
    """The content without its checksum; ValueError says in two or three words what is wrong."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("not readable" if data else "empty") from error
    if not isinstance(content, dict):
        raise ValueError("not an object")
    content.pop("digest", None)
    # Comparing whole texts also finds a changed blank or a doubled key, which the parsed content would hide.
    if signed(content) != data:
        raise ValueError("checksum differs")
    return content


def _rendered(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, indent=1).encode()
