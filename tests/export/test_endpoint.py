from __future__ import annotations

import os
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.export.otlp import Endpoint, endpoint, without_credentials
from xsp.export.otlp.variable import _headers

TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
ALL = "OTEL_EXPORTER_OTLP_"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("destination", "url", "secure"),
    [
        ("otlp://jaeger", "otlp://jaeger:4317", False),
        ("OTLP://Jaeger:14317/", "otlp://jaeger:14317", False),
        ("otlps://jaeger", "otlps://jaeger:4317", True),
        ("otlp://[::1]", "otlp://[::1]:4317", False),
        ("otlp://[fe80::1]:9", "otlp://[fe80::1]:9", False),
        ("otlp+http://jaeger", "otlp+http://jaeger:4318/v1/traces", False),
        ("otlp+http://jaeger:80/", "otlp+http://jaeger:80/v1/traces", False),
        ("otlp+https://jaeger/otlp/v1/t", "otlp+https://jaeger:4318/otlp/v1/t", True),
    ],
)
def test_destination_says_where_and_how(destination: str, url: str, secure: bool) -> None:
    found = endpoint(destination)
    assert (found.url, found.secure) == (url, secure)
    assert found.protocol == ("http/protobuf" if "http" in url else "grpc")


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "otlp+http://localhost:4318/v1/traces"),
        ({"ENDPOINT": "http://a:4318"}, "otlp+http://a:4318/v1/traces"),
        ({"PROTOCOL": "grpc"}, "otlp://localhost:4317"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "http://a:4317"}, "otlp://a:4317"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "https://a:4317"}, "otlps://a:4317"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "https://a"}, "otlps://a:443"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "http://a:4317/ignored"}, "otlp://a:4317"),
        # The specification: secure unless said otherwise; a scheme decides by itself.
        ({"PROTOCOL": "grpc", "ENDPOINT": "a:4317"}, "otlps://a:4317"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "a", "INSECURE": "true"}, "otlp://a:4317"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "https://a:1", "INSECURE": "true"}, "otlps://a:1"),
        ({"ENDPOINT": "http://a:1", "PROTOCOL": "http/protobuf"}, "otlp+http://a:1/v1/traces"),
        (
            {"ENDPOINT": "https://a/b/", "PROTOCOL": "http/protobuf"},
            "otlp+https://a:443/b/v1/traces",
        ),
    ],
)
def test_variables_say_where_and_how(
    variables: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(ALL + name, value)
    assert endpoint(None).url == url


def test_variables_for_traces_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "ENDPOINT", "http://all:1")
    monkeypatch.setenv(TRACES + "ENDPOINT", "http://traces:2/my/path")
    monkeypatch.setenv(ALL + "PROTOCOL", "grpc")
    monkeypatch.setenv(TRACES + "PROTOCOL", "http/protobuf")
    monkeypatch.setenv(ALL + "TIMEOUT", "1000")
    monkeypatch.setenv(TRACES + "TIMEOUT", "250")
    monkeypatch.setenv(ALL + "HEADERS", "a=1")
    monkeypatch.setenv(TRACES + "HEADERS", "b=2")
    found = endpoint(None)
    assert found.url == "otlp+http://traces:2/my/path"
    assert found.timeout_s == 0.25
    assert found.headers == (("b", "2"),)


def test_endpoint_for_traces_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACES + "PROTOCOL", "http/protobuf")
    monkeypatch.setenv(TRACES + "ENDPOINT", "http://a:4318")
    assert endpoint(None).path == "/"


def test_an_empty_variable_is_as_one_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "PROTOCOL", "TIMEOUT", "COMPRESSION", "HEADERS", "INSECURE"):
        monkeypatch.setenv(TRACES + name, "")
    monkeypatch.setenv(ALL + "TIMEOUT", "500")
    found = endpoint(None)
    assert (found.url, found.timeout_s) == ("otlp+http://localhost:4318/v1/traces", 0.5)
    assert (found.compression, found.headers) == ("none", ())


def test_defaults_are_those_of_the_specification() -> None:
    found = endpoint("otlp://a")
    assert (found.timeout_s, found.compression, found.headers) == (10.0, "none", ())


def test_the_rest_of_the_variables_holds_for_a_destination_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", "x-team=a%20b%2Cc, Api-Key=s%3Dt")
    monkeypatch.setenv(ALL + "COMPRESSION", "gzip")
    monkeypatch.setenv(ALL + "ENDPOINT", "http://elsewhere")
    found = endpoint("otlp+http://here")
    assert found.host == "here"
    assert found.headers == (("x-team", "a b,c"), ("api-key", "s=t"))
    assert found.compression == "gzip"


def test_user_and_password_become_basic_authorisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "HEADERS", "authorization=Bearer%20other")
    found = endpoint("otlp://me:p%40ss@host")
    assert found.headers == (("authorization", f"Basic {b64encode(b'me:p@ss').decode()}"),)


@pytest.mark.parametrize(
    "destination",
    [
        "",
        "jaeger:4317",
        "http://jaeger:4318",
        "otlp:jaeger",
        "otlp://",
        "otlp://:4317",
        "otlp://host:port",
        "otlp://host:0",
        "otlp://host:70000",
        "otlp://[::1",
        "otlp://ho st",
        "otlp+grpc://host",
        f"otlp://{'a' * 64}:4317",
        "otlp+http://jaeger..local",
        "otlp+http://host/pfäd",
        "otlp+http://host/?k=ä",
    ],
)
def test_what_is_no_destination_is_told_which_there_are(destination: str) -> None:
    with pytest.raises(ValueError, match=r"otlp://host:4317.*otlp\+http://host:4318"):
        endpoint(destination)


def test_grpc_takes_no_path() -> None:
    with pytest.raises(ValueError, match=r"gRPC takes no path.*otlp\+http://"):
        endpoint("otlp://host:4318/v1/traces")


@pytest.mark.parametrize(
    ("name", "value", "possible"),
    [
        ("PROTOCOL", "http/json", "grpc and http/protobuf"),
        ("COMPRESSION", "zstd", "gzip and none"),
        ("TIMEOUT", "10s", "milliseconds"),
        ("TIMEOUT", "0", "milliseconds"),
        ("TIMEOUT", "-1", "milliseconds"),
        ("TIMEOUT", "9" * 400, "milliseconds"),
        ("ENDPOINT", "unix:///socket", "http://host:port"),
        ("ENDPOINT", "ftp://host", "http://host:port"),
    ],
)
def test_variable_that_makes_no_sense_is_named_with_what_is_possible(
    name: str, value: str, possible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + name, value)
    with pytest.raises(ValueError, match=f"(?s){ALL}{name}.*{possible}"):
        endpoint(None)


def test_insecure_is_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "PROTOCOL", "grpc")
    monkeypatch.setenv(ALL + "ENDPOINT", "host:4317")
    monkeypatch.setenv(ALL + "INSECURE", "yes")
    with pytest.raises(ValueError, match="there are true and false"):
        endpoint(None)


def test_certificates_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "CERTIFICATE", str(tmp_path / "none.pem"))
    endpoint("otlp://host")  # without TLS they do not matter
    with pytest.raises(ValueError, match=r"none\.pem"):
        endpoint("otlps://host")
    (tmp_path / "none.pem").write_text("not a certificate")
    with pytest.raises(ValueError, match="PEM"):
        endpoint("otlps://host")


def test_a_client_certificate_needs_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "CLIENT_KEY", "client.key")
    with pytest.raises(ValueError, match=r"CLIENT_CERTIFICATE and .*CLIENT_KEY"):
        endpoint("otlps://host")


SECRET = "s3cr3t"
SECRET_BASIC = b64encode(f"user:{SECRET}".encode()).decode()


def _shown(found: Endpoint) -> str:
    return f"{found} {found!r} {found.url} {found.address}"


@pytest.mark.parametrize(
    "destination",
    [
        f"otlp://user:{SECRET}@host",
        f"otlp+http://{SECRET}@host/path",
        f"otlp+https://host/path?key={SECRET}&b=1",
        f"otlp+http://host/path?key=a@{SECRET}",
    ],
)
def test_credentials_of_a_destination_are_not_shown(destination: str) -> None:
    shown = _shown(endpoint(destination))
    assert SECRET not in shown
    assert SECRET_BASIC not in shown


@pytest.mark.parametrize(
    "destination",
    [
        f"otlp://user:{SECRET}@host:port",
        f"otlp://user:1/{SECRET}@host",
        f"otlp://user:1?{SECRET}@host",
        f"otlp://user:1#{SECRET}@host",
        f"http://user:{SECRET}@host",
        f"user:{SECRET}@host",
        f"user:{SECRET}@otlp://host",
        f"otlp://host/path?key={SECRET}",
        f"nonsense?key={SECRET}",
        f"otlp://host:99999?key=a@{SECRET}",
    ],
)
def test_credentials_in_what_is_no_destination_are_not_shown_either(destination: str) -> None:
    with pytest.raises(ValueError, match="otlp") as caught:
        endpoint(destination)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_credentials_in_variables_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "HEADERS", f"authorization=Bearer%20{SECRET}")
    monkeypatch.setenv(ALL + "ENDPOINT", f"http://user:{SECRET}@host:4317?key={SECRET}")
    assert SECRET not in _shown(endpoint(None))
    monkeypatch.setenv(ALL + "ENDPOINT", f"ftp://user:{SECRET}@host:4317?key={SECRET}")
    with pytest.raises(ValueError, match="ENDPOINT") as caught:
        endpoint(None)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    ["no-value", "=value", "a=b%0Ac", "a=%C3%A4", "ä=b", "a b=c", f"authorization:{SECRET}"],
)
def test_what_is_no_header_is_left_out_with_a_warning(
    entry: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _headers.cache_clear()
    monkeypatch.setenv(ALL + "HEADERS", f"x=1,{entry}, ,y=2%20, z = a b=c ")
    for _ in range(2):
        assert endpoint("otlp://host").headers == (("x", "1"), ("y", "2"), ("z", "a b=c"))
    (record,) = caplog.records  # once, and without the entry, which may be a credential
    assert f"{ALL}HEADERS: entry 2 is not a header" in record.getMessage()
    assert "key1=value1" in record.getMessage()
    assert SECRET not in caplog.text


def test_what_a_server_repeats_of_our_credentials_is_starred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", f"authorization=Bearer%20{SECRET}")
    found = endpoint("otlp+http://host/?key=qwerty")
    assert found.censored(f"no: {SECRET} Bearer {SECRET} qwerty") == "no: *** *** ***"


def test_short_values_of_headers_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL + "HEADERS", "x-scope-orgid=1")
    assert endpoint("otlp://host").censored("span 11 of 16") == "span 11 of 16"


@given(st.text(alphabet="ab:/?#@.[]+-1", max_size=20), st.sampled_from(["", "otlp://", "x://"]))
def test_no_secret_before_an_at_sign_is_shown(text: str, scheme: str) -> None:
    assert SECRET not in without_credentials(f"{scheme}user:{SECRET}{text}@host")


@given(st.text(), st.sampled_from(["", "otlp://", "otlp+http://"]))
def test_any_text_is_a_destination_or_a_value_error(text: str, scheme: str) -> None:
    with suppress(ValueError):
        assert endpoint(scheme + text).host


@pytest.mark.parametrize("host", ["ho%zz", "h\u0661st"])
def test_a_host_that_the_client_refuses_is_refused_before_anything_is_sent(host: str) -> None:
    with pytest.raises(ValueError, match="the host or the port makes no sense"):
        endpoint(f"otlp+http://{host}:4318")
