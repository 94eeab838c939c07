"""Reads from the output of an installer which download failed, and how."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:https?|git|ftp)://[^\s'\"`<>)\]]+")
_FAILURE = re.compile(
    r"UnknownHostException|ConnectException|SocketTimeoutException|SSLHandshakeException|FileNotFoundException: http"
    r"|Could not (?:resolve|GET|HEAD|download|find a version)|[Ff]ailed to (?:fetch|download|resolve)"
    r"|[Nn]ame resolution|[Nn]ame or service not known|dns error|[Cc]onnection (?:refused|reset|timed out)"
    r"|[Nn]etwork is unreachable|HTTP (?:status|error|response|code)|No matching distribution"
    r"|was not found in the (?:package registry|provided package locations)|no versions? of"
)
_LONGEST = 300
_NEAR_LINES = 50
"""How far above a failure the address that it is about may stand."""


def failed_download(output: str) -> str | None:
    """The first download that failed, as `ADDRESS (what was said of it)`; None where none did."""
    nameless: str | None = None
    address, age = "", 0
    for line in output.splitlines():
        found = _ADDRESS.findall(line)
        address, age = (found[-1].rstrip(".,;:"), 0) if found else (address, age + 1)
        if not _FAILURE.search(line):
            continue
        why = " ".join(line.split())[:_LONGEST].rstrip(".:")
        if address and age <= _NEAR_LINES:
            return why if address in why else f"{address} ({why})"
        nameless = nameless or why  # a later line may name the address
    return nameless


def last_words(output: str) -> str:
    """The end of an output that names no download: its last line that says something."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip() and not line.startswith("hint")]
    return (lines[-1] if lines else "it printed nothing")[:_LONGEST].rstrip(".:")
