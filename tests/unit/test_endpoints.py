"""Endpoints and TLS settings: what can be one, what is refused, and that no password is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper import AsyncKeeper, Keeper
from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.wire.channel import ENDPOINTS_MAX, TLS, Channels, Endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("text", "target", "secure"),
    [
        ("127.0.0.1:2379", "127.0.0.1:2379", None),
        ("etcd-0.etcd", "etcd-0.etcd:2379", None),
        ("  etcd:1 ", "etcd:1", None),
        ("http://etcd:2379", "etcd:2379", False),
        ("https://etcd:2379/", "etcd:2379", True),
        ("HTTPS://etcd", "etcd:2379", True),
        ("etcd:65535", "etcd:65535", None),
        ("etcd:00080", "etcd:80", None),
        ("[::1]:2379", "[::1]:2379", None),
        ("[::1]", "[::1]:2379", None),
        ("https://[fe80::1%eth0]:7", "[fe80::1%eth0]:7", True),
        ("xn--etcd-0na.example", "xn--etcd-0na.example:2379", None),
        ("etcd_0", "etcd_0:2379", None),
    ],
)
def test_what_an_endpoint_can_be(text: str, target: str, secure: bool | None) -> None:
    """Host with or without port, either scheme, IPv6 in brackets: as in ETCDCTL_ENDPOINTS."""
    (endpoint,) = parse_endpoints(text)
    assert (endpoint.target, endpoint.secure) == (target, secure)
    assert parse_endpoints([text]) == (endpoint,)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        ":",
        ":2379",
        "etcd:",
        "etcd:0",
        "etcd:65536",
        "etcd:000237999",
        "etcd:-1",
        "etcd:+1",
        "etcd:http",
        "etcd:\uff12\uff13",
        "etcd:1:2",
        "::1",
        "::1:2379",
        "[::1",
        "[::1]x",
        "[::1]:",
        "[]:1",
        "[etcd]:1",
        "[::zz]:1",
        "http://",
        "http://etcd:1/path",
        "http://etcd?x=1",
        "ftp://etcd",
        "unix:///var/run/etcd.sock",
        "a b:1",
        "a\nb:1",
        "a\x00b:1",
        "etcd:1,,etcd:2",
        "etcd:1,",
        5,
        None,
        b"etcd",
        [],
        [5],
        ["etcd", ""],
        {"etcd"},
        "http://a,https://b",
        ["etcd"] * 2 + ["", "x"],
    ],
    ids=repr,
)
def test_what_an_endpoint_cannot_be(bad: Any) -> None:
    """Each is a ConfigError that shows what was given and says what would be right."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoints(bad)
    assert caught.value.field in ("endpoint", "endpoints")
    assert caught.value.expected
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "http://root:s3cret@etcd:2379",
        "root:s3cret@etcd",
        "etcd:1,https://root:s3cret@etcd:2",
        "http://root:s3cret,more@etcd:2379",
        "http://root:s3cret@more@etcd",
    ],
)
@pytest.mark.parametrize("wrap", [str, lambda text: [text]], ids=["text", "list"])
def test_a_password_in_an_endpoint_is_not_shown(text: str, wrap: Any) -> None:
    """Credentials do not belong into an endpoint; the error says so without repeating them."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoints(wrap(text))
    shown = f"{caught.value} {caught.value.value} {caught.value.args} {vars(caught.value)}"
    assert "s3cret" not in shown
    assert "more" not in shown


@pytest.mark.parametrize("given", ["etcd:1,", ",etcd:1", "etcd:1, ,etcd:2", ["etcd:1", ""]], ids=repr)
def test_a_comma_too_many_is_named(given: Any) -> None:
    """An empty endpoint among others is told as such, together with all that was given."""
    with pytest.raises(ConfigError, match="an empty endpoint in ") as caught:
        parse_endpoints(given)
    assert repr(given) in str(caught.value)


def test_nothing_contradicts_a_lent_channel(tmp_path: Path) -> None:
    """Endpoints and TLS say nothing about a connection that is made already: refused, not ignored. A login may be."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        for kind in (Keeper, AsyncKeeper):
            for endpoints in ("etcd:1", "127.0.0.1:2380", ["127.0.0.1:2379", "b:1"]):
                with pytest.raises(ConfigError, match="channel") as caught:
                    kind(endpoints, channel=channel)
                assert caught.value.field == "endpoints"
            with pytest.raises(ConfigError, match="channel") as caught:
                kind(channel=channel, tls=TLS(ca=tmp_path / "ca.pem"))
            assert caught.value.field == "tls"
            kind("127.0.0.1:2379", channel=channel, user="me", password="secret")


def test_the_environment_is_not_for_a_lent_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators' endpoints do not contradict a channel that the program lends; what the program says itself does."""
    monkeypatch.setenv("ETCDCTL_ENDPOINTS", "etcd:1")
    monkeypatch.setenv("LEASEKEEPER_NAMESPACE", "payments")
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        for kind in (Keeper, AsyncKeeper):
            assert "a lent channel namespace='payments'" in repr(kind.from_env(channel=channel))
            with pytest.raises(ConfigError):
                kind.from_env(channel=channel, endpoints="etcd:1")
            assert "etcd:1 namespace='payments'" in repr(kind.from_env())


def test_several_endpoints_each_once_in_their_order() -> None:
    """Commas or a sequence; what is named twice is asked once."""
    wanted = (Endpoint("b", 1), Endpoint("a", 2379), Endpoint("c", 2))
    assert parse_endpoints("b:1, a ,c:2,b:1") == wanted
    assert parse_endpoints(("b:1", "a", "c:2", "a:2379")) == wanted


def test_a_bounded_number() -> None:
    """Sixty-four are enough for any cluster."""
    assert len(parse_endpoints([f"e{number}" for number in range(ENDPOINTS_MAX)])) == ENDPOINTS_MAX
    with pytest.raises(ConfigError):
        parse_endpoints([f"e{number}" for number in range(ENDPOINTS_MAX + 1)])


@given(st.text(max_size=40) | st.text(alphabet="htps:/[]@,.%a1 ", max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """Whatever stands in a variable: endpoints that print as targets, or a ConfigError, nothing else."""
    try:
        found = parse_endpoints(text)
    except ConfigError:
        return
    for endpoint in found:
        assert parse_endpoints(endpoint.target)[0].target == endpoint.target


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A CA, a client certificate with its key, another key, and files that are none of these."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    client, other = authority.issue_cert("client"), authority.issue_cert("other")
    found = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key", "other_key", "text", "broken", "missing")}
    authority.cert_pem.write_to_path(str(found["ca"]))
    client.cert_chain_pems[0].write_to_path(str(found["cert"]))
    client.private_key_pem.write_to_path(str(found["key"]))
    other.private_key_pem.write_to_path(str(found["other_key"]))
    found["text"].write_text("not a certificate")
    found["broken"].write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return found


def test_good_files(files: dict[str, Path]) -> None:
    """A CA alone, a CA with a client's certificate, or the system's CAs."""
    for tls in (TLS(), TLS(ca=files["ca"]), TLS(ca=str(files["ca"]), cert=files["cert"], key=files["key"])):
        assert isinstance(tls.credentials(), grpc.ChannelCredentials)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"ca": "missing"}, "ca"),
        ({"ca": "text"}, "ca"),
        ({"ca": "broken"}, "ca"),
        ({"cert": "cert"}, "cert"),
        ({"key": "key"}, "key"),
        ({"cert": "missing", "key": "key"}, "cert"),
        ({"cert": "cert", "key": "text"}, "key"),
        ({"cert": "cert", "key": "other_key"}, "cert"),
        ({"cert": "key", "key": "cert"}, "cert"),
    ],
    ids=str,
)
def test_files_that_cannot_work(files: dict[str, Path], given: dict[str, str], field: str) -> None:
    """Missing, not PEM, broken, half a pair, or not a pair: told before anything connects, by the file's name."""
    paths: dict[str, Any] = {name: files[kind] for name, kind in given.items()}
    with pytest.raises(ConfigError) as caught:
        TLS(**paths)
    assert caught.value.field == field
    assert str(files[given[field]]) in str(caught.value)
    assert "PRIVATE KEY" not in str(caught.value)


@pytest.mark.parametrize("bad", [5, b"\xff\x00", "a\x00b", ["x"]], ids=repr)
def test_what_is_no_path(bad: Any) -> None:
    """Anything that is no path is a ConfigError as well."""
    with pytest.raises(ConfigError) as caught:
        TLS(ca=bad)
    assert caught.value.field == "ca"


# ---------------------------------------------------------------- which channels there are


def test_plain_endpoints_and_certificates_do_not_go_together() -> None:
    """http:// with TLS files is a mistake that would send requests in the clear."""
    with pytest.raises(ConfigError) as caught:
        Channels(parse_endpoints("http://a"), tls=TLS())
    assert "https://" in caught.value.expected


@pytest.mark.parametrize(
    ("endpoints", "tls", "secure"),
    [
        ("a", None, False),
        ("http://a", None, False),
        ("https://a", None, True),
        ("a", TLS(), True),
        ("a,https://b", None, True),
    ],
)
def test_when_tls_is_spoken(endpoints: str, tls: TLS | None, secure: bool) -> None:
    """With https:// anywhere, or TLS files given; then to every endpoint."""
    assert (Channels(parse_endpoints(endpoints), tls=tls).tls is not None) is secure


def test_a_lent_channel_must_be_one() -> None:
    """Only a classic grpc.Channel can be lent."""
    with pytest.raises(Misuse) as caught:
        Channels(parse_endpoints("a"), lent="a channel")  # type: ignore[arg-type]
    assert "grpc.Channel" in str(caught.value)
