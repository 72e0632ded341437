"""Compiled code on disk: one file a function, found by a hash of everything its content depends on.

The folder is `DSV41_CACHE` if set, else `XDG_CACHE_HOME/dsv41_numba`, else `~/.cache/dsv41_numba`; when it cannot be
written, a folder that lives as long as the process. A file starts with a hash of the rest, so a damaged one is
compiled again, and it is renamed into place when complete, so several processes may share the folder.
"""

import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.registry import cpu_target

MAGIC = b"dsv41-emulator-1\n"


@functools.cache
def stamp() -> str:
    """Everything besides the kernel that decides what compiled code looks like: versions, processor, our sources."""
    own = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        own.update(source.read_bytes())
    processor = cpu_target.target_context.codegen().magic_tuple()
    return repr((numba.__version__, llvmlite.__version__, np.__version__, processor, own.hexdigest()))


def key_of(*parts: str) -> str:
    """The name under which a function is kept."""
    return hashlib.sha256("\0".join((stamp(), *parts)).encode()).hexdigest()[:32]


@functools.cache
def _folder(wanted: str) -> Path:
    try:
        Path(wanted).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return Path(wanted)
    except OSError:
        return Path(_temporary().name)


@functools.cache
def _temporary() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="dsv41_numba_")


def folder() -> Path:
    """Where compiled code is kept; made if it is not there."""
    wanted = os.environ.get("DSV41_CACHE")
    if not wanted:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        wanted = str(Path(base) / "dsv41_numba")
    return _folder(wanted)


def load(name: str, key: str) -> tuple[dict[str, Any], bytes] | None:
    """The facts and the object code stored under a key, or None when there are none or the file is damaged."""
    try:
        data = (folder() / f"{name}-{key}.o").read_bytes()
    except OSError:
        return None
    head = len(MAGIC) + 32
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(key.encode() + data[head:]).digest() != data[len(MAGIC) : head]:
        return None
    size = int.from_bytes(data[head : head + 4], "little")
    return json.loads(data[head + 4 : head + 4 + size]), data[head + 4 + size :]


def store(name: str, key: str, facts: dict[str, Any], code: bytes) -> None:
    """Keep object code; a full disk or a folder that went away only costs the next process a compilation."""
    text = json.dumps(facts).encode()
    body = len(text).to_bytes(4, "little") + text + code
    try:
        with tempfile.NamedTemporaryFile(dir=folder(), prefix=".", delete=False) as scratch:
            scratch.write(MAGIC + hashlib.sha256(key.encode() + body).digest() + body)
        os.replace(scratch.name, folder() / f"{name}-{key}.o")
    except OSError:
        return
