"""Blob stores: bytes come back as they were put, under no other name, or not at all."""

from __future__ import annotations

import os
import stat
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.errors import AuthError, ConfigError, Unavailable
from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.run_errors import BlobMissing, CorruptState, RecordTooLarge
from leasekeeper.runs.blobs import LEFT_OVER_S, BlobStore, DirectoryBlobs, S3Blobs, digest_of
from leasekeeper.runs.durable import write_all

DATA = b"a large result"
DIGEST = digest_of(DATA)


class Refusal(Exception):
    """An error as boto3 raises it: with the code that the service answered."""

    def __init__(self, code: str) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}}


class Bucket:
    """The two methods of a client of S3, on a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.refusal: Exception | None = None

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> Any:  # noqa: N803
        """Keep an object, or refuse."""
        if self.refusal is not None:
            raise self.refusal
        self.objects[Bucket, Key] = Body

    def get_object(self, *, Bucket: str, Key: str) -> Any:  # noqa: N803
        """An object, or a refusal."""
        if self.refusal is not None:
            raise self.refusal
        if (Bucket, Key) not in self.objects:
            raise Refusal("NoSuchKey")
        return {"Body": BytesIO(self.objects[Bucket, Key])}


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """Each store there is, empty."""
    return DirectoryBlobs(tmp_path) if request.param == "directory" else S3Blobs(Bucket(), "b", "runs/")


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    """A directory."""
    return DirectoryBlobs(tmp_path)


def only_file(path: Path) -> Path:
    """The one file below a directory."""
    (file,) = (each for each in path.rglob("*") if each.is_file())
    return file


# ---------------------------------------------------------------- every store


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 300, b"\n" * VALUE_MAX], ids=len)
def test_bytes_come_back_as_they_were_put(store: BlobStore, data: bytes) -> None:
    """B13: What was put is what is got, up to 8 MiB; putting it again changes nothing."""
    for _ in range(2):
        store.put(digest_of(data), data)
        assert store.get(digest_of(data)) == data


def test_what_was_never_put_is_missing(store: BlobStore) -> None:
    """A blob that is not there is an error that names it, not an empty value."""
    with pytest.raises(BlobMissing) as missing:
        store.get(DIGEST)
    assert missing.value.digest == DIGEST


def test_nothing_above_the_bound_is_kept(store: BlobStore) -> None:
    """One byte above 8 MiB is refused with both sizes, before anything is written."""
    data = bytes(VALUE_MAX + 1)
    with pytest.raises(RecordTooLarge) as refused:
        store.put(digest_of(data), data)
    assert (refused.value.size, refused.value.most) == (VALUE_MAX + 1, VALUE_MAX)
    with pytest.raises(BlobMissing):
        store.get(digest_of(data))


def test_nothing_is_kept_under_another_name(store: BlobStore) -> None:
    """Bytes that are not those of the digest are refused, with the digest that would be right."""
    with pytest.raises(ConfigError, match=DIGEST):
        store.put(digest_of(b"other"), DATA)
    with pytest.raises(BlobMissing):
        store.get(digest_of(b"other"))


@pytest.mark.parametrize(
    "digest", ["", "../../etc/passwd", DIGEST.upper(), DIGEST[:-1], DIGEST + "\n", "/" + DIGEST[1:]]
)
def test_only_a_digest_is_a_name(store: BlobStore, digest: str) -> None:
    """What is no SHA-256 never becomes part of a path or key, neither for reading nor for writing."""
    with pytest.raises(ConfigError, match="digest"):
        store.put(digest, DATA)
    with pytest.raises(ConfigError, match="digest"):
        store.get(digest)


# ---------------------------------------------------------------- a directory


def test_files_are_private_and_named_by_their_digest(blobs: DirectoryBlobs, tmp_path: Path) -> None:
    """A blob is one file ``ab/cdef…`` that only its owner can read, and nothing is left beside it."""
    old = os.umask(0)
    try:
        blobs.put(DIGEST, DATA)
    finally:
        os.umask(old)
    file = only_file(tmp_path)
    assert file == tmp_path / DIGEST[:2] / DIGEST[2:]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("damaged", [b"", DATA[:-1], DATA + b"x", b"A" + DATA[1:], bytes(VALUE_MAX + 9)], ids=len)
def test_damage_shows_and_is_mended_by_the_next_put(blobs: DirectoryBlobs, tmp_path: Path, damaged: bytes) -> None:
    """B13: Other bytes under a digest are CorruptState and never a value; the right ones, put again, take their place."""
    blobs.put(DIGEST, DATA)
    only_file(tmp_path).write_bytes(damaged)
    with pytest.raises(CorruptState, match=DIGEST[2:]):
        blobs.get(DIGEST)
    blobs.put(DIGEST, DATA)
    assert blobs.get(DIGEST) == DATA


def test_more_than_the_largest_value_is_no_value(blobs: DirectoryBlobs, tmp_path: Path) -> None:
    """B13: The right bytes with one behind them, in a file of more than 8 MiB, are not the right bytes."""
    data = b"x" * VALUE_MAX
    blobs.put(digest_of(data), data)
    with only_file(tmp_path).open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptState):
        blobs.get(digest_of(data))


def test_a_pipe_in_place_of_a_file_hangs_nobody(blobs: DirectoryBlobs, tmp_path: Path) -> None:
    """What is no file is CorruptState at once, not a wait for somebody to write into it."""
    (tmp_path / DIGEST[:2]).mkdir()
    os.mkfifo(tmp_path / DIGEST[:2] / DIGEST[2:])
    with pytest.raises(CorruptState):
        blobs.get(DIGEST)
    blobs.put(DIGEST, DATA)
    assert blobs.get(DIGEST) == DATA


def test_only_a_directory_will_do(tmp_path: Path) -> None:
    """A path that is missing or a file is refused and named; a missing one is not made."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "missing", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=path.name):
            DirectoryBlobs(path)
    assert not (tmp_path / "missing").exists()


def test_a_directory_that_is_gone_is_not_a_missing_blob(tmp_path: Path) -> None:
    """When the whole directory went, neither reading nor writing takes that for an answer about one blob."""
    path = tmp_path / "blobs"
    path.mkdir()
    blobs = DirectoryBlobs(path)
    path.rmdir()
    with pytest.raises(ConfigError, match="a directory that exists"):
        blobs.get(DIGEST)
    with pytest.raises(ConfigError, match="a directory that exists"):
        blobs.put(DIGEST, DATA)


def test_what_killed_writers_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    """An unfinished file goes with the first put to its directory once it is older than any writing; a younger one stays."""
    directory = tmp_path / DIGEST[:2]
    directory.mkdir()
    old, young = directory / "old.new", directory / "young.new"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, times=(time.time() - 2 * LEFT_OVER_S,) * 2)
    DirectoryBlobs(tmp_path).put(DIGEST, DATA)
    assert sorted(path.name for path in directory.iterdir()) == sorted([DIGEST[2:], "young.new"])


def test_a_write_that_fails_leaves_nothing(
    blobs: DirectoryBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is told as such, for another try, and no half file stays under any name."""

    def full(fd: int, data: bytes) -> None:
        write_all(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("leasekeeper.runs.blobs.write_all", full)
    with pytest.raises(Unavailable, match="No space left on device"):
        blobs.put(DIGEST, DATA)
    monkeypatch.undo()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    blobs.put(DIGEST, DATA)
    assert blobs.get(DIGEST) == DATA


def test_everything_is_flushed_before_it_counts(
    blobs: DirectoryBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durable: the bytes are flushed before the name is given, the name and its directory after; also when it was there."""
    steps: list[str] = []
    monkeypatch.setattr("leasekeeper.runs.blobs.flush", lambda fd: steps.append("bytes"))
    monkeypatch.setattr(
        "leasekeeper.runs.blobs.flush_directory",
        lambda path: steps.append(f"{Path(path).name} named={(tmp_path / DIGEST[:2] / DIGEST[2:]).exists()}"),
    )
    blobs.put(DIGEST, DATA)
    assert steps == [f"{tmp_path.name} named=False", "bytes", f"{DIGEST[:2]} named=True"]
    steps.clear()
    blobs.put(DIGEST, DATA)
    assert steps == [f"{tmp_path.name} named=True", f"{DIGEST[:2]} named=True"]


def test_short_writes_are_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system takes less than it was given, the rest follows."""
    taken: list[bytes] = []

    def write(fd: int, data: memoryview) -> int:
        taken.append(bytes(data[:3]))
        return len(taken[-1])

    monkeypatch.setattr(os, "write", write)
    write_all(1, b"0123456789")
    monkeypatch.undo()
    assert b"".join(taken) == b"0123456789"


# ---------------------------------------------------------------- S3


def test_objects_are_named_by_prefix_and_digest() -> None:
    """Anybody with a client of S3 finds a blob by its digest."""
    bucket = Bucket()
    S3Blobs(bucket, "b", "runs/").put(DIGEST, DATA)
    assert bucket.objects == {("b", f"runs/{DIGEST[:2]}/{DIGEST[2:]}"): DATA}


def test_a_changed_object_shows() -> None:
    """B13: Other bytes under a digest are CorruptState, also ones that go on for ever."""
    bucket = Bucket()
    store = S3Blobs(bucket, "b")
    for wrong in (b"", b"other", bytes(VALUE_MAX + 2)):
        bucket.objects["b", f"{DIGEST[:2]}/{DIGEST[2:]}"] = wrong
        with pytest.raises(CorruptState, match=DIGEST[2:]):
            store.get(DIGEST)


class NoCredentialsError(Exception):
    """As botocore raises it: without a code, since nothing was sent."""


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Refusal("AccessDenied"), AuthError),
        (Refusal("SignatureDoesNotMatch"), AuthError),
        (NoCredentialsError("none"), AuthError),
        (Refusal("NoSuchBucket"), ConfigError),
        (Refusal("SlowDown"), Unavailable),
        (Refusal("InternalError"), Unavailable),
        (ConnectionError("refused"), Unavailable),
        (TimeoutError("took too long"), Unavailable),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_refusals_say_who_must_act(refusal: Exception, kind: type[Exception]) -> None:
    """What a person must mend is told apart from what passes by itself, for reading and for writing."""
    bucket = Bucket()
    bucket.refusal = refusal
    store = S3Blobs(bucket, "b")
    for call in (lambda: store.put(DIGEST, DATA), lambda: store.get(DIGEST)):
        with pytest.raises(kind) as told:
            call()
        assert type(told.value) is kind
        assert told.value.__cause__ is refusal


def test_a_missing_bucket_is_no_missing_blob() -> None:
    """A put that is answered "not found" is not told as a blob that is missing."""
    bucket = Bucket()
    bucket.refusal = Refusal("404")
    with pytest.raises(Unavailable):
        S3Blobs(bucket, "b").put(DIGEST, DATA)


def test_what_is_no_client_is_refused() -> None:
    """A wrong client or bucket is named when the store is made, not at the first large result."""
    with pytest.raises(ConfigError, match="put_object"):
        S3Blobs(object(), "b")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bucket"):
        S3Blobs(Bucket(), "")
