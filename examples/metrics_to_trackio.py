"""Give the metrics of a run to trackio:  training: {metrics: {command: [python3, examples/metrics_to_trackio.py]}}"""

import json
import os
import pathlib
import sys
import uuid

import trackio

run_dir = pathlib.Path(os.environ["ACCEL_OUTPUT_DIR"])
name_file = run_dir / "trackio_name"  # A run that goes on keeps its name, by which trackio knows it. Another has another.
if os.environ["ACCEL_FIRST_STEP"] == "1" or not name_file.exists():
    name_file.write_text(f"{run_dir.name}-{uuid.uuid4().hex[:8]}")
config = json.loads((run_dir / "config.resolved.json").read_text())["training"]
project = os.environ.get("TRACKIO_PROJECT", "accel")
trackio.init(project=project, name=name_file.read_text(), config=config, resume="allow")
for line in sys.stdin:
    record = json.loads(line)
    trackio.log({name: value for name, value in record.items() if isinstance(value, (int, float))}, step=record.get("step"))
trackio.finish()
