"""Logs: one line a record, as text for people or as JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

from agent.model.reason import printable


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.000Z INFO message``, always one line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_timestamp(record)} {record.levelname} {printable(_message(self, record), 4096)}"


class JsonFormatter(logging.Formatter):
    """An object with time (RFC 3339, UTC), level, logger, message and what `extra={"fields": {…}}` adds."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(self, record),
        }
        document |= getattr(record, "fields", {})
        return json.dumps(document, ensure_ascii=True, default=str)


def setup(style: str, level: str, stream: TextIO | None = None) -> None:
    """Sends the log of `agent` to stderr (or `stream`) as ``text`` or ``json``, from a level such as ``info`` on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logger = logging.getLogger("agent")
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text = f"{text}: {formatter.formatException(record.exc_info)}"
    return text


def _timestamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
