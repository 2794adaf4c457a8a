"""Large values: kept outside of etcd under their digest, so that a record of a few bytes stands for megabytes.

A blob store is anything that keeps bytes by their SHA-256. Since the digest is in a signed record, the store need not be
trusted: what comes out is checked against the name it was asked for, and what is wrong is `CorruptState`, never a value.

A blob is put before the record that names it. If the process dies in between, or the record is refused, the blob stays without
anybody naming it, which costs space and nothing else.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from leasekeeper.errors import AuthError, ConfigError, LeasekeeperError, Unavailable, shown
from leasekeeper.protocol.limits import VALUE_MAX, check_value
from leasekeeper.run_errors import BlobMissing, CorruptState
from leasekeeper.runs.durable import flush, flush_directory, write_all
from leasekeeper.runs.within import Within

__all__ = ["BlobStore", "DirectoryBlobs", "S3Blobs", "S3Client", "digest_of"]

TIMEOUT_S = 30.0
# What a killed writer left is removed when it is older than any writing can be.
LEFT_OVER_S = 3600.0
UNFINISHED = ".new"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_CLOSED_ON_EXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Waiting does not help against these.
_FOR_GOOD = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)


class BlobStore(Protocol):
    """Keeps bytes by their digest, for any number of threads and processes; each call has a bound in time of its own."""

    def put(self, digest: str, data: bytes, /) -> None:
        """Keep ``data``, whose SHA-256 in hex is ``digest``. Durable when it returns; the same again changes nothing.

        Raises:
            RecordTooLarge: more than 8 MiB.
            ConfigError: ``digest`` is not that of ``data``, or the store is not set up to be written.
            AuthError: the store refuses this user.
            Unavailable: not for now. Whether the bytes are kept is not known; put them again.
        """
        ...

    def get(self, digest: str, /) -> bytes:
        """The bytes whose digest this is: checked, or not returned.

        Raises:
            BlobMissing: there are none.
            CorruptState: what is kept there are other bytes.
            ConfigError, AuthError, Unavailable: as for `put`.
        """
        ...


def digest_of(data: bytes) -> str:
    """The name of some bytes in every store: their SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def check_digest(digest: str) -> None:
    """ConfigError when it is no SHA-256 in lower-case hex: nothing else may become part of a path or a key."""
    if _DIGEST.match(digest) is None:
        raise ConfigError(field="digest", value=digest, expected="64 hex digits in lower case")


def check_blob(digest: str, data: bytes) -> None:
    """RecordTooLarge or ConfigError when these bytes cannot be kept under this digest."""
    check_digest(digest)
    check_value(f"blob {digest[:12]}", len(data))
    if digest_of(data) != digest:
        raise ConfigError(field="digest", value=digest, expected=f"{digest_of(data)}, the SHA-256 of the bytes")


class DirectoryBlobs:
    """Blobs as files of one directory: ``ab/cdef…`` for the digest ``abcdef…``.

    Guarantees that under a digest's name there is never anything but all of its bytes, however a writer ended: they are written
    under another name, flushed, renamed, and the directory is flushed. Any number of processes and machines may share the
    directory, as far as its file system renames in one step. Files are readable by their owner alone.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout_s: float = TIMEOUT_S) -> None:
        """Use the directory ``path``, which must exist: one that is made when missing hides a disk that is not mounted.

        ``timeout_s`` bounds each `put` and `get`.

        Raises:
            ConfigError: ``path`` is not a directory.
            Unavailable: the file system does not answer.
        """
        self._path = Path(path).absolute()
        self._within = Within(timeout_s, f"blob directory {self._path}")
        self._swept: set[str] = set()
        self._within("open", self._check)

    def put(self, digest: str, data: bytes, /) -> None:
        """See `BlobStore.put`. A file that was damaged is replaced by a good one."""
        check_blob(digest, data)
        self._within("put", lambda: self._put(digest, data))

    def get(self, digest: str, /) -> bytes:
        """See `BlobStore.get`."""
        check_digest(digest)
        data = self._within("get", lambda: self._get(digest))
        if data is None:
            raise BlobMissing(digest=digest)
        if digest_of(data) != digest:
            raise CorruptState(where=f"blob {self._file(digest)}", why="its bytes are not those of its name")
        return data

    def _file(self, digest: str) -> Path:
        return self._path / digest[:2] / digest[2:]

    def _check(self) -> None:
        if not os.path.isdir(self._path):
            raise ConfigError(field="path", value=str(self._path), expected="a directory that exists")

    @contextmanager
    def _telling(self, operation: str) -> Iterator[None]:
        """Make public errors of the system's."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                self._check()
            if error.errno in _FOR_GOOD:
                expected = f"a directory in which this process may {operation} ({error.strerror})"
                raise ConfigError(field="path", value=str(self._path), expected=expected) from error
            told = f"blob directory {self._path}: {operation}: {error.strerror or error}"
            raise Unavailable(told, operation=operation, detail=str(error)) from error

    def _put(self, digest: str, data: bytes) -> None:
        with self._telling("put"):
            file = self._file(digest)
            self._make_room(file.parent)
            if self._read(file) != data:
                self._write(file, data)
            # Also where it was there: whoever put it may have been killed before the name was flushed.
            flush_directory(file.parent)

    def _make_room(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            pass
        # Always, for the same reason as below.
        flush_directory(self._path)
        if directory.name not in self._swept:
            _sweep(directory)
            self._swept.add(directory.name)

    def _write(self, file: Path, data: bytes) -> None:
        fresh = file.with_name(f"{file.name}.{secrets.token_hex(8)}{UNFINISHED}")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED_ON_EXEC, 0o600)
        try:
            try:
                write_all(fd, data)
                flush(fd)
            finally:
                os.close(fd)
            fresh.replace(file)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def _get(self, digest: str) -> bytes | None:
        with self._telling("get"):
            data = self._read(self._file(digest))
            if data is None:
                self._check()  # nothing is in a directory that is gone, and that says nothing about the blob
            return data

    def _read(self, file: Path) -> bytes | None:
        """What stands under a name, and no more than one byte beyond the bound; None when nothing does."""
        try:
            # Not blocking: what stands there may be a pipe.
            fd = os.open(file, os.O_RDONLY | _CLOSED_ON_EXEC | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return None
        with open(fd, "rb") as opened:
            return opened.read(VALUE_MAX + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def _sweep(directory: Path) -> None:
    """Remove what killed writers left. Never what somebody writes: that is younger, and is written again if it is lost."""
    for left in directory.glob(f"*{UNFINISHED}"):
        try:
            if time.time() - left.stat().st_mtime > LEFT_OVER_S:
                left.unlink()
        except OSError:
            continue  # somebody else has removed it, or may


class S3Client(Protocol):
    """What is asked of a client of S3: two methods of those that boto3's has."""

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> Any:  # noqa: N803 - boto3 names them
        """Keep an object."""
        ...

    def get_object(self, *, Bucket: str, Key: str) -> Any:  # noqa: N803
        """An object: a mapping whose ``Body`` can be read."""
        ...


class S3Blobs:
    """Blobs as objects of one S3 bucket: ``PREFIXab/cdef…`` for the digest ``abcdef…``.

    ``client`` is a boto3 client, or anything with its `put_object` and `get_object` that may be used from several threads; its
    retries and time limits are set there, and ``timeout_s`` bounds each call on top. Guarantees what the service does: that an
    object is seen whole or not at all, and is kept once ``put_object`` returns. The user needs the rights to put, to get and to
    list; without the last one S3 does not tell a missing object from a forbidden one.
    """

    def __init__(self, client: S3Client, bucket: str, prefix: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        """No I/O. ConfigError when ``client`` is none or ``bucket`` is empty."""
        for method in ("put_object", "get_object"):
            if not callable(getattr(client, method, None)):
                raise ConfigError(field="client", value=client, expected=f"an object with the method {method}")
        if not bucket:
            raise ConfigError(field="bucket", value=bucket, expected="the name of a bucket")
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._within = Within(timeout_s, f"bucket {bucket}")

    def put(self, digest: str, data: bytes, /) -> None:
        """See `BlobStore.put`."""
        check_blob(digest, data)
        key = self._key(digest)

        def send() -> None:
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=data)
            except Exception as error:  # of a kind that only the client knows
                raise self._told("put", error) from error

        self._within("put", send)

    def get(self, digest: str, /) -> bytes:
        """See `BlobStore.get`."""
        check_digest(digest)
        key = self._key(digest)

        def fetch() -> bytes:
            try:
                body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
                try:
                    return bytes(body.read(VALUE_MAX + 1))
                finally:
                    close = getattr(body, "close", None)
                    if close is not None:
                        close()
            except Exception as error:  # of a kind that only the client knows
                raise self._told("get", error, digest) from error

        data = self._within("get", fetch)
        if digest_of(data) != digest:
            raise CorruptState(where=f"blob {self._bucket}/{key}", why="its bytes are not those of its name")
        return data

    def _key(self, digest: str) -> str:
        return f"{self._prefix}{digest[:2]}/{digest[2:]}"

    def _told(self, operation: str, error: Exception, digest: str = "") -> LeasekeeperError:
        """What a client's error means: by the code that S3 answered with, or by the name of what went wrong before."""
        said = _code(error)
        where = f"bucket {self._bucket}"
        if said in _MISSING and digest:
            return BlobMissing(digest=digest)
        if said in _REFUSED:
            return AuthError(f"{where} refuses to {operation}: {said}", denied=True, operation=operation)
        if said in _WRONG:
            return ConfigError(field="bucket", value=self._bucket, expected=f"a bucket that can be used ({said})")
        return Unavailable(f"{where}: {operation}: {said}", operation=operation, detail=f"{said}: {shown(str(error))}")


_MISSING = frozenset(("NoSuchKey", "NotFound", "404"))
_WRONG = frozenset(("NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "ParamValidationError"))
_REFUSED = frozenset(
    (
        *("AccessDenied", "Forbidden", "403", "AllAccessDisabled", "AccountProblem"),
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"),
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"),
    )
)


def _code(error: Exception) -> str:
    """S3's own code where it has answered, as boto3's ClientError carries it; else the name of the error's class."""
    try:
        code = error.response["Error"]["Code"]  # type: ignore[attr-defined]
    except (AttributeError, KeyError, TypeError):
        return type(error).__name__
    return str(code)
