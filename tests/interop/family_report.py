"""The text of docs/models.md."""

import platform

import torch
import transformers

import family_row

HEADS = {"pt2": "`.pt2`", "trained": "trained", "loaded": "held-out loss after `from_pretrained`",
         "bf16": "trained in bfloat16", "torchscript": "TorchScript", "torchscript trained": "trained",
         "torchscript loaded": "held-out loss"}
ROUTES = {"`.pt2`": ["pt2", "trained", "loaded"], "`.pt2` in bfloat16": ["bf16"],
          "TorchScript": ["torchscript", "torchscript trained", "torchscript loaded"]}

INTRODUCTION = """# Families of models

`tools/dev models` makes this file, with accel {accel}, transformers {transformers}, torch {torch} and Python {python}, on
CPUs. Each row is a causal-LM family of transformers: a tiny model of random weights in float32, without dropout, that
`save_pretrained` writes into a directory. A number is a relative difference of losses from those of the model in eager
Python. It has to be below {bound:.0e}; a larger one is shown as **wrong**. Instead of a number a cell may have the reason
why there is none, and the cells that need it are empty then.

- **`.pt2`**: `accel-export` writes the structure alone. Before that it compares loss and all gradients with those of the
  model, in training and in evaluation. The number is made afterwards: `accel import` and `accel load --into` make a file
  of the structure and the directory's weights, and its losses in training are compared at the lengths {lengths}.
  "At length {one} alone" says that the model was exported with `--length {one}`; the row has this length instead of the
  three.
- **trained**: `accel launch` trains the `.pt2` file, with the weights of the directory, for {steps} steps of AdamW on
  {processes} processes with FSDP 2, once at each of the lengths. Python trains the same model on the same text. The
  number is the largest difference of the loss in any step.
- **held-out loss after `from_pretrained`**: `accel merge-weights --copy-assets` writes the weights of the run at the
  largest length into a directory, and transformers loads it. The cell has the loss on other text before and after the
  training, and the difference from that of the model which Python trained.
- **trained in bfloat16**: a file of `accel-export --dtype bfloat16` is trained with `mixed_precision: bf16` at length
  {one}. Python computes the same steps: weights rounded to bfloat16, the gradients of the processes averaged in it, and
  the optimizer in float32. Here the bound is {bf16_bound:.0e}, since bfloat16 itself has a precision of 4e-03.
- **TorchScript** and its two columns: the same with a traced file, which holds the weights.
"""


def summary(rows):
    """Yields the lines that say how many families are right, and why the others are not."""
    for route, columns in ROUTES.items():
        sorts = {"right": [], "refused": [], "wrong": []}
        reasons = {}
        for name, row in sorted(rows.items()):
            cells = [row[column] for column in columns if column in row]
            verdicts = {cell["verdict"] for cell in cells}
            if not cells:
                continue
            verdict = next(kind for kind in ("wrong", "refused", "right") if kind in verdicts)
            sorts[verdict].append(name)
            if verdict == "refused":
                reasons.setdefault(next(cell["text"] for cell in cells if cell["verdict"] == "refused"), []).append(name)
        yield (f"Through {route}, {len(sorts['right'])} families are right, {len(sorts['refused'])} are refused or fail, and "
               f"{len(sorts['wrong']) or 'none'} {'is' if len(sorts['wrong']) < 2 else 'are'} wrong"
               + (": " + ", ".join(sorts["wrong"]) if sorts["wrong"] else "") + ".")
        yield ""
        for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
            yield f"- {', '.join(names)}: {reason}"
        if reasons:
            yield ""


def text_of(cell):
    if cell is None:
        return ""
    return f"**wrong**: {cell['text']}" if cell["verdict"] == "wrong" else cell["text"]


def markdown(rows, accel_version):
    done = {name: row for name, row in sorted(rows.items()) if "model" not in row}
    lines = INTRODUCTION.format(
        accel=accel_version, transformers=transformers.__version__, torch=torch.__version__.split("+")[0],
        python=platform.python_version(), bound=family_row.BOUND, bf16_bound=family_row.BF16_BOUND, one=family_row.ONE_LENGTH, steps=family_row.STEPS,
        processes=family_row.PROCESSES, lengths=", ".join(map(str, family_row.LENGTHS[:-1])) + f" and {family_row.LENGTHS[-1]}")
    table = ["| model type | " + " | ".join(HEADS.values()) + " |", "| --- |" + " --- |" * len(HEADS)]
    table += [f"| {name} | " + " | ".join(text_of(row.get(column)) for column in HEADS) + " |" for name, row in done.items()]
    end = ["", "## Summary", "", f"The table has {len(done)} families.", "", *summary(done)]
    for name, row in sorted(rows.items()):
        if "model" in row:
            end.append(f"- no tiny model was made of {name}: {row['model']['text']}")
    return "\n".join([*wrap(paragraphs(lines)), "", *table, *wrap(end)]).rstrip() + "\n"


def paragraphs(text):
    """Returns each paragraph and each item of a list as one line."""
    lines = []
    for line in text.splitlines():
        if lines and lines[-1] and line and not line.startswith("- "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines


def wrap(lines, width=100):
    for line in lines:
        indent = "  " if line.startswith("- ") else ""
        while len(line) > width:
            cut = line.rfind(" ", len(indent) + 1, width + 1)
            if cut <= len(indent):
                break
            yield line[:cut]
            line = indent + line[cut + 1:]
        yield line
