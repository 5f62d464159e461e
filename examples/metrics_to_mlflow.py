"""Give the metrics of a run to MLflow:  training: {metrics: {command: [python3, examples/metrics_to_mlflow.py]}}"""

import json
import os
import pathlib
import sys

import mlflow

run_dir = pathlib.Path(os.environ["ACCEL_OUTPUT_DIR"])
id_file = run_dir / "mlflow_id"  # A run that goes on, on any machine, keeps its id. One that begins anew gets another.
goes_on = os.environ["ACCEL_FIRST_STEP"] != "1" and id_file.exists()
with mlflow.start_run(run_id=id_file.read_text() if goes_on else None, run_name=run_dir.name) as run:
    id_file.write_text(run.info.run_id)
    for line in sys.stdin:
        record = json.loads(line)
        numbers = {name: value for name, value in record.items() if isinstance(value, (int, float)) and name != "step"}
        mlflow.log_metrics(numbers, step=record.get("step"))
