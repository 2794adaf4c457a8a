"""Keys: what they sign, what they believe, and that they keep their secrets to themselves."""

from __future__ import annotations

import sys

import pytest

from leasekeeper import signing
from leasekeeper.errors import AuthError, ConfigError, Misuse
from leasekeeper.guards import signing as at_guards
from leasekeeper.signing import Ed25519Key, Ed25519PublicKey, HmacKey, Keyring, SigningKey, VerifyingKey

SECRET = b"a secret that nobody else knows."
# RFC 8032, section 7.1, test 2.
SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def has_cryptography() -> bool:
    """Whether the extra is installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return False
    return True


needs_cryptography = pytest.mark.skipif(not has_cryptography(), reason="needs the extra leasekeeper[signing]")


def pair(kind: str) -> tuple[SigningKey, VerifyingKey]:
    """A key of this kind and what verifies it."""
    if kind == "hmac":
        key = HmacKey("k1", SECRET)
        return key, key
    private = Ed25519Key("k1", SEED)
    return private, private.public


each_kind = pytest.mark.parametrize("kind", ["hmac", pytest.param("ed25519", marks=needs_cryptography)])


def test_the_keys_are_found_where_grants_are() -> None:
    """`leasekeeper.guards.signing` has every public name of `leasekeeper.signing`, the same object each."""
    assert at_guards.__all__ == signing.__all__
    for name in signing.__all__:
        assert getattr(at_guards, name) is getattr(signing, name)


def test_hmac_is_the_standard_one() -> None:
    """RFC 4231, test case 1: the signature is HMAC-SHA256 of just the message."""
    signature = HmacKey("k", b"\x0b" * 20).sign(b"Hi There")
    assert signature.hex() == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"


@needs_cryptography
def test_ed25519_is_the_standard_one() -> None:
    """RFC 8032, test 2: key, signature and public key are those of the standard."""
    key = Ed25519Key("k", SEED)
    assert key.sign(b"\x72") == SIGNATURE
    assert key.public.raw == PUBLIC
    assert Ed25519PublicKey("k", PUBLIC).verifies(b"\x72", SIGNATURE)


@each_kind
def test_a_ring_believes_only_what_a_key_of_it_signed(kind: str) -> None:
    """Another message, a changed, cut or empty signature, another key of the same id and an unknown id are AuthErrors."""
    signer, verifying = pair(kind)
    signature = signer.sign(b"message")
    ring = Keyring(verifying)
    ring.verify("k1", b"message", signature)
    changed = bytes((signature[0] ^ 1,)) + signature[1:]
    for message, wrong in (
        (b"Message", signature),
        (b"message", changed),
        (b"message", signature[:-1]),
        (b"message", b""),
    ):
        with pytest.raises(AuthError, match="forged or changed"):
            ring.verify("k1", message, wrong)
    with pytest.raises(AuthError, match="forged or changed"):
        Keyring(HmacKey("k1", b"some other secret")).verify("k1", b"message", signature)
    with pytest.raises(AuthError, match="'k2', which is not known here: k1"):
        ring.verify("k2", b"message", signature)


@needs_cryptography
def test_a_public_key_is_no_secret_to_sign_with() -> None:
    """The algorithm belongs to the key: an HMAC made with the public key's bytes is not believed by that key."""
    public = Ed25519PublicKey("k1", PUBLIC)
    with pytest.raises(AuthError):
        Keyring(public).verify("k1", b"message", HmacKey("k1", PUBLIC).sign(b"message"))


def test_keys_are_exchanged_one_by_one() -> None:
    """A ring with the old and the new key believes both, each under its own id only."""
    old, new = HmacKey("old", SECRET), HmacKey("new", b"another secret of some length")
    ring = Keyring(old, new)
    for key in (old, new):
        ring.verify(key.key_id, b"message", key.sign(b"message"))
    with pytest.raises(AuthError):
        ring.verify("new", b"message", old.sign(b"message"))
    with pytest.raises(AuthError):
        Keyring(new).verify("old", b"message", old.sign(b"message"))


@pytest.mark.parametrize("key_id", ["", "x" * 65, "a.b", "a b", "ä", "a\n", None, 5])
def test_a_key_id_can_stand_in_a_header(key_id: object) -> None:
    """An id that could not is a ConfigError."""
    with pytest.raises(ConfigError, match="key_id"):
        HmacKey(key_id, SECRET)  # type: ignore[arg-type]


@pytest.mark.parametrize("secret", [b"", b"fifteen bytes..", b"x" * 1025, "text of some length", None, bytearray(32)])
def test_a_secret_is_long_enough(secret: object) -> None:
    """HMAC: less than 16 bytes, more than 1,024 or no bytes at all is a ConfigError, which does not show them."""
    with pytest.raises(ConfigError) as caught:
        HmacKey("k", secret)  # type: ignore[arg-type]
    assert caught.value.field == "secret"
    assert not secret or repr(secret) not in str(caught.value)
    HmacKey("k", b"exactly 16 bytes")


@needs_cryptography
@pytest.mark.parametrize("kind", [Ed25519Key, Ed25519PublicKey])
def test_raw_keys_have_their_length(kind: type[Ed25519Key | Ed25519PublicKey]) -> None:
    """Ed25519: anything but 32 bytes is a ConfigError, which does not show them."""
    for raw in (SEED[:-1], SEED + b"x", SEED.hex(), None):
        with pytest.raises(ConfigError) as caught:
            kind("k", raw)  # type: ignore[arg-type]
        assert SEED.hex()[:16] not in str(caught.value)


@pytest.mark.parametrize("count", [0, 33])
def test_a_ring_has_some_keys_and_not_too_many(count: int) -> None:
    """No key, or more than 32, is a ConfigError; so are two keys of one id, of which one would be forgotten."""
    with pytest.raises(ConfigError, match="keys"):
        Keyring(*(HmacKey(f"k{number}", SECRET) for number in range(count)))
    with pytest.raises(ConfigError, match="differ"):
        Keyring(HmacKey("k", SECRET), HmacKey("k", b"another secret of some length"))


@each_kind
def test_secrets_are_not_shown(kind: str) -> None:
    """Neither a key nor a ring shows what it keeps, only ids."""
    signer, verifying = pair(kind)
    for thing in (signer, verifying, Keyring(verifying)):
        shown = f"{thing!r} {thing}"
        assert "k1" in shown
        for secret in (SECRET, SEED):
            assert secret.hex() not in shown
            assert repr(secret)[2:-1] not in shown


@needs_cryptography
def test_keys_come_from_pem_files() -> None:
    """What openssl writes is read: private keys, also encrypted ones, and public ones; of anything else nothing is shown."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

    key = ed25519.Ed25519PrivateKey.from_private_bytes(SEED)
    form = (s.Encoding.PEM, s.PrivateFormat.PKCS8)
    plain = key.private_bytes(*form, s.NoEncryption())
    locked = key.private_bytes(*form, s.BestAvailableEncryption(b"password"))
    public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    for private in (Ed25519Key.from_pem("k", plain), Ed25519Key.from_pem("k", locked, password=b"password")):
        assert private.sign(b"\x72") == SIGNATURE
    assert Ed25519PublicKey.from_pem("k", public).raw == PUBLIC
    other = x25519.X25519PrivateKey.generate().private_bytes(*form, s.NoEncryption())
    for wrong in (b"", b"hunter2", public, other, locked, plain[:-40]):
        with pytest.raises(ConfigError, match="Ed25519PrivateKey") as caught:
            Ed25519Key.from_pem("k", wrong)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="Ed25519PublicKey"):
        Ed25519PublicKey.from_pem("k", plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ed25519Key("k", SEED),
        lambda: Ed25519PublicKey("k", PUBLIC),
        lambda: Ed25519Key.from_pem("k", b""),
        lambda: Ed25519PublicKey.from_pem("k", b""),
    ],
)
def test_without_the_extra_it_is_named(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cryptography is missing Ed25519 is Misuse that says what to install, and HMAC works."""
    for module in ("cryptography", "cryptography.hazmat.primitives.asymmetric"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Misuse, match=r"leasekeeper\[signing\]"):
        make()  # type: ignore[operator]
    assert HmacKey("k", SECRET).verifies(b"m", HmacKey("k", SECRET).sign(b"m"))
