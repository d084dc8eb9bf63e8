from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import xsp
from xsp.show.export.picture import _given, resource, service_name

MEASURED: dict[str, Any] = {
    "host": "bench-7",
    "host_id": "fdbf79e8af94cb7f9e8df36789187052",
    "machine": "x86_64",
    "cpu": "Fast One",
    "os": "Linux-6.18-x86_64-with-glibc2.39",
    "pid": 4711,
    "executable": "python3.12",
    "python": "3.12.1",
    "python_implementation": "CPython",
    "versions": {"xsp": "0.1.0", "torch": "2.15.0+cpu", "polars": "1.36", "rich": "14.0"},
    "gpus": [],
}


def test_everything_known_has_opentelemetrys_name() -> None:
    assert resource(MEASURED, {}) == {
        "ip": "127.0.0.1",
        "host.id": "fdbf79e8af94cb7f9e8df36789187052",
        "host.name": "bench-7",
        "host.arch": "amd64",
        "host.cpu.model.name": "Fast One",
        "os.type": "linux",
        "os.description": "Linux-6.18-x86_64-with-glibc2.39",
        "process.pid": 4711,
        "process.executable.name": "python3.12",
        "process.runtime.name": "cpython",
        "process.runtime.version": "3.12.1",
        "telemetry.sdk.name": "xsp",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": xsp.__version__,
        "xsp.versions.xsp": "0.1.0",
        "xsp.versions.torch": "2.15.0+cpu",
    }


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        ("x86_64", "amd64"),
        ("AMD64", "amd64"),
        ("aarch64", "arm64"),
        ("arm64", "arm64"),
        ("armv7l", "arm32"),
        ("i686", "x86"),
        ("ppc64le", "ppc64"),
        ("s390x", "s390x"),
        ("riscv64", "riscv64"),
    ],
)
def test_architectures_have_the_names_of_the_conventions(machine: str, named: str) -> None:
    assert resource({"machine": machine}, {})["host.arch"] == named


@given(st.sets(st.sampled_from(sorted(MEASURED))))
def test_what_a_trace_lacks_is_left_out(missing: set[str]) -> None:
    known = {key: value for key, value in MEASURED.items() if key not in missing}
    found = resource(known, {})
    assert found["host.id"]
    assert found["host.name"]
    whole = resource(MEASURED, {})
    apart = {name for name in found if found[name] != whole[name]}
    assert apart <= {"host.id", "host.name"}


# The user's own


def test_what_the_user_says_wins_and_is_decoded() -> None:
    given = "host.name=front, deployment.environment.name = a%2Cb%3D%C3%A9 ,host%2Earch=x=y,"
    found = resource(MEASURED, {"OTEL_RESOURCE_ATTRIBUTES": given})
    assert found["host.name"] == "front"
    assert found["deployment.environment.name"] == "a,b=é"
    assert found["host.arch"] == "x=y"
    assert found["host.cpu.model.name"] == "Fast One"


@pytest.mark.parametrize("pair", ["team", "=red", "  =red"])
def test_a_malformed_pair_is_left_out_with_a_warning(
    pair: str, caplog: pytest.LogCaptureFixture
) -> None:
    _given.cache_clear()
    variables = {"OTEL_RESOURCE_ATTRIBUTES": f"a=b,{pair},c=d"}
    for _ in range(2):
        found = resource({}, variables)
    assert found == {**resource({}, {}), "a": "b", "c": "d"}
    assert service_name({**variables, "x": ""}) == "xsp"
    said = {record.getMessage() for record in caplog.records}
    assert len(said) == 1
    assert repr(pair.strip()) in said.pop()
    assert "%25" in caplog.text


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "xsp"),
        ({"OTEL_SERVICE_NAME": " "}, "xsp"),
        ({"OTEL_SERVICE_NAME": "search"}, "search"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a%20b"}, "a b"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name="}, "xsp"),
        ({"OTEL_SERVICE_NAME": "one", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "one"),
    ],
)
def test_the_service_is_named_by_the_standard_variables(
    variables: dict[str, str], name: str
) -> None:
    assert service_name(variables) == name
    assert "service.name" not in resource(MEASURED, variables)
