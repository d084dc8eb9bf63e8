"""Stands for Nsight Compute's `ncu`: checks its arguments, runs the program, prints a raw page.

FAKE_NCU names a JSON file: `launches` (full name, grid, block, counters by name), and `mode`.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

VALUED = {
    "--page", "--print-units", "--target-processes", "--replay-mode", "--clock-control",
    "--profile-from-start", "--kernel-name-base", "--kernel-name", "--launch-count", "--kill",
    "--section", "--metrics",
}  # fmt: skip
KERNEL = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)


UNITS = {"gpu__time_duration": "ns", "dram__bytes_read": "byte", "dram__bytes_write": "byte",
         "sm__warps_active": "%"}  # fmt: skip


def main() -> int:
    arguments, options = sys.argv[1:], {}
    while arguments and arguments[0].startswith("-"):
        name = arguments.pop(0)
        if name in VALUED:
            options[name] = arguments.pop(0)
        elif name != "--csv":
            sys.stdout.write(f"==ERROR== unrecognised option '{name}'\n")
            return 1
    job = json.loads(Path(os.environ["FAKE_NCU"]).read_text())
    if job["mode"] == "hang":
        time.sleep(600)
    if job["mode"] == "refuse":
        sys.stdout.write("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
        return 1
    sys.stdout.write("==PROF== Connected to process 7\n")
    code = subprocess.call(arguments)
    if code:
        sys.stdout.write(f"==ERROR== The application returned an error code ({code}).\n")
        return code
    pattern = re.compile(options["--kernel-name"].removeprefix("regex:"))
    launches = [
        launch
        for launch in job["launches"]
        if pattern.match(launch["name"].split("(")[0].split("<")[0].split("::")[-1].split(" ")[-1])
    ][: int(options["--launch-count"])]
    if not launches:
        sys.stdout.write("==WARNING== No kernels were profiled.\n")
        return 0
    names = list(launches[0]["counters"])
    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
    writer.writerow([*KERNEL, *names])
    writer.writerow([""] * len(KERNEL) + [UNITS.get(n.split(".")[0], "") for n in names])
    for number, one in enumerate(launches):
        size = [str(tuple(one[key])) for key in ("block", "grid")]
        writer.writerow(
            [number, 7, "python", "box", one["name"], 1, 7, *size, 0, "9.0"]
            + [one["counters"][name] for name in names]
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
