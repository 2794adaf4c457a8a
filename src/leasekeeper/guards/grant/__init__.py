"""Grants: signed proof that an owner may do one thing, for resources that do not take a number at its word.

A fence believes the token that it is shown. Whoever can reach the resource and writes a token by hand could get past it, and
one huge token would lock every real owner out. A grant is the token with a signature: *this claim, with this token, may do this
effect with these arguments, until then*.

::

    @requires_grant("rotate", need=1.0)
    def rotate(grant, host):                                   # its body runs only with a grant that is live
        api.post("/rotate", {"host": host}, headers={"X-Grant": grant.text}, timeout=grant.remaining())

    rotate(rotate.grant(lease, issuer, "a.example"), "a.example")

and at the resource::

    grant = verifier.accept(text, name="certs", effect="rotate", arguments={"host": host})
    with connection:
        Fence(connection).admit("certs", grant)                # a grant is what a fence needs to know of a lease
        ...

Two lines of defence
====================

The **fence** is the first, as everywhere: an older owner is refused after a newer one without any clock (G4). The signature
sees to it that only tokens which etcd gave reach it. The **deadline** is only the second, for the time in which the newer owner
has not written yet: it is judged by the resource's own wall clock, and holds only while that and the issuer's differ by at most
``skew_s``. In the owner's process a grant asks the lease's gate, on a clock that needs to agree with no other (G3).

What a grant is not: it is no secret that may leak (until its deadline, whoever has the text can have that effect with those
arguments done), and it is not spent by use: it does not make an effect happen once.

The text
========

``grant1.KEY.PAYLOAD.SIGNATURE``: the key's id, then the payload, which is canonical JSON, and the signature, both in base64url
without padding. Everything before the last dot is what is signed, exactly as it is sent. There is one text for one grant. The
payload's members: ``name``, ``token`` (as text), ``claim``, ``holder``, ``effect``, ``digest`` (SHA-256 of the arguments'
canonical JSON, in hex), ``issued_ms``, ``until_ms`` (milliseconds since 1970, UTC).
"""

from __future__ import annotations

from leasekeeper.canonical import canonical
from leasekeeper.guards.grant.gated import Gated, requires_grant
from leasekeeper.guards.grant.issuer import Issuer, Owned
from leasekeeper.guards.grant.live import Grant, digest_of
from leasekeeper.guards.grant.verifier import Verifier

__all__ = ["Gated", "Grant", "Issuer", "Owned", "Verifier", "canonical", "digest_of", "requires_grant"]
