"""The monitor's helper and its sources, with a fake of NVML that plays a written table."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest

import xsp
from xsp.clock import SystemClock
from xsp.provider import Readings, Records, Request
from xsp.record.session import plan
from xsp.show.cli.app import run
from xsp.testing import added_providers
from xsp_levels.monitor import amd, host, nvidia, provider, rapl
from xsp_levels.monitor.provider import Monitor

FAKE = Path(__file__).parent / "fake"
PATHS = os.pathsep.join([str(FAKE), *filter(None, sys.path)])
ALONE = Request(frozenset(), monitored=True)


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    provider._available.cache_clear()
    yield
    provider._available.cache_clear()


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that writes the table of the fake GPUs, in this process and helpers."""
    spec = importlib.util.spec_from_file_location("pynvml", FAKE / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("PYTHONPATH", f"{FAKE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus.json"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def write(*table: dict[str, Any]) -> ModuleType:
        whole = [{"uuid": f"GPU-{at}", "watts": 300} | each for at, each in enumerate(table)]
        (tmp_path / "gpus.json").write_text(json.dumps({"gpus": whole}), encoding="utf-8")
        provider._available.cache_clear()
        return fake

    write({})
    return write


def monitored(seconds: float = 0.6) -> tuple[Readings, Records]:
    monitor = Monitor()
    monitor.start(SystemClock(), ALONE)
    time.sleep(seconds)
    records = monitor.stop()
    return monitor.readings(records), records


def metrics(readings: Readings, device: int = 0) -> set[str]:
    return set(readings.filter(pl.col("device") == device)["metric"])


def energy(readings: Readings) -> pl.Series:
    return readings.filter(pl.col("metric") == "energy_j")["value"]


def test_values_have_nvmls_own_times_and_units(gpus: Any) -> None:
    gpus({"gpm": {"2": 10.5, "3": 6.0}, "reasons": 4})
    before = time.monotonic_ns()
    readings, records = monitored()
    assert records.warnings == ()
    joules = readings.filter(pl.col("metric") == "energy_j").unique("time_ns").sort("time_ns")
    grown, lasted_ns = (np.ptp(joules[name].to_numpy()) for name in ("value", "time_ns"))
    assert 1e9 * grown / lasted_ns == pytest.approx(300, rel=1e-3)
    assert set(readings.filter(pl.col("metric") == "power_w")["value"]) == {300.0}
    active = readings.filter(pl.col("metric") == "sm_active_pct")
    assert set(active["value"]) == {10.5}
    assert (active["since_ns"] < active["time_ns"]).all()
    assert readings["time_ns"].is_between(before - 10**8, time.monotonic_ns()).all()
    assert readings.filter(pl.col("metric") == "tensor_active_pct").is_empty()  # N/A is no row


def test_what_is_refused_has_no_row_and_the_rest_is_read(gpus: Any) -> None:
    gpus(
        {
            "refuse": {
                "nvmlDeviceGetFieldValues": "NotSupported",
                "nvmlDeviceGetUtilizationRates": "NoPermission",
                "nvmlDeviceGetTemperature": "Unknown",
            }
        }
    )
    readings, records = monitored()
    known = metrics(readings)
    assert {"energy_j", "power_w", "sm_clock_mhz"} <= known  # by the functions for single values
    assert not known & {"gpu_busy_pct", "temperature_c", "sm_active_pct"}
    assert records.warnings == ()


def test_a_gpu_that_vanishes_ends_its_readings_alone(gpus: Any) -> None:
    gpus({"lost_after_s": 0.3}, {})
    readings, records = monitored(0.9)
    first, second = (readings.filter(pl.col("device") == at)["time_ns"].max() for at in (0, 1))
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert first < second - 2 * 10**8
    assert len(records.warnings) == 1
    assert "GPU 0 vanished" in records.warnings[0]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["GPU-a1", "GPU-a2", "GPU-b3"]),
        ("2,0", ["GPU-b3", "GPU-a1"]),
        ("GPU-b", ["GPU-b3"]),
        ("GPU-a", []),  # names two
        ("1,-1,0", ["GPU-a2"]),  # CUDA ignores all after a wrong entry
        ("7", []),
        ("", []),
    ],
)
def test_cuda_visible_devices_chooses(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[str]
) -> None:
    gpus({"uuid": "GPU-a1"}, {"uuid": "GPU-a2"}, {"uuid": "GPU-b3"})
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = nvidia.Nvidia().devices
    assert [device.handle.uuid for device in devices] == found
    assert [device.number for device in devices] == list(range(len(found)))


@pytest.mark.parametrize("name", ["MIG-77aa", "MIG-GPU-0/3/0"])
def test_a_mig_instance_has_the_energy_of_its_gpu_and_says_so(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    gpus({"mig": {"MIG-77aa": 3}, "gpm": {"2": 40.0}})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    readings, records = monitored()
    assert {"energy_j", "sm_active_pct"} <= metrics(readings)
    assert "gpu_busy_pct" not in metrics(readings)  # of the whole GPU alone
    assert "MIG instance" in records.warnings[0]


def test_gpus_of_two_models_may_be_numbered_otherwise_by_cuda(
    gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    gpus({"name": "A"}, {"name": "B"})
    assert "CUDA_DEVICE_ORDER" in nvidia.Nvidia().notes[0]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert nvidia.Nvidia().notes == []


def test_the_host_is_read_with_the_programs_children(gpus: Any) -> None:
    code = "import time; print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()  # it is a Python of its own by now
        readings = {each.metric: each.value for each in host.Host(os.getpid()).slow()}
        one = {each.metric: each.value for each in host.Host(child.pid).slow()}
    finally:
        child.kill()
        child.communicate()
    assert readings["process_rss_bytes"] > one["process_rss_bytes"] > 0
    assert readings["process_threads"] > one["process_threads"] >= 1
    assert {"user_s", "idle_s", "available_bytes", "disk_read_bytes"} <= readings.keys()


def test_rapl_wraps_at_its_range_and_sums_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path)
    monkeypatch.setattr(rapl, "PERF", tmp_path / "none")
    assert "no counters" in str(rapl.unavailable())
    zones = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1"}
    zones |= {"intel-rapl:0:0": "core", "intel-rapl:2": "psys"}  # the last holds the packages
    for name, what in zones.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(f"{what}\n")
        (tmp_path / name / "energy_uj").write_text("900000\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000000\n")
    assert rapl.unavailable() is None
    source = rapl.Rapl()
    assert [each.value for each in source.fast()] == [0.0]
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100000\n")  # it has wrapped
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("950000\n")
    assert [each.value for each in source.fast()] == [pytest.approx(0.25)]


def test_amds_module_may_raise_anything_on_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amd, "_DRIVER", str(tmp_path))
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert "KeyError" in str(amd.unavailable())


def test_amds_values_have_joules_and_watts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd, "_DRIVER", str(tmp_path))
    (tmp_path / "amdsmi.py").write_text(
        "class AmdSmiException(Exception): pass\n"
        "def amdsmi_init(): pass\n"
        "def amdsmi_get_processor_handles(): return ['a', 'b']\n"
        "def amdsmi_get_energy_count(h):\n"
        "    return {'energy_accumulator': 2_000_000, 'counter_resolution': 15.3}\n"
        "def amdsmi_get_power_info(h):\n"
        "    return {'current_socket_power': 'N/A', 'average_socket_power': 420}\n"
        "def amdsmi_get_gpu_activity(h): raise AmdSmiException\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    source = amd.Amd()
    found = [(each.metric, each.value, each.device) for each in (*source.fast(), *source.slow())]
    assert found == [("energy_j", pytest.approx(30.6), 0), ("power_w", 420.0, 0)]
    monkeypatch.delitem(sys.modules, "amdsmi")


def test_a_helper_that_is_killed_leaves_its_readings_and_a_warning(gpus: Any) -> None:
    monitor = Monitor()
    monitor.start(SystemClock(), ALONE)
    time.sleep(0.2)
    helper = monitor._helper
    assert helper is not None
    os.kill(helper.process, signal.SIGKILL)
    assert helper.has_ended(wait_ms=10_000)
    records = monitor.stop()
    assert monitor.readings(records).height > 0
    assert "ended early" in records.warnings[-1]


def wait_for_end(process: int) -> None:
    for _ in range(1000):
        if not psutil.pid_exists(process) or psutil.Process(process).status() == "zombie":
            return
        time.sleep(0.01)
    pytest.fail("the helper goes on")


def test_the_program_may_close_all_files_and_its_own_stay_open(gpus: Any, tmp_path: Path) -> None:
    code = (
        "import os, sys, xsp\n"
        "from xsp.testing import only_providers\n"
        "from xsp_levels.monitor.provider import Monitor\n"
        "with only_providers(Monitor()):\n"
        "    with xsp.profile(levels=1, progress=False, monitor=True) as prof:\n"
        "        os.closerange(3, 4096)\n"
        "        mine = [os.open(sys.argv[1], os.O_CREAT | os.O_RDWR) for _ in range(600)]\n"
        "for each in mine: os.fstat(each)\n"
        "print(*(warning.message for warning in prof.trace.warnings))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a"],
        stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"PYTHONPATH": PATHS},
    )  # fmt: skip
    assert "closed all files" in done.stdout


def test_another_program_inherits_neither_files_nor_a_child(gpus: Any) -> None:
    look = (
        "import os, time\n"
        "print(*(os.path.realpath(f'/proc/self/fd/{each}') for each in range(3, 99)))\n"
        "time.sleep(0.5)\n"
        "os.waitpid(-1, os.WNOHANG)\n"
    )
    code = (
        "import os, sys\n"
        "from xsp.clock import SystemClock\n"
        "from xsp.provider import Request\n"
        "from xsp_levels.monitor.provider import Monitor\n"
        "Monitor().start(SystemClock(), Request(frozenset(), monitored=True))\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, look], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": PATHS},
    )  # fmt: skip
    assert "xsp-readings" not in done.stdout
    assert "ChildProcessError" in done.stderr


def test_the_helper_dies_with_its_parent(gpus: Any) -> None:
    program = (
        "import os, signal, time\n"
        "from xsp.clock import SystemClock\n"
        "from xsp.provider import Request\n"
        "from xsp_levels.monitor.provider import Monitor\n"
        "monitor = Monitor()\n"
        "monitor.start(SystemClock(), Request(frozenset(), monitored=True))\n"
        "if os.fork() == 0:\n"  # a child that keeps the pipe open
        "    os.close(1)\n"
        "    time.sleep(5)\n"
        "    os._exit(0)\n"
        "print(monitor._helper.process, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE, text=True, check=False,
        env=os.environ | {"PYTHONPATH": PATHS},
    )  # fmt: skip
    wait_for_end(int(done.stdout))


def test_a_profile_that_ends_before_the_helper_has_begun_is_quick_and_has_no_readings(
    gpus: Any,
) -> None:
    monitor = Monitor()
    monitor.start(SystemClock(), Request(frozenset()))  # waits for nothing
    helper = monitor._helper
    assert helper is not None
    records = monitor.stop()
    wait_for_end(helper.process)
    assert monitor.stop().data.rows == b""
    assert monitor.readings(records).schema == monitor.readings(monitor.stop()).schema


def spin(seconds: float = 0.002) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_measure_reads_energy_in_a_pass_of_its_own(gpus: Any, tmp_path: Path) -> None:
    gpus({"watts": 200, "gpm": {"2": 10.0}})
    with added_providers(Monitor()):
        trace = xsp.measure(spin, levels=1, budget=1.5, progress=False)
    root = trace.root.attributes
    assert root["power_w"] == pytest.approx(200, rel=0.01)
    assert root["energy_low_j"] < root["energy_j"] < root["energy_high_j"]
    assert root["energy_source"] == "counter"
    assert root["cpu_pct"] > 10
    assert "monitor" not in {each["pass"] for each in trace.metadata["passes"]}  # no latencies
    again = xsp.load(trace.save(tmp_path / "a.xsp"))
    assert again.readings.equals(trace.readings)
    assert again.readings.height > 10


def test_a_block_is_read_from_a_process_beside_it(gpus: Any) -> None:
    gpus({"watts": 200})
    with added_providers(Monitor()):
        with xsp.profile(levels=1, progress=False) as prof:
            spin(0.8)
        with xsp.profile(levels=1, progress=False, monitor=False) as without:
            spin(0.01)
    root = prof.trace.root
    seconds = (root.latency_ns or 0) / 1e9
    assert root.attributes["energy_j"] == pytest.approx(200 * seconds, rel=0.1)
    assert without.trace.readings.is_empty()
    assert "energy_j" not in without.trace.root.attributes


def test_where_only_the_host_can_be_read_it_is_read_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider, "_available", lambda: ("host",))
    with added_providers(Monitor()):
        unasked = xsp.measure(spin, levels=1, budget=0.5, progress=False)
        asked = xsp.measure(spin, levels=1, budget=0.5, progress=False, monitor=True)
        with pytest.raises(xsp.MeasurementError, match="xsp doctor"):
            xsp.measure(spin, levels=1, energy=True)
    assert unasked.readings.is_empty()
    table = xsp.analyses.host_use(asked)
    assert table["of"].to_list() == ["program", "machine"]
    assert (table["cpu_pct"] > 10).all()
    assert table["cpu_pct"][1] <= 100 * (os.cpu_count() or 0)
    assert set(xsp.analyses.utilization_timeline(asked)["device"]) == {"host"}
    assert "energy_j" not in asked.root.attributes


def test_a_block_too_short_to_read_anything_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_available", lambda: ())  # as if none was read in time
    with added_providers(Monitor()), xsp.profile(levels=1, progress=False, monitor=True) as prof:
        spin()
    assert "few-readings" in {warning.code for warning in prof.trace.warnings}
    with pytest.raises(xsp.AnalysisError, match="too little"):
        xsp.analyses.host_use(prof.trace)


def test_too_few_readings_of_a_gpu_are_told_and_nan_is_none(gpus: Any) -> None:
    gpus({"lost_after_s": 0.4, "gpm": {"2": float("nan")}})
    with added_providers(Monitor()), xsp.profile(levels=1, progress=False) as prof:
        time.sleep(1.5)
    trace = prof.trace
    assert "power_w" in metrics(trace.readings)
    assert "sm_active_pct" not in metrics(trace.readings)
    assert "few-readings" in {warning.code for warning in trace.warnings}
    assert "energy_j" not in trace.root.attributes
    with pytest.raises(xsp.AnalysisError, match="too little"):
        xsp.analyses.energy(trace)


@pytest.mark.parametrize("command", [["energy"], ["profile", "--energy"]])
def test_a_machine_that_tells_no_energy_refuses_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(provider, "_available", lambda: ("host",))
    (tmp_path / "a.py").write_text("raise SystemExit('loaded')")
    with added_providers(Monitor()):
        assert run([*command, f"{tmp_path}/a.py:step", "-o", f"{tmp_path}/a.xsp"]) != 0
    told = capsys.readouterr().err
    assert "Nothing here tells energy" in told
    assert "loaded" not in told
    assert "loading" not in told


def test_groups_of_long_steps_have_energies_of_their_own(gpus: Any) -> None:
    gpus({"watts": 150, "update_s": 0.01})
    with added_providers(Monitor()), xsp.profile(levels=1, progress=False) as prof:
        for _ in range(4):
            with prof.step("long"):
                time.sleep(0.25)
    found = prof.groups["long"].root.attributes
    assert found["energy_how"] == "regressed"
    assert found["energy_j"] == pytest.approx(150 * 0.25, rel=0.2)


def test_perfetto_has_counters_and_analyses_have_the_same_numbers(
    gpus: Any, tmp_path: Path
) -> None:
    gpus({"watts": [[0, 100], [0.4, 300]], "gpm": {"2": 10.4}})
    with added_providers(Monitor()), xsp.profile(levels=1, progress=False) as prof:
        time.sleep(1.5)
    trace = prof.trace
    trace.export(tmp_path / "a.perfetto.json")
    events = json.loads((tmp_path / "a.perfetto.json").read_text())["traceEvents"]
    power = [each for each in events if each["ph"] == "C" and each["name"] == "GPU 0 power_w"]
    table = xsp.analyses.utilization_timeline(trace).filter(device="GPU 0")
    assert [each["args"]["power_w"] for each in power] == table["power_w"].drop_nulls().to_list()
    assert {100.0, 300.0} <= set(table["power_w"])
    said = xsp.analyses.utilization(trace)["summary"].to_list()
    assert said == ["Some kernel ran 98 % of the time, on 10 % of the SMs."]


@pytest.mark.slow
def test_the_command_measures_the_longest_layers_by_themselves(
    gpus: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchvision")
    gpus({"watts": 150})
    monkeypatch.setattr(plan, "ENERGY_NS", 2 * 10**9)  # not half a minute
    monkeypatch.setattr(plan, "IDLE_NS", 12 * 10**8)
    file = tmp_path / "a.xsp"
    arguments = ["energy", "torchvision:squeezenet1_1", "--top", "1", "--budget", "1"]
    with added_providers(Monitor()):
        assert run([*arguments, "-o", str(file)]) == 0
    table = xsp.analyses.energy(xsp.load(file))
    assert table["part"].to_list()[:3] == ["step", "idle", "sample"]
    assert table["how"].to_list() == ["measured"] * 3 + ["repeated"]
    assert table["power_w"].drop_nulls().to_list() == pytest.approx([150] * 3, rel=0.05)
    assert "repeated" in capsys.readouterr().out


def test_repeats_after_a_block_of_one_call_are_not_monitored(gpus: Any) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(8, 8).eval()
    monitor = Monitor()
    begun: list[None] = []
    start = monitor.start
    monitor.start = lambda *asked: begun.append(start(*asked))  # type: ignore[method-assign]
    with added_providers(monitor), torch.no_grad():
        with xsp.profile(levels=1, progress=False, repeat=True) as prof:
            model(torch.ones(4, 8))
        assert prof.trace.root.runs > 1
    assert len(begun) == 1
