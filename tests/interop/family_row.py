"""Makes one row of docs/models.md: a tiny model of a family is exported, compared, trained, and loaded by transformers."""

import contextlib
import io
import math
import re
import signal
import subprocess

import torch
import transformers

import family_configs
import train_runs
from accel_export import cli

LENGTHS = (16, 40, 150)  # The file is compared with the model, and trained, at these lengths.
ONE_LENGTH = 24  # Instead of them for a file that holds for one length alone; that of the bfloat16 run and the held-out loss.
EXPORT_LIMIT_S = 120
LAUNCH_LIMIT_S = 60
BOUND = 1e-5  # Bound of a relative difference of losses. A larger one is called wrong.
BF16_BOUND = 1e-3  # The same for losses in bfloat16, whose own relative precision is 4e-3.
# In the order in which they are made.
COLUMNS = ["pt2", "trained", "loaded", "bf16", "torchscript", "torchscript trained", "torchscript loaded"]
STEPS, PROCESSES, BATCH = 3, 2, 2
HELD_OUT = (30_000, 16)  # The place in the text and the number of sequences of the held-out loss.
OPTIMIZER = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}


class Failed(Exception):
    pass


class TooLong(BaseException):
    pass


@contextlib.contextmanager
def limit(seconds):
    def stop(number, frame):
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def reason_of(text):
    """Returns the first line of a refusal, with the line of the source if there is one."""
    lines = text.split("hint:")[0].splitlines()
    first = re.sub(r"^accel-export: \S+: ", "", lines[0])
    place = next((re.search(r"([\w.]+\.py:\d+): ?(.*)", line) for line in lines[1:] if ".py:" in line), None)
    text = f"{first.removesuffix(':')} ({place[1]})" if place else first
    text = re.sub(r"/\S*/", "", text).replace("|", "/").strip()
    return text if len(text) < 160 else text[:157] + "..."


def run(accel, *arguments, cwd):
    """Runs accel. Raises Failed with the first line of its error."""
    try:
        done = subprocess.run([accel, *arguments], cwd=cwd, capture_output=True, text=True, timeout=LAUNCH_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"accel {arguments[0]} takes longer than {LAUNCH_LIMIT_S} s") from None
    if done.returncode != 0:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        error = next((line for line in lines if "error:" in line), lines[-1])
        raise Failed(f"accel {arguments[0]}: " + error.split("error:")[-1].strip())


def export(directory, out, accel, *flags):
    """Returns None if the file is written, or the reason."""
    try:
        with limit(EXPORT_LIMIT_S), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main([str(directory), str(out), "--accel", str(accel), *flags])
    except SystemExit as refused:
        return str(refused)
    except TooLong:
        return f"the export takes longer than {EXPORT_LIMIT_S} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def export_at_lengths(folder, name, accel, *flags):
    """Returns (reason or None, the lengths for which the file holds)."""
    reason = export(folder / "hf", folder / name, accel, *flags)
    if reason is None or "--length N" not in reason:
        return reason, LENGTHS
    again = export(folder / "hf", folder / name, accel, *flags, "--length", str(ONE_LENGTH))
    return again, (ONE_LENGTH,)


def relative(found, expected):
    if not math.isfinite(found) or not math.isfinite(expected):
        raise Failed(f"the losses are {found} and {expected}")
    return abs(found - expected) / abs(expected)


def loss_of(forward, tokens):
    logits = forward(tokens[:, :-1])
    logits = logits[0] if isinstance(logits, tuple) else logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def windows(start, count, length=ONE_LENGTH):
    """Returns `count` sequences of the text, each with one token more than `length`."""
    text = torch.frombuffer(bytearray(train_runs.TEXT.read_bytes()), dtype=torch.uint8).long()
    return torch.stack([text[i:i + length + 1] for i in range(start, start + count * length, length)])


@torch.no_grad()
def held_out(model):
    return loss_of(lambda ids: model(ids, use_cache=False).logits, windows(*HELD_OUT)).item()


@torch.no_grad()
def loss_difference(model, path, lengths):
    """Returns the largest difference of the file's loss from the model's own, in training with the same random numbers."""
    file = torch.jit.load(str(path)).train()
    worst = 0.0
    for length in lengths:
        tokens = windows(0, 3, length)
        losses = []
        for forward in (lambda ids: model(ids, use_cache=False).logits, file):
            torch.manual_seed(1)
            losses.append(loss_of(forward, tokens).item())
        worst = max(worst, relative(losses[1], losses[0]))
    return worst


def train_in_python(model, length=ONE_LENGTH, low=None):
    """Returns the loss of each step.

    With `low`, the same model in bfloat16, the step is that of FSDP 2 in mixed precision: the weights are rounded to
    bfloat16, and the ranks' gradients are averaged in bfloat16 before they are applied to those of `model`.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses = []
    for step in range(STEPS):
        tokens = windows(step * PROCESSES * BATCH * length, PROCESSES * BATCH, length)
        optimizer.zero_grad()
        if low is None:
            loss = loss_of(lambda ids: model(ids, use_cache=False).logits, tokens)
            loss.backward()
            losses.append(loss.item())
        else:
            losses.append(low_gradients(model, low.train(), tokens))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return losses


def low_gradients(model, low, tokens):
    """Sets the gradients of `model` to those that the ranks get together from `low`. Returns their loss."""
    with torch.no_grad():
        for master, parameter in zip(model.parameters(), low.parameters(), strict=True):
            parameter.copy_(master)
    losses, gradients = [], []
    for part in tokens.split(BATCH):
        low.zero_grad()
        loss = loss_of(lambda ids: low(ids, use_cache=False).logits, part)
        loss.backward()
        losses.append(loss.item())
        gradients.append([parameter.grad for parameter in low.parameters()])
    for master, *parts in zip(model.parameters(), *gradients):
        parts = [part for part in parts if part is not None]  # An expert without a token has no gradient.
        if parts:
            master.grad = (sum(parts) / PROCESSES).float()
    return sum(losses) / len(losses)


def train_by_accel(folder, accel, model, length, weights=None, **keys):
    """Trains the model file `model` in `folder`. Returns the loss of each step."""
    folder.mkdir()
    section = {"path": str(model)} | ({"weights": str(weights)} if weights else {})
    config = train_runs.config(
        folder, PROCESSES, model=section, max_steps=STEPS, optimizer={"type": "adamw", **OPTIMIZER},
        lr_scheduler={"type": "constant"}, checkpoint={"every": STEPS, "resume": "none"},
        fsdp_config={"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        **{"data.batch_size": BATCH, "data.train.sequence_length": length, **keys})
    run(accel, "launch", config, cwd=folder)
    losses = train_runs.metrics(folder)
    if len(losses) != STEPS:
        raise Failed(f"the run gives {len(losses)} losses, expected {STEPS}")
    return losses


class Row:
    """The cells of a family, each with a verdict and a text. `keep` gets them whenever one is new."""

    def __init__(self, model_type, folder, accel, keep):
        self.folder, self.accel, self.keep, self.cells = folder, accel, keep, {}
        self.eager = {}  # By length: the losses and the model of the training in Python.
        try:
            self.make_model(model_type)
        except Exception as error:
            self.refuse("model", f"{type(error).__name__}: {error}")
            return
        self.program()
        self.torchscript()

    def put(self, column, text, difference, bound=BOUND):
        self.cells[column] = {"verdict": "right" if difference <= bound else "wrong", "text": text}
        self.keep(self.cells)

    def refuse(self, column, reason):
        self.cells[column] = {"verdict": "refused", "text": reason_of(reason)}
        self.keep(self.cells)

    @contextlib.contextmanager
    def cell(self, column):
        """The reason of a failure becomes the cell."""
        try:
            yield
        except Failed as failed:
            self.refuse(column, str(failed))
        except Exception as error:
            self.refuse(column, f"{type(error).__name__}: {error}")

    def make_model(self, model_type):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(family_configs.config_of(model_type), dtype=torch.float32)
        # The noise moves biases and norms away from 0 and 1, so that a mix-up of parameters shows.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        model.save_pretrained(self.folder / "hf")
        # As it comes back, since a directory may not hold every tensor.
        self.model = self.load(self.folder / "hf").train()

    def load(self, directory, dtype=torch.float32):
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)

    def run(self, *arguments):
        run(self.accel, *arguments, cwd=self.folder)

    def program(self):
        """The route of .pt2: the file holds the structure, and the weights are read from the directory."""
        reason, lengths = export_at_lengths(self.folder, "model.pt2", self.accel)
        if reason is not None:
            self.refuse("pt2", reason)
            return
        with self.cell("pt2"):
            self.run("import", "model.pt2", "structure.pt")
            # The directory does not have the buffers that are in no state dict. The structure has their values.
            self.run("load", "hf", "--into", "structure.pt", "--out", "loaded.pt")
            self.compare("pt2", "loaded.pt", lengths)
        with self.cell("trained"):
            self.train("trained", "run", "model.pt2", lengths, weights=self.folder / "hf")
            with self.cell("loaded"):
                self.come_back("loaded", "run", lengths[-1])
        flags = () if len(lengths) > 1 else ("--length", str(ONE_LENGTH))
        reason = export(self.folder / "hf", self.folder / "bf16.pt2", self.accel, "--dtype", "bfloat16", *flags)
        if reason is not None:
            self.refuse("bf16", reason)
            return
        with self.cell("bf16"):
            losses = train_by_accel(self.folder / "run-bf16", self.accel, self.folder / "bf16.pt2", ONE_LENGTH, self.folder / "hf",
                                    mixed_precision="bf16")
            expected = train_in_python(self.load(self.folder / "hf"), low=self.load(self.folder / "hf", torch.bfloat16))
            difference = max(map(relative, losses, expected))
            self.put("bf16", f"{difference:.1g}", difference, BF16_BOUND)

    def torchscript(self):
        """The route of TorchScript: the file holds the weights."""
        reason, lengths = export_at_lengths(self.folder, "model.pt", self.accel, "--weights")
        if reason is not None:
            self.refuse("torchscript", reason)
            return
        with self.cell("torchscript"):
            self.compare("torchscript", "model.pt", lengths)
        with self.cell("torchscript trained"):
            self.train("torchscript trained", "torchscript", "model.pt", lengths)
            with self.cell("torchscript loaded"):
                self.come_back("torchscript loaded", "torchscript", lengths[-1])

    def compare(self, column, file, lengths):
        difference = loss_difference(self.model, self.folder / file, lengths)
        self.put(column, f"{difference:.1g}" + (f" at length {lengths[0]} alone" if len(lengths) == 1 else ""), difference)

    def train(self, column, name, file, lengths, weights=None):
        worst = 0.0
        for length in lengths:
            losses = train_by_accel(self.folder / f"{name}-{length}", self.accel, self.folder / file, length, weights)
            if length not in self.eager:
                model = self.load(self.folder / "hf")
                self.eager[length] = train_in_python(model, length), model.eval()
            worst = max(worst, *map(relative, losses, self.eager[length][0]))
        self.put(column, f"{worst:.1g}", worst)

    def come_back(self, column, name, length):
        """transformers loads what accel trained at this length."""
        back = self.folder / f"{name}-back"
        self.run("merge-weights", f"{name}-{length}/out/checkpoints", back, "--copy-assets", "hf")
        before, expected = held_out(self.load(self.folder / "hf").eval()), held_out(self.eager[length][1])
        if relative(before, expected) < 100 * BOUND:
            raise Failed(f"the training changes the held-out loss from {before:.5f} to {expected:.5f} alone, which shows nothing")
        found = held_out(self.load(back).eval())
        difference = relative(found, expected)
        self.put(column, f"{before:.3f} to {found:.3f}, {difference:.1g}", difference)
