"""Trains the same .pt2 files with two workers, prints the losses of each step, and compares them bit for bit.

    python two_workers.py ACCEL WORKER WORKER
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import pt2_models  # noqa: E402
import train_runs  # noqa: E402

accel, *workers = sys.argv[1:]
equal = True
with tempfile.TemporaryDirectory() as directory:
    directory = pathlib.Path(directory)
    train_runs.export_pt2(directory / "Block.pt2", train_runs.export(directory / "gpt.pt"))
    pt2_models.made("llama", directory / "LlamaDecoderLayer.pt2")
    for layer in ("Block", "LlamaDecoderLayer"):
        found = []
        for worker in workers:
            run = pathlib.Path(tempfile.mkdtemp(dir=directory))
            config = train_runs.config(run, **{"model.path": str(directory / f"{layer}.pt2"), "launch.worker": worker,
                                               "fsdp_config.fsdp_transformer_layer_cls_to_wrap": layer})
            done = subprocess.run([accel, "launch", config], stderr=subprocess.PIPE, text=True)
            if done.returncode != 0:
                sys.exit(f"{done.stderr}{worker}: the run failed")
            found.append(train_runs.metrics(run))
        for step, (first, second) in enumerate(zip(*found, strict=True), 1):
            equal = equal and first == second
            print(f"{layer}  step {step:2}  {first!r}  {second!r}" + ("" if first == second else "  different"))
print("all losses are the same bits" if equal else "the losses differ")
sys.exit(0 if equal else 1)
