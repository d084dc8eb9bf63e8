"""docker-compose.yml, jaeger.yaml and scripts/build-jaeger agree.

The engine may be missing where tests run, and so may `docker compose config`: the
files are looked at by what a reader of them would check.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from xsp.show.cli import jaeger

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


@pytest.fixture(scope="module")
def configuration() -> str:
    return jaeger.CONFIGURATION.read_text()


def test_the_image_is_the_release_that_the_script_builds(compose: dict[str, Any]) -> None:
    script = (ROOT / "scripts" / "build-jaeger").read_text()
    images = {service["image"] for service in compose["services"].values()}
    assert images == {f"jaegertracing/jaeger:{jaeger.RELEASE}"}
    assert f'release="{jaeger.RELEASE}"' in script
    # Releases 2.x and the Go module's 1.x are one source: 2.13 is 1.76.
    major, minor, patch = map(int, jaeger.RELEASE.split("."))
    assert major == 2
    assert f"jaegertracing/jaeger@v1.{minor + 63}.{patch}" in script


def test_ports_are_published_on_loopback_and_are_those_of_the_configuration(
    compose: dict[str, Any],
) -> None:
    published = [mapping.split(":") for mapping in compose["services"]["jaeger"]["ports"]]
    assert {host for host, *_ in published} == {"127.0.0.1"}
    assert all(outside == inside for _, outside, inside in published)
    wanted = {jaeger.UI, jaeger.OTLP_GRPC, jaeger.OTLP_HTTP, jaeger.HEALTH}
    assert {int(outside) for _, outside, _ in published} == {port.default for port in wanted}
    assert not any(
        "ports" in other for name, other in compose["services"].items() if name != "jaeger"
    )


def test_what_is_mounted_from_here_is_read_only_and_used(compose: dict[str, Any]) -> None:
    service = compose["services"]["jaeger"]
    mounts = [mount.split(":") for mount in service["volumes"] if mount.startswith("./")]
    assert {tuple(rest) for _, _, *rest in mounts} == {("ro",)}
    inside = {(ROOT / source).name: target for source, target, _ in mounts}
    assert service["command"] == ["--config", inside[jaeger.CONFIGURATION.name]]
    assert service["environment"]["XSP_JAEGER_UI_CONFIG"] == inside[jaeger.UI_CONFIGURATION.name]


def test_the_traces_are_on_the_volume_in_a_folder_that_jaegers_user_owns(
    compose: dict[str, Any],
) -> None:
    data = compose["services"]["jaeger"]["environment"]["XSP_JAEGER_DATA"]
    (volume,) = (mount for mount in compose["services"]["jaeger"]["volumes"] if mount[0] != ".")
    _, place = volume.split(":")
    assert data.startswith(f"{place}/")
    before = compose["services"]["jaeger-data"]
    assert before["volumes"] == [volume]
    assert f"chown -R 10001:10001 {data}" in before["command"][0]
    assert compose["services"]["jaeger"]["depends_on"]["jaeger-data"] == {
        "condition": "service_completed_successfully"
    }


def test_variables_and_their_defaults_are_the_modules(configuration: str) -> None:
    found = dict(re.findall(r"\$\{env:(\w+):-([^}]*)\}", configuration))
    assert {name: int(found[name]) for name in found if name.endswith("_PORT")} == {
        port.variable: port.default for port in jaeger.PORTS
    }
    assert found["JAEGER_LISTEN_HOST"] == "127.0.0.1"
    assert "max_clock_skew_adjust: 0s\n" in configuration


def test_jaeger_stores_before_it_acknowledges(configuration: str) -> None:
    read = yaml.safe_load(configuration)
    assert read["service"]["pipelines"]["traces"]["processors"] == []
    assert "queue" not in read["exporters"]["jaeger_storage_exporter"]


def test_the_pages_configuration_shows_our_tags_first_and_reaches_as_far_back_as_is_kept(
    configuration: str,
) -> None:
    pages = json.loads(jaeger.UI_CONFIGURATION.read_text())
    assert pages["topTagPrefixes"][-1] == "xsp."
    (hours,) = re.findall(r"spans: (\d+)h", configuration)
    (weeks,) = re.findall(r"(\d+)w", pages["search"]["maxLookback"]["value"])
    assert int(hours) == int(weeks) * 7 * 24
