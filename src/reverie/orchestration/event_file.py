"""TensorBoard's event files, one record per metric line, so that a run can be cut back to any line of it."""

from __future__ import annotations

import importlib
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from reverie.orchestration.pictures import Picture

_RGB = 3
_PREFIX = "events.out.tfevents."
_HEADER = struct.Struct("<QI")  # length of the data and a checksum of that length; four bytes follow the data


class EventFile:
    """A new event file in ``folder``. Its name begins with the number of its first line, so names sort like lines."""

    def __init__(self, folder: Path, *, line: int, step: int) -> None:
        event, session_log = _message("event_pb2", "Event"), _message("event_pb2", "SessionLog")
        folder.mkdir(parents=True, exist_ok=True)
        # The time keeps names apart: a TensorBoard that is open right now must not take this file for a deleted one.
        self._file = (folder / f"{_PREFIX}{line:010d}.{time.time_ns()}").open("xb")
        self._append(event(wall_time=time.time(), file_version="brain.Event:2"))
        # The same TensorBoard remembers what was cut off; this tells it to forget everything from ``step`` on.
        start = session_log(status=session_log.START)
        self._append(event(wall_time=time.time(), step=step, session_log=start))

    def append(self, values: Mapping[str, float], *, step: int, pictures: Mapping[str, Picture]) -> None:
        """Write one line and hand it to the operating system. Its pictures are in the same record, and cut with it."""
        event, summary = _message("event_pb2", "Event"), _message("summary_pb2", "Summary")
        entries = [summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        entries += [summary.Value(tag=name, image=_image(picture)) for name, picture in pictures.items()]
        self._append(event(wall_time=time.time(), step=step, summary=summary(value=entries)))
        # An unflushed line would be lost in a kill although the checkpoint counts it as written.
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _append(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        RecordWriter(self._file).write(event.SerializeToString())


def cut_event_files(folder: Path, *, line: int) -> list[tuple[int, list[str]]]:
    """Take the lines from number ``line`` on out of the files; step and names of those that stay, in order.

    A line that a kill left half written goes too. Lines that no file holds (TensorBoard was off) are no problem.
    """
    kept: list[tuple[int, list[str]]] = []
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        first = int(path.name.removeprefix(_PREFIX).partition(".")[0])
        if first >= line:
            path.unlink()
            continue
        with path.open("rb") as file:
            end, lines = _beginning(_records(file), count=line - first)
        os.truncate(path, end)
        kept += lines
    return kept


def _beginning(records: Iterable[tuple[int, Any]], *, count: int) -> tuple[int, list[tuple[int, list[str]]]]:
    """Where the first ``count`` lines end, and these lines."""
    end = 0
    lines: list[tuple[int, list[str]]] = []
    for record_end, event in records:
        if event.HasField("summary"):
            if len(lines) == count:
                break
            lines.append((event.step, [value.tag for value in event.summary.value]))
        end = record_end
    return end, lines


def _records(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    """The whole records with the offsets where they end, up to the first damaged or unfinished one."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    parsed = _message("event_pb2", "Event").FromString
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        length, checksum = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            return
        data = file.read(length + 4)
        if len(data) < length + 4:
            return
        yield file.tell(), parsed(data[:-4])


def _image(picture: Picture) -> Any:
    """TensorBoard hands the file to the browser as it is, which plays a GIF."""
    image = _message("summary_pb2", "Summary").Image
    return image(width=picture.width, height=picture.height, colorspace=_RGB, encoded_image_string=picture.data)


def _message(module: str, name: str) -> Any:
    """A message class of TensorBoard, found when needed: these modules make their classes while they are imported."""
    return getattr(importlib.import_module(f"tensorboard.compat.proto.{module}"), name)
