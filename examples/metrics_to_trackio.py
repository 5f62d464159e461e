"""Give the metrics of a run to trackio:  training: {metrics: {command: [python3, examples/metrics_to_trackio.py]}}"""

import json
import os
import pathlib
import sys

import trackio

run_dir = pathlib.Path(os.environ["ACCEL_OUTPUT_DIR"])
config = json.loads((run_dir / "config.resolved.json").read_text())["training"]
# A run that is started again goes on under its name.
trackio.init(project=os.environ.get("TRACKIO_PROJECT", "accel"), name=run_dir.name, config=config, resume="allow")
for line in sys.stdin:
    record = json.loads(line)
    trackio.log({name: value for name, value in record.items() if isinstance(value, (int, float))}, step=record.get("step"))
trackio.finish()
