from __future__ import annotations

import os
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xsp.export import endpoint
from xsp.show.export.delivery import Endpoint, without_credentials

ALL = "OTEL_EXPORTER_OTLP_"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("destination", "url"),
    [
        ("http://jaeger:4318", "http://jaeger:4318/v1/traces"),
        ("HTTPS://Jaeger:14318/", "https://jaeger:14318/v1/traces"),
        ("http://jaeger", "http://jaeger/v1/traces"),
        ("https://jaeger/otlp/v1/t", "https://jaeger/otlp/v1/t"),
        ("http://[fe80::1]:9", "http://[fe80::1]:9/v1/traces"),
        # The form that there was before; its port is 4318 where it names none.
        ("otlp+http://jaeger", "http://jaeger:4318/v1/traces"),
        ("otlp+http://jaeger:80/", "http://jaeger:80/v1/traces"),
        ("otlp+https://jaeger/otlp/v1/t", "https://jaeger:4318/otlp/v1/t"),
    ],
)
def test_destination_says_where(destination: str, url: str) -> None:
    assert endpoint(destination).url == url


@pytest.mark.parametrize(
    ("destination", "meant"),
    [
        ("otlp://jaeger:4317", "http://host:4318"),
        ("OTLPS://u:s3cr3t@jaeger:4317", "https://host:4318"),
    ],
)
def test_grpc_is_told_the_form_of_http_and_the_exporter(destination: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"over HTTP, {meant}.*otlp-proto-grpc") as told:
        endpoint(destination)
    assert "s3cr3t" not in str(told.value)


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "http://localhost:4318/v1/traces"),
        ({"ENDPOINT": "http://a:4318"}, "http://a:4318/v1/traces"),
        ({"ENDPOINT": "http://a:1", "PROTOCOL": "http/protobuf"}, "http://a:1/v1/traces"),
        ({"ENDPOINT": "https://a/b/"}, "https://a/b/v1/traces"),
    ],
)
def test_variables_say_where(
    variables: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(ALL + name, value)
    assert endpoint(None).url == url


@pytest.mark.parametrize(
    "destination",
    [
        "",
        "jaeger:4317",
        "http:jaeger",
        "http://",
        "http://:4318",
        "http://host:port",
        "http://host:0",
        "http://host:70000",
        "http://[::1",
        "http://ho st",
        "otlp+grpc://host",
        "http://ho%zz:4318",
        "otlp+http://host/pfäd",
        "http://host/?k=ä",
    ],
)
def test_what_is_no_destination_is_told_which_there_are(destination: str) -> None:
    with pytest.raises(ValueError, match=r"http://host:4318, https://host:4318"):
        endpoint(destination)


@pytest.mark.parametrize(
    ("name", "value", "possible"),
    [
        ("PROTOCOL", "http/json", "http/protobuf"),
        ("PROTOCOL", "grpc", "http/protobuf.*otlp-proto-grpc"),
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


def test_a_certificate_that_is_not_there_is_said_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALL + "CERTIFICATE", str(tmp_path / "none.pem"))
    endpoint("http://host")  # without TLS they do not matter
    with pytest.raises(ValueError, match=r"none\.pem.*OTEL_EXPORTER_OTLP_CERTIFICATE"):
        endpoint("https://host")


SECRET = "s3cr3t"
SECRET_BASIC = b64encode(f"user:{SECRET}".encode()).decode()


def _shown(found: Endpoint) -> str:
    return f"{found} {found!r} {found.url}"


@pytest.mark.parametrize(
    "destination",
    [
        f"http://user:{SECRET}@host",
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
        f"http://user:{SECRET}@host:port",
        f"http://user:1/{SECRET}@host",
        f"http://user:1#{SECRET}@host",
        f"ftp://user:{SECRET}@host",
        f"user:{SECRET}@host",
        f"user:{SECRET}@http://host",
        f"otlp://host/path?key={SECRET}",
        f"nonsense?key={SECRET}",
        f"http://host:99999?key=a@{SECRET}",
    ],
)
def test_credentials_in_what_is_no_destination_are_not_shown_either(destination: str) -> None:
    with pytest.raises(ValueError, match="http") as caught:
        endpoint(destination)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_a_server_repeats_of_our_credentials_is_starred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALL + "HEADERS", f"authorization=Bearer%20{SECRET}")
    found = endpoint("http://host/?key=qwerty")
    assert found.censored(f"no: {SECRET} Bearer {SECRET} qwerty") == "no: *** *** ***"


@given(st.text(alphabet="ab:/?#@.[]+-1", max_size=20), st.sampled_from(["", "http://", "x://"]))
def test_no_secret_before_an_at_sign_is_shown(text: str, scheme: str) -> None:
    assert SECRET not in without_credentials(f"{scheme}user:{SECRET}{text}@host")


@given(st.text(), st.sampled_from(["", "http://", "otlp+http://"]))
def test_any_text_is_a_destination_or_a_value_error(text: str, scheme: str) -> None:
    with suppress(ValueError):
        assert endpoint(scheme + text).url
