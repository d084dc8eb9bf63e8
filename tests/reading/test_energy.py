"""Energy and utilization of readings that are written by hand, or simulated with a known truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from xsp.provider import READING_SCHEMA, Readings
from xsp.reading.monitor import (
    Energy,
    Monitoring,
    attributes_of,
    energy_of,
    layer_energies,
    regressed,
)

S = 1_000_000_000


def readings(*parts: tuple[str, Any, Any], device: int = 0) -> Readings:
    """Return readings of metrics: each a name, times in seconds, and values."""
    frames = [
        pl.DataFrame(
            {
                "time_ns": (np.asarray(times, float) * S).astype(np.int64),
                "device": np.full(len(times), device),
                "metric": [metric] * len(times),
                "value": np.broadcast_to(np.asarray(values, float), len(times)),
            }
        )
        for metric, times, values in parts
    ]
    table = pl.concat(frames).with_columns(since_ns=pl.lit(None, pl.Int64))
    return table.select(pl.col(name).cast(dtype) for name, dtype in READING_SCHEMA.items())


def simulated(
    seed: int, lasts_s: float, *, watts: float = 400.0, period_s: float = 0.1
) -> tuple[Readings, float]:
    """Return a counter that moves every 20 ms and is read every 50 ms, late; and the true joules.

    Power alternates between two values within a step of `period_s`, has noise and drifts.
    """
    random = np.random.default_rng(seed)
    fine_s = 0.001
    at = np.arange(-0.5, lasts_s + 0.5, fine_s)
    power = watts * (1 + 0.3 * np.sign(np.sin(2 * np.pi * at / period_s)))
    noise = np.repeat(random.normal(size=len(at) // 20 + 1), 20)[: len(at)]
    power *= 1 + 0.03 * at / lasts_s + 0.03 * noise
    joules = np.concatenate([[0.0], np.cumsum(power * fine_s)])[:-1]
    truth = float(np.interp(lasts_s, at, joules) - np.interp(0.0, at, joules))
    polls = np.arange(-0.5, lasts_s + 0.45, 0.05)
    polls += random.exponential(0.0005, len(polls))
    updates = np.floor(polls / 0.02) * 0.02 - random.uniform(0, 0.02)
    counter = np.round(np.interp(updates, at, joules), 3) + 7000
    return readings(("energy_j", polls, counter)), truth


def only(table: Readings, lasts_s: float, *, steady: bool = True) -> Energy:
    [found] = energy_of(table, 0, int(lasts_s * S), steady=steady)
    return found


@pytest.mark.parametrize("steady", [True, False])
def test_energy_of_ten_seconds_is_within_two_per_cent_and_its_interval_holds(steady: bool) -> None:
    inside = []
    for seed in range(60):
        table, truth = simulated(seed, 10.0)
        found = only(table, 10.0, steady=steady)
        low, high = found.ends
        assert found.joules == pytest.approx(truth, rel=0.02)
        assert high - low < 0.02 * truth
        inside.append(low <= truth <= high)
    assert np.mean(inside) >= 0.9


@pytest.mark.parametrize("lasts_s", [0.3, 1.0, 3.0])
def test_intervals_of_short_stretches_hold_as_well(lasts_s: float) -> None:
    hits = []
    for seed in range(60):
        table, truth = simulated(seed, lasts_s, period_s=0.01)
        low, high = only(table, lasts_s).ends
        hits.append(low <= truth <= high)
    assert np.mean(hits) >= 0.9


def test_a_programs_energy_is_the_difference_of_its_ends_whatever_power_does() -> None:
    times = np.arange(-0.1, 6.1, 0.05)
    joules = np.where(times < 5, 100 * times, 500 + 600 * (times - 5))  # most of it at the end
    found = only(readings(("energy_j", times, joules)), 6.0, steady=False)
    assert found.joules == pytest.approx(1100, rel=1e-6)
    assert found.source == "counter"


def test_a_counter_that_goes_back_counts_from_there() -> None:
    times = np.arange(0, 10, 0.1)
    joules = np.where(times < 2, 9000 + 50 * times, 50 * times - 100)  # the driver began anew
    assert only(readings(("energy_j", times, joules)), 10.0).joules == pytest.approx(500, rel=0.01)


def test_too_few_updates_are_no_energy() -> None:
    nothing: list[Callable[[], Readings]] = [
        lambda: readings(("energy_j", [0, 1, 2], [5, 5, 5])),
        lambda: readings(("energy_j", [0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4])),  # of ten seconds
        lambda: readings(("power_w", [5], [100])),
    ]
    for make in nothing:
        assert energy_of(make(), 0, 10 * S, steady=True) == []
        assert energy_of(make(), 0, 10 * S, steady=False) == []


def of(
    table: Readings, lasts_s: float = 10.0, steps: int = 100
) -> tuple[dict[str, Any], list[str]]:
    found, warnings = attributes_of(Monitoring(table, int(lasts_s * S), steps))
    return found, [each.message for each in warnings]


TIMES = np.arange(-2, 10.01, 0.05)


def test_energy_is_of_one_step_and_idle_power_stands_apart() -> None:
    joules = np.where(TIMES < 0, 60 * TIMES, 300 * TIMES)
    found, warnings = of(readings(("energy_j", TIMES, joules)))
    assert found["energy_j"] == pytest.approx(30)
    assert found["energy_low_j"] < 30 < found["energy_high_j"]
    assert found["power_w"] == pytest.approx(300)
    assert found["idle_power_w"] == pytest.approx(60)
    assert (found["energy_source"], found["energy_of"]) == ("counter", "devices")
    assert warnings == []


def test_devices_are_summed_and_one_without_counter_is_by_power() -> None:
    first = readings(("energy_j", TIMES, 300 * TIMES))
    second = readings(("energy_j", TIMES, 5), ("power_w", TIMES, 100), device=1)
    found, _ = of(pl.concat([first, second]))
    assert found["energy_j"] == pytest.approx(40)
    assert found["energy_source"] == "power"


def test_processors_count_where_there_is_no_device() -> None:
    host = readings(("processor_energy_j", TIMES, 80 * TIMES), device=-1)
    found, _ = of(host)
    assert found["energy_j"] == pytest.approx(8)
    assert found["energy_of"] == "processor"
    found, _ = of(pl.concat([host, readings(("energy_j", TIMES, 300 * TIMES))]))
    assert found["energy_j"] == pytest.approx(30)


@pytest.mark.parametrize(("scale", "told"), [(1.74, True), (0.6, True), (1.03, False)])
def test_counter_and_power_that_contradict_each_other_are_told(scale: float, told: bool) -> None:
    table = readings(("energy_j", TIMES, scale * 300 * TIMES), ("power_w", TIMES, 300))
    found, warnings = of(table)
    assert found["energy_j"] == pytest.approx(30 * scale)
    assert bool(warnings) == told
    assert not told or f"({100 * (scale - 1):+.0f} %)" in warnings[0]


def test_shares_are_means_of_the_steps_and_throttling_has_its_reasons() -> None:
    at = np.arange(-1, 10, 0.5)
    reasons = np.where(at < 5, 0x1, np.where(at < 9, 0x4, 0x4 | 0x40))
    table = readings(
        ("gpu_busy_pct", at, np.where(at < 1, 0, 98)),  # a mean over the second before
        ("sm_active_pct", at, np.where(at < 0, 50, 10)),
        ("temperature_c", at, at + 60),
        ("throttle_reasons", at, reasons),
    )
    found, _ = of(table)
    assert found["gpu_busy_pct"] == 98
    assert found["sm_active_pct"] == 10
    assert found["temperature_c"] == 69.5
    assert found["throttled_pct"] == 50
    assert found["throttle_reasons"] == ["power cap", "heat (hardware)"]
    assert "energy_j" not in found


def test_what_nothing_tells_is_no_attribute() -> None:
    assert of(pl.DataFrame(schema=READING_SCHEMA)) == ({}, [])


def test_the_programs_cpu_and_disk_are_rates_of_counters() -> None:
    at = np.arange(0, 10, 0.1)
    table = readings(
        ("process_s", at, 5 + 1.5 * at),
        ("process_read_bytes", at, 1e6 * at),
        ("process_rss_bytes", at, np.where(at < 5, 2e9, 1e9)),
        device=-1,
    )
    found, _ = of(table)
    assert found["cpu_pct"] == pytest.approx(150)
    assert found["read_bytes"] == pytest.approx(1e5)
    assert found["rss_bytes"] == 2_000_000_000


def turns(lasts_s: float, watts: list[float], turn_s: float) -> tuple[Readings, list[Any]]:
    """Return the readings beside parts that take turns, each with a power, and their stretches."""
    fine_s = 0.001
    at = np.arange(-0.2, lasts_s + 0.2, fine_s)
    part = np.floor(at / turn_s).astype(int) % len(watts)
    joules = np.cumsum(np.array(watts)[part] * fine_s)
    polls = np.arange(-0.2, lasts_s + 0.15, 0.02)
    begins = np.arange(0, lasts_s, turn_s) * S
    of_part = [begins[number :: len(watts)] for number in range(len(watts))]
    stretches = [(mine, mine + turn_s * S) for mine in of_part]
    return readings(("energy_j", polls, np.interp(polls, at, joules))), stretches


def test_parts_that_take_turns_have_energies_of_their_own_and_not_a_share_of_time() -> None:
    table, stretches = turns(20.0, [100, 250, 600], 0.25)
    found = regressed(table, stretches)
    for energy, watts, (begins, ends) in zip(found, [100, 250, 600], stretches, strict=True):
        truth = watts * float((ends - begins).sum()) / S
        assert energy is not None
        assert energy.joules == pytest.approx(truth, rel=0.05)


def test_parts_too_short_for_the_counter_have_no_energy() -> None:
    table, stretches = turns(20.0, [100, 250, 600], 0.03)
    assert regressed(table, stretches) == [None, None, None]
    random = np.random.default_rng(1)
    noise = pl.Series(np.where(random.random(table.height) < 0.02, 2e4, 0.0)).cum_sum()
    noisy = table.with_columns(value=pl.col("value") + noise)
    _, long = turns(20.0, [100, 250, 600], 2.0)
    assert None in regressed(noisy, long)  # an interval of more than 20 %


def layered(lasts_ns: int) -> pl.DataFrame:
    """Make the spans of a step whose second layer keeps the device three times as long.

    The host has asked for everything in the first tenth.
    """
    rows = [
        (1, None, "region", 0, 1.0),
        (2, 1, "layer", 0, 0.05),
        (3, 1, "layer", 0.05, 0.1),
        (4, 2, "kernel", 0, 0.25),
        (5, 3, "kernel", 0.25, 0.5),
        (6, 3, "kernel", 0.5, 1.0),
    ]
    return pl.DataFrame(
        {
            "span_id": [row[0] for row in rows],
            "parent_id": [row[1] for row in rows],
            "kind": [row[2] for row in rows],
            "start_ns": [int(row[3] * lasts_ns) for row in rows],
            "end_ns": [int(row[4] * lasts_ns) for row in rows],
            "attributes": [{"exact": True}] * len(rows),
        }
    )


def test_layers_of_long_steps_have_energies_by_regression() -> None:
    step_s, steps = 1.2, 25
    table, _ = turns(step_s * steps, [500, 200, 200, 200], step_s / 4)
    begins = tuple(int(number * step_s * S) for number in range(steps))
    monitoring = Monitoring(table, int(step_s * steps * S), steps, begins)
    found = layer_energies(layered(10**9), monitoring)
    assert found[1].joules == pytest.approx(500 * 0.3, rel=0.05)
    assert found[2].joules == pytest.approx(200 * 0.9, rel=0.05)
    assert layer_energies(layered(10**9), Monitoring(table, 10 * S, 1000)) == {}  # very short ones
    on_host = layered(10**9).filter(pl.col("kind") != "kernel")
    assert layer_energies(on_host, monitoring) == {}
