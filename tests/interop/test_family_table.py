"""A row of docs/models.md, and what becomes of a family that ends its process, takes too long, or has other losses."""

import json
import os
import subprocess
import sys
import time

import pytest

import family_report
import family_row
import family_table

pytestmark = pytest.mark.long


def row_of(model_type, accel_path, prepare=""):
    """Makes the row from a process of its own: its forks cannot use autograd if the process that forks has used it."""
    script = ("import json, pathlib, sys, torch, family_row, family_table\n" + prepare +
              "\nprint(json.dumps(family_table.Work(sys.argv[1], pathlib.Path(sys.argv[2])).row()))")
    run = subprocess.run([sys.executable, "-c", script, model_type, accel_path], capture_output=True, text=True, timeout=600,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_a_family_is_right_in_every_column(accel_path):
    """The names of its tensors on disk are not those of the model."""
    row = row_of("gpt_neox", accel_path)
    assert list(row) == family_row.COLUMNS and {cell["verdict"] for cell in row.values()} == {"right"}, row


@pytest.mark.parametrize("trouble, reason", [(lambda: os._exit(9), "the process ends with code 9"),
                                             (lambda: time.sleep(600), "the family takes longer than 2 s")])
def test_a_family_that_gives_no_row_is_a_reason(accel_path, monkeypatch, trouble, reason):
    def work(model_type, folder, accel, keep):
        keep({"pt2": {"verdict": "right", "text": "0"}})
        trouble()

    monkeypatch.setattr(family_row, "Row", work)
    row = family_table.Work("llama", accel_path, limit_s=2).row()
    assert row == {"pt2": {"verdict": "right", "text": "0"}, "trained": {"verdict": "refused", "text": reason}}


OTHER = """
train = family_row.train_in_python
def other(model, *arguments, **keys):
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.1)
    return train(model, *arguments, **keys)
family_row.train_in_python = other
family_row.Row.torchscript = lambda row: None
"""


def test_other_losses_are_wrong(accel_path):
    """The model that Python trains has other embeddings."""
    row = row_of("llama", accel_path, OTHER)
    assert [row[column]["verdict"] for column in ("pt2", "trained", "loaded")] == ["right", "wrong", "wrong"], row
    text = family_report.markdown({"llama": row}, "1.0")
    assert "Through `.pt2`, 0 families are right, 0 are refused or fail, and 1 is wrong: llama." in text
    assert f"| **wrong**: {row['trained']['text']} |" in text
