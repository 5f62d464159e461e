"""examples/finetune/run.sh fine-tunes a Hugging Face model on chats, and transformers computes the held-out losses that it says."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import train_runs

EXAMPLE = train_runs.ROOT / "examples/finetune"


@pytest.mark.long
def test_a_model_is_tuned_on_chats(accel, accel_path, tmp_path):
    programs = [str(accel_path.parent), str(train_runs.ROOT / "tools/export"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "PATH": os.pathsep.join(programs), "STEPS": "30"}

    def run(*command):
        done = subprocess.run([*map(str, command)], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run(EXAMPLE / "run.sh")
    assert "packs: documents in one sample do not see each other" in said
    assert "labels of messages: what the assistant says, as the chat template marks it" in said
    assert re.search(r"training.data.train.packing +best_fit", said)

    def by_transformers(directory, steps=0):
        text = run(sys.executable, EXAMPLE / "plain_loop.py", directory, "chats.jsonl", "held-out.jsonl", "--steps", steps, "--tokens", 512)
        return float(re.fullmatch(r"held-out loss (\S+)\n", text)[1])

    def by_accel(directory):
        text = accel("--json", "evaluate", "finetune.yaml", directory, "--data", "held-out.safetensors").stdout
        return json.loads(text)["results"][0]["loss"]

    # Rounding of float32 over the labels of a hundred chats, in packs and in padded batches.
    losses = {name: (by_accel(name), by_transformers(name)) for name in ("tiny", "trained")}
    for ours, theirs in losses.values():
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert losses["trained"][0] < losses["tiny"][0] - 1
    assert by_transformers("tiny", 5) < losses["tiny"][0], "the loop to compare with learns, too"
