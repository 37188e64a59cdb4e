"""Sealing: AES-256-GCM under a sub-key per scope and epoch, with everything a reader expects as associated data.

A nonce is a counter under a key that no other process and no other epoch has, so it never repeats. Entries are named by
a keyed hash: the file does not say what it is about.
"""

from __future__ import annotations

import os
from hashlib import blake2b

import msgspec
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FORMAT = 1
PLAIN, ZSTD = 0, 1
_LARGEST = 1 << 30
_SMALL = 256


class Broken(Exception):
    """The sealed bytes are not what the reader expects: damaged, or of another place or time."""


class Seal:
    """Of one scope and epoch. `master` is 32 random bytes that never leave the process."""

    def __init__(self, master: bytes, scope: str, epoch: int) -> None:
        self._about = (FORMAT, scope, epoch)
        keys = HKDF(SHA256(), 64, salt=None, info=msgspec.msgpack.encode(self._about)).derive(master)
        self._cipher, self._naming = AESGCM(keys[:32]), keys[32:]
        self._count = 0

    def name(self, entry: bytes, kind: str) -> bytes:
        return blake2b(entry + b"/" + kind.encode(), key=self._naming, digest_size=16).digest()

    def close(self, data: bytes, entry: bytes, kind: str, first: int, last: int, generation: int) -> bytes:
        encoding, packed = PLAIN, data
        if len(data) > _SMALL:
            encoding, packed = ZSTD, zstandard.ZstdCompressor(level=1).compress(data)
        self._count += 1
        nonce = self._count.to_bytes(12, "big")
        about = self._bound(entry, kind, first, last, generation, encoding)
        return bytes([encoding]) + nonce + self._cipher.encrypt(nonce, packed, about)

    def open(self, sealed: bytes, entry: bytes, kind: str, first: int, last: int, generation: int) -> bytes:
        """Raises `Broken`."""
        if len(sealed) < 29:
            raise Broken("too short")
        encoding = sealed[0]
        try:
            packed = self._cipher.decrypt(
                sealed[1:13], sealed[13:], self._bound(entry, kind, first, last, generation, encoding)
            )
            return packed if encoding == PLAIN else zstandard.ZstdDecompressor().decompress(packed, max_output_size=_LARGEST)
        except (InvalidTag, zstandard.ZstdError) as exc:
            raise Broken(str(exc) or "the seal does not fit") from None

    def _bound(self, entry: bytes, kind: str, first: int, last: int, generation: int, encoding: int) -> bytes:
        return msgspec.msgpack.encode((*self._about, entry, kind, first, last, generation, encoding))


def new_master() -> bytes:
    return os.urandom(32)
