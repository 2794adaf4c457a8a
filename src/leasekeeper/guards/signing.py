"""The keys that sign grants, where users of `leasekeeper.guards.grant` look for them; they live in `leasekeeper.signing`.

The same classes by another name, nothing of its own: records of runs and reports of the chaos harness are signed by them as well.
"""

from __future__ import annotations

from leasekeeper.signing import Ed25519Key, Ed25519PublicKey, HmacKey, Keyring, SigningKey, VerifyingKey

__all__ = ["Ed25519Key", "Ed25519PublicKey", "HmacKey", "Keyring", "SigningKey", "VerifyingKey"]
