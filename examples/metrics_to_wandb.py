"""Give the metrics of a run to Weights & Biases:  training: {metrics: {command: [python3, examples/metrics_to_wandb.py]}}"""

import json
import os
import pathlib
import sys
import uuid

import wandb

run_dir = pathlib.Path(os.environ["ACCEL_OUTPUT_DIR"])
id_file = run_dir / "wandb_id"  # A run that goes on, on any machine, keeps its id. One that begins anew gets another.
if os.environ["ACCEL_FIRST_STEP"] == "1" or not id_file.exists():
    id_file.write_text(uuid.uuid4().hex[:8])
config = json.loads((run_dir / "config.resolved.json").read_text())
run = wandb.init(id=id_file.read_text(), resume="allow", name=run_dir.name, config=config, dir=run_dir)
for line in sys.stdin:
    record = json.loads(line)
    run.log({name: value for name, value in record.items() if isinstance(value, (int, float))}, step=record.get("step"))
run.finish()
