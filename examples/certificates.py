"""Certificates for the rotation: an authority with a server certificate, and openssl as the judge of what is served."""

from __future__ import annotations

import datetime as dt
import subprocess
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["make_authority", "public", "verifies"]


def make_authority(name: str, old: dict[str, str] | None = None) -> dict[str, str]:
    """A root, a server certificate by it, and the chain to show: with the root's key signed by the old authority, too."""
    key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    chain = [certificate("server.example.org", server_key, name, key, is_authority=False)]
    if old is not None:
        old_key = serialization.load_pem_private_key(old["key"].encode(), None)
        assert isinstance(old_key, ec.EllipticCurvePrivateKey)
        chain.append(certificate(name, key, old["name"], old_key, is_authority=True))
    root = certificate(name, key, name, key, is_authority=True)
    return {"name": name, "root": root, "chain": "".join(chain), "key": pem(key), "server_key": pem(server_key)}


def certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> str:
    """One certificate."""
    now = dt.datetime.now(dt.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=90))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def pem(key: ec.EllipticCurvePrivateKey) -> str:
    """A private key as text."""
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain).decode()


def public(authority: dict[str, str]) -> dict[str, str]:
    """What everybody may see of it."""
    return {"root": authority["root"], "chain": authority["chain"]}


def verifies(chain: str, trust: str) -> bool:
    """Whether openssl takes the first certificate of a chain, for somebody who has these roots."""
    with tempfile.TemporaryDirectory() as directory:
        chain_file, trust_file = Path(directory, "chain.pem"), Path(directory, "trust.pem")
        chain_file.write_text(chain)
        trust_file.write_text(trust)
        command = ["openssl", "verify", "-CAfile", str(trust_file), "-untrusted", str(chain_file), str(chain_file)]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
