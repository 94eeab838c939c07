"""A dataset in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reverie.datasets.index import DatasetIndex


def summary(index: DatasetIndex) -> str:
    """One line: how much it is, and how good."""
    scores = [episode.score for episode in index.episodes]
    mean = sum(scores) / len(scores)
    return (
        f"{len(scores):,} episodes, {index.rows:,} rows, {size_words(index.size_bytes)}, mean return {mean:.1f} "
        f"(from {min(scores):.1f} to {max(scores):.1f})."
    )


def description(index: DatasetIndex) -> dict[str, str]:
    """What `reverie data info` shows, by heading."""
    from reverie.environments.suites import space_words

    scores = sorted(episode.score for episode in index.episodes)
    lengths = sorted(episode.rows for episode in index.episodes)
    ends = [episode.end for episode in index.episodes]
    return {
        "task": index.task or "not known",
        "origin": index.origin,
        "episodes": f"{len(ends):,} ({ends.count('terminal'):,} ended by themselves, {ends.count('limit'):,} cut off)",
        "rows": f"{index.rows:,}",
        "episode rows": f"{lengths[0]:,} to {lengths[-1]:,}, mean {index.rows / len(lengths):,.1f}",
        "episode return": f"{scores[0]:,.6g} to {scores[-1]:,.6g}, mean {sum(scores) / len(scores):,.6g}",
        **{f"observation {key}": space_words(space) for key, space in index.spaces.obs.items()},
        "action": space_words(index.spaces.action),
        "size": f"{size_words(index.size_bytes)} in {len(index.files):,} files",
        "digest": index.digest,
    }


def size_words(size: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
