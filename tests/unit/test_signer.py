"""Where keys come from: variables and files, what is refused, and that nothing of a key is ever shown."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from leasekeeper.errors import AuthError, ConfigError, Misuse
from leasekeeper.protocol.key_text import private_text, public_text, signing_key, verifying_key
from leasekeeper.runs.signer import (
    FILE_VARIABLE,
    TEXT_VARIABLE,
    TRUST_VARIABLE,
    new_key,
    read_signing_key,
    signer_from_env,
    trust_from_env,
    verifying_ring,
)
from leasekeeper.signing import Ed25519Key, HmacKey, Keyring
from tests.chains import has_cryptography

SECRET = b"a secret that nobody else knows."
HMAC_TEXT = private_text("hmac", "h1", SECRET)
ED25519_TEXT = private_text("ed25519", "e1", SECRET)

needs_cryptography = pytest.mark.skipif(not has_cryptography(), reason="needs the extra leasekeeper[signing]")


def kept(path: Path, content: str, mode: int = 0o600) -> Path:
    """A file with this content and mode."""
    path.write_text(content, encoding="utf-8")
    path.chmod(mode)
    return path


def pems() -> tuple[str, str]:
    """A private key and its public one, as openssl writes them."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.from_private_bytes(SECRET)
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


def refusal(call: Callable[[], object]) -> str:
    """The text of the ConfigError that a call raises; nothing of a key is in it."""
    with pytest.raises(ConfigError) as caught:
        call()
    told = f"{caught.value} {caught.value!r} {caught.value.value} {caught.value.expected}"
    for secret in (SECRET.decode(), HMAC_TEXT.rpartition(":")[2], SECRET.hex()):
        assert secret not in told
    # What it was raised from or while handling is shown by a traceback, too.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def test_no_variable_is_no_key() -> None:
    """Without either variable, or with empty ones, nothing is signed."""
    assert signer_from_env({}) is None
    assert signer_from_env({TEXT_VARIABLE: "", FILE_VARIABLE: ""}) is None


def test_the_environment_is_the_processs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no mapping is given the process's variables count."""
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setenv(TEXT_VARIABLE, HMAC_TEXT)
    key = signer_from_env()
    assert key is not None
    assert key.key_id == "h1"


def test_a_variable_holds_a_key(tmp_path: Path) -> None:
    """The text itself, or a file of it, gives just this key; white space around it does not matter."""
    path = kept(tmp_path / "key", f"\n{HMAC_TEXT}\n")
    for env in ({TEXT_VARIABLE: f" {HMAC_TEXT}\n"}, {FILE_VARIABLE: str(path)}):
        key = signer_from_env(env)
        assert key is not None
        assert key.key_id == "h1"
        assert key.sign(b"message") == HmacKey("h1", SECRET).sign(b"message")


@needs_cryptography
def test_ed25519_comes_as_text_and_as_pem(tmp_path: Path) -> None:
    """The private key of an openssl file signs, and its id is made from the public key, which is named the same way."""
    private, public = pems()
    by_text = signer_from_env({TEXT_VARIABLE: ED25519_TEXT})
    by_pem = signer_from_env({FILE_VARIABLE: str(kept(tmp_path / "key.pem", private))})
    assert isinstance(by_text, Ed25519Key)
    assert isinstance(by_pem, Ed25519Key)
    assert by_text.key_id == "e1"
    assert by_text.public.raw == by_pem.public.raw
    assert len(by_pem.key_id) == 16
    ring = verifying_ring([kept(tmp_path / "public.pem", public, 0o644), public_text(by_text.public)])
    for key in (by_text, by_pem):
        ring.verify(key.key_id, b"message", key.sign(b"message"))
    assert verifying_ring([public]).__contains__(by_pem.key_id)


def test_both_variables_are_refused(tmp_path: Path) -> None:
    """Which of two keys was meant is not guessed."""
    path = kept(tmp_path / "key", HMAC_TEXT)
    told = refusal(lambda: signer_from_env({TEXT_VARIABLE: HMAC_TEXT, FILE_VARIABLE: str(path)}))
    assert TEXT_VARIABLE in told
    assert FILE_VARIABLE in told


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o666, 0o644, 0o660])
def test_a_key_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    """The error names the file, its mode and what to do."""
    path = kept(tmp_path / "key", HMAC_TEXT, mode)
    told = refusal(lambda: signer_from_env({FILE_VARIABLE: str(path)}))
    assert str(path) in told
    assert f"{mode:o}" in told
    assert f"chmod 600 {path}" in told
    path.chmod(0o600)
    assert signer_from_env({FILE_VARIABLE: str(path)}) is not None


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700, 0o711])
def test_a_key_that_only_its_owner_can_read_is_taken(tmp_path: Path, mode: int) -> None:
    """Other bits of the mode give nothing away."""
    assert read_signing_key(kept(tmp_path / "key", HMAC_TEXT, mode)).key_id == "h1"


def owned_by(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    """Every opened file belongs to this user."""
    real = os.stat

    def fstat(descriptor: int) -> os.stat_result:
        fields = list(real(descriptor))
        fields[stat.ST_UID] = user
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", fstat)


def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns the file can exchange the key: only this user and root may. It is the opened file that is asked."""
    path = kept(tmp_path / "key", HMAC_TEXT)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    owned_by(monkeypatch, 4321)
    told = refusal(lambda: read_signing_key(path))
    assert "user 4321" in told
    assert str(path) in told
    for user in (0, 1234):
        owned_by(monkeypatch, user)
        assert read_signing_key(path).key_id == "h1"


def test_what_is_checked_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that leads to another file after the opening changes nothing: no look at the path itself is taken."""
    path = kept(tmp_path / "key", HMAC_TEXT, 0o644)
    innocent = kept(tmp_path / "innocent", HMAC_TEXT)
    real = os.open

    def exchanged(name: str, flags: int, *rest: int) -> int:
        descriptor = real(name, flags, *rest)
        os.replace(innocent, path)
        return descriptor

    monkeypatch.setattr(os, "open", exchanged)
    assert "644" in refusal(lambda: read_signing_key(path))


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    """A directory, a pipe that nobody writes to, a device or nothing at all is refused at once; a link is followed."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        assert "regular file" in refusal(lambda path=path: read_signing_key(path))  # type: ignore[misc]
    told = refusal(lambda: read_signing_key(tmp_path / "nothing"))
    assert "No such file" in told
    assert str(tmp_path / "nothing") in told
    refusal(lambda: read_signing_key("a\0b"))
    kept(tmp_path / "key", HMAC_TEXT)
    (tmp_path / "link").symlink_to(tmp_path / "key")
    assert read_signing_key(tmp_path / "link").key_id == "h1"


def test_a_large_file_is_no_key(tmp_path: Path) -> None:
    """It is not read to its end."""
    path = kept(tmp_path / "key", "x" * 70_000)
    assert "65536 bytes" in refusal(lambda: read_signing_key(path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        SECRET.decode(),
        HMAC_TEXT.rpartition(":")[2],
        f"{HMAC_TEXT}:more",
        f"{HMAC_TEXT[:-5]}!{HMAC_TEXT[-5:]}",
        "hmac:h1:not base64!",
        f"sha:{HMAC_TEXT[5:]}",
        HMAC_TEXT.replace(":h1:", ":h 1:"),
        HMAC_TEXT.replace(":h1:", "::"),
        f"{HMAC_TEXT}\n{HMAC_TEXT}",
        "hmac:h1:c2hvcnQ=",
        "hmac:h1:" + "A" * 5000,
    ],
)
def test_what_is_no_key_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    """A wrong text, in a variable or in a file, is a ConfigError that names where it stands and shows nothing of it."""
    refusal(lambda: signing_key(text, TEXT_VARIABLE))
    path = kept(tmp_path / "key", text)
    refusal(lambda: read_signing_key(path))
    if text:
        refusal(lambda: verifying_ring([path]))
    (tmp_path / "binary").write_bytes(b"\xff\xfe" + SECRET)
    (tmp_path / "binary").chmod(0o600)
    assert "binary" in refusal(lambda: read_signing_key(tmp_path / "binary"))


def test_a_key_where_its_path_should_be_is_not_shown() -> None:
    """A key given as the path of a file is recognised before it can stand in an error."""
    for text in (HMAC_TEXT, f"\n{ED25519_TEXT}", "-----BEGIN PRIVATE KEY-----\n" + HMAC_TEXT):
        assert TEXT_VARIABLE in refusal(lambda text=text: signer_from_env({FILE_VARIABLE: text}))  # type: ignore[misc]


@needs_cryptography
def test_a_key_of_another_length_names_the_variable() -> None:
    """What is wrong with the key in a variable is told of the variable; mixed-up parts do not show the secret as an id."""
    short = private_text("ed25519", "e1", SECRET[:30])
    assert refusal(lambda: signer_from_env({TEXT_VARIABLE: short})).startswith(f"{TEXT_VARIABLE}=")
    assert "30 bytes" in refusal(lambda: signer_from_env({TEXT_VARIABLE: short}))
    mixed = f"ed25519:{HMAC_TEXT.rpartition(':')[2]}:abcd"
    assert HMAC_TEXT.rpartition(":")[2] not in refusal(lambda: signer_from_env({TEXT_VARIABLE: mixed}))


def test_keys_to_trust_come_from_a_file_that_a_variable_names(tmp_path: Path) -> None:
    """LEASEKEEPER_TRUST_FILE names the keys of earlier lives; what is wrong with it is told by that name, never with a key."""
    path = kept(tmp_path / "trust", f"# until 2026\n{HMAC_TEXT}\n")
    assert [key.key_id for key in trust_from_env({TRUST_VARIABLE: str(path)})] == ["h1"]
    assert trust_from_env({}) == trust_from_env({TRUST_VARIABLE: ""}) == ()
    for text in ("", "# none\n", "hunter2", f"{HMAC_TEXT}\n{HMAC_TEXT}"):
        wrong = kept(tmp_path / "wrong", text)
        told = refusal(lambda wrong=wrong: trust_from_env({TRUST_VARIABLE: str(wrong)}))  # type: ignore[misc]
        assert told.startswith(TRUST_VARIABLE)
    for given in (HMAC_TEXT, str(tmp_path / "none")):
        assert TRUST_VARIABLE in refusal(lambda given=given: trust_from_env({TRUST_VARIABLE: given}))  # type: ignore[misc]
    assert "chmod 600" in refusal(
        lambda: trust_from_env({TRUST_VARIABLE: str(kept(tmp_path / "open", HMAC_TEXT, 0o644))})
    )


@needs_cryptography
def test_private_and_public_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """A private key is refused in a ring, so that it is not handed out as a public one, and a public key does not sign."""
    private, public = pems()
    private_key, public_key = new_key()
    assert "a private key" in refusal(lambda: verifying_ring([private_key]))
    assert "a private key" in refusal(lambda: verifying_ring([ED25519_TEXT]))
    assert "a public key" in refusal(lambda: signer_from_env({TEXT_VARIABLE: public_key}))
    refusal(lambda: verifying_ring([private]))
    refusal(lambda: read_signing_key(kept(tmp_path / "public.pem", public)))


def test_a_ring_file_with_a_secret_is_kept_as_one(tmp_path: Path) -> None:
    """An HMAC secret in a file that others can read is refused for verifying, too."""
    path = kept(tmp_path / "ring", f"# of 2026\n\n{HMAC_TEXT}\n", 0o644)
    assert f"chmod 600 {path}" in refusal(lambda: verifying_ring([path]))
    path.chmod(0o600)
    assert "h1" in verifying_ring([str(path)])


@needs_cryptography
def test_a_ring_comes_from_many_places(tmp_path: Path) -> None:
    """Texts and files together make one ring; a file of public keys may be read by everybody."""
    pairs = [new_key(key_id=f"k{number}") for number in range(3)]
    listed = kept(tmp_path / "ring", f"# two of them\n{pairs[0][1]}\n{pairs[1][1]}\n", 0o644)
    ring = verifying_ring([listed, pairs[2][1], HMAC_TEXT])
    for private, _ in pairs:
        key = signing_key(private, "it")
        ring.verify(key.key_id, b"message", key.sign(b"message"))
        with pytest.raises(AuthError):
            ring.verify(key.key_id, b"another", key.sign(b"message"))
    refusal(lambda: verifying_ring([pairs[0][1], pairs[0][1]]))
    refusal(lambda: verifying_ring([]))


@needs_cryptography
def test_a_new_key_is_used_at_once() -> None:
    """Each new key differs, signs by its private text and is verified by its public one; ids are made or given."""
    made = {new_key() for _ in range(3)} | {new_key(key_id="mine")}
    assert len(made) == 4
    for private, public in made:
        key, verifying = signing_key(private, "private"), verifying_key(public, "public")
        assert key.key_id == verifying.key_id
        Keyring(verifying).verify(key.key_id, b"message", key.sign(b"message"))
    assert "mine" in {signing_key(private, "private").key_id for private, _ in made}
    refusal(lambda: new_key(key_id="not an id"))
    refusal(lambda: new_key("rsa"))  # type: ignore[arg-type]


def test_a_new_secret_has_no_public_half() -> None:
    """HMAC: what verifies it is the secret itself."""
    private, public = new_key("hmac")
    assert public == ""
    assert private != new_key("hmac")[0]
    key = signing_key(private, "it")
    verifying_ring([private]).verify(key.key_id, b"message", key.sign(b"message"))
    assert signing_key(new_key("hmac", "mine")[0], "it").key_id == "mine"
    refusal(lambda: new_key("hmac", "not an id"))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cryptography is missing an Ed25519 key is Misuse that says what to install, and HMAC works."""
    import sys

    for module in ("cryptography", "cryptography.hazmat.primitives.asymmetric"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Misuse, match=r"leasekeeper\[signing\]"):
        signer_from_env({TEXT_VARIABLE: ED25519_TEXT})
    with pytest.raises(Misuse, match=r"leasekeeper\[signing\]"):
        new_key()
    assert signer_from_env({TEXT_VARIABLE: HMAC_TEXT}) is not None
