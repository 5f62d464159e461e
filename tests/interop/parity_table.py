"""Compares the losses of the model zoo in accel and in torch's fully_shard, step by step.

    tools/dev parity [MODEL...]

It trains every model of the zoo with both, on 1 to 4 ranks and in every variant, and writes docs/parity-table.md.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import zoo_models  # noqa: E402
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", HERE.parents[1] / "build"))

BOUND = 2e-5  # Bound of the difference of two losses in fp32.
# Bound of the relative difference of two gradient norms. A ReLU that only one run crosses changes the norm by 3e-3.
NORM_BOUND = 1e-2
WORLDS = (1, 2, 3, 4)
BATCHES = 5  # They are used in turn, so that the model can learn them.
JOB = {"steps": 20, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "no_decay": ["bias", "norm"]}
PLAIN = {"reshard": True, "recompute": False, "accumulate": 1, "max_norm": None}
VARIANTS = {
    "plain": PLAIN,
    "activation checkpointing": {**PLAIN, "recompute": True},
    "accumulation": {**PLAIN, "accumulate": 2},
    "clipping": {**PLAIN, "max_norm": 0.3},
    "no reshard": {**PLAIN, "reshard": False},
}


@dataclasses.dataclass
class Difference:
    loss: float  # The largest difference of the loss in any step.
    norm: float  # The largest relative difference of the gradient norm.
    learned: float  # How much the loss of one batch falls in Python.
    clipped: int  # The number of steps whose gradient norm is above max_norm.
    own: float | None = None  # own_rounding(), if `loss` is not below BOUND.

    def __str__(self):
        return f"{self.loss:.0e}" if self.own is None else f"{self.loss:.0e} ! ({self.own:.0e})"


def place_of(directory, name):
    return directory / name.replace(" ", "_").replace("/", "_").replace(",", "")


def write(directory, names, worlds=WORLDS):
    """Writes the model of each name, and its batches for the largest number of ranks."""
    for name in names:
        zoo = zoo_models.models()[name]
        place = place_of(directory, name)
        place.mkdir()
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = zoo.make().train()
            batches = [[zoo.inputs() for _ in range(BATCHES)] for _ in range(max(worlds))]
            zoo_models.export(zoo, model, place / "model.pt")
        torch.save(model, place / "eager.pt")
        for rank, ours in enumerate(batches):
            tensors = [tensor for batch in ours for tensor in batch]
            torch.jit.script(zoo_models.Inputs(tensors)).save(str(place / f"inputs{rank}.pt"))


def cases_of(directory, names, variants, world):
    zoo_of = zoo_models.models()
    for name in names:
        zoo = zoo_of[name]
        place = place_of(directory, name)
        # Entries that script and trace the same model share one model in Python.
        peer = place_of(directory, next(other for other in names if zoo_of[other].make is zoo.make))
        for variant in variants:
            if VARIANTS[variant]["recompute"] and "UnitInPlace" in zoo.classes:
                continue  # accel refuses activation checkpointing for this unit.
            out = f"{variant.replace(' ', '_')}.{world}"
            yield {"name": name, "variant": variant, "model": str(place / "model.pt"), "eager": str(peer / "eager.pt"),
                   "inputs": str(place / "inputs{rank}.pt"), "arguments": len(zoo.inputs()), "classes": zoo.classes,
                   "peer_classes": zoo.peer_classes or zoo.classes, "out": str(place / f"{out}.ours.json"),
                   "peer_out": str(peer / f"{out}.theirs.json"), "lr": zoo.lr, **VARIANTS[variant]}


def launch(directory, world, *program):
    config = directory / f"launch{world}.yaml"
    config.write_text(f"distributed_type: FSDP\nuse_cpu: true\nnum_processes: {world}\nmain_process_port: 0\n")
    result = subprocess.run([BUILD / "src/cli/accel", "launch", config, "--", *program], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{program[0]} failed on {world} ranks\n{result.stdout[-4000:]}\n{result.stderr[-8000:]}")


def compare(case, steps):
    ours, theirs = (json.loads(pathlib.Path(case[key]).read_text()) for key in ("out", "peer_out"))
    pairs = {key: list(zip(ours[key], theirs[key], strict=True)) for key in ("loss", "grad_norm")}
    assert len(pairs["loss"]) == steps
    return Difference(
        loss=max(abs(a - b) for a, b in pairs["loss"]), norm=max(abs(a - b) / b for a, b in pairs["grad_norm"]),
        learned=theirs["loss"][0] - theirs["loss"][-BATCHES],
        clipped=sum(norm > (case["max_norm"] or float("inf")) for norm in theirs["grad_norm"]))


def own_rounding(directory, world, case):
    """Returns the largest difference of the loss in fully_shard itself, on `world` ranks, if every weight is multiplied
    by 1 + 2**-24 or 1 + 2**-23. It separates accel's error from the model's own if a case is not below its bound."""
    plain = json.loads(pathlib.Path(case["peer_out"]).read_text())["loss"]
    largest = 0.0
    for factor in (1 + 2**-24, 1 + 2**-23):
        model = torch.load(case["eager"], weights_only=False)
        scale(model, factor)
        other = {**case, "eager": case["out"] + ".scaled.pt", "peer_out": case["out"] + ".scaled.json"}
        torch.save(model, other["eager"])
        job = directory / f"scaled_job{world}.json"
        job.write_text(json.dumps({**JOB, "cases": [other]}))
        launch(directory, world, sys.executable, HERE / "parity_peer.py", job)
        scaled = json.loads(pathlib.Path(other["peer_out"]).read_text())["loss"]
        largest = max(largest, *(abs(a - b) for a, b in zip(plain, scaled, strict=True)))
    return largest


def run(directory, world, names, variants=tuple(VARIANTS)):
    """Returns {(model, variant): Difference} on `world` ranks. One launch of accel and one of Python run all cases."""
    cases = list(cases_of(directory, names, variants, world))
    job, peer_job = directory / f"job{world}.json", directory / f"peer_job{world}.json"
    job.write_text(json.dumps({**JOB, "cases": cases}))
    peer_job.write_text(json.dumps({**JOB, "cases": list({case["peer_out"]: case for case in cases}.values())}))
    launch(directory, world, BUILD / "tests/unit/train/parity-tool", job)
    launch(directory, world, sys.executable, HERE / "parity_peer.py", peer_job)
    found = {}
    for case in cases:
        difference = compare(case, JOB["steps"])
        if difference.loss >= BOUND:
            difference.own = own_rounding(directory, world, case)
        found[case["name"], case["variant"]] = difference
    return found


def scale(model, factor):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.double() * factor)


def rounding(directory, name):
    """Returns the largest difference of the loss in eager Python if every weight is multiplied by 1 + 2**-24."""
    zoo = zoo_models.models()[name]
    buffers = [buffer for _, buffer in torch.jit.load(place_of(directory, name) / "inputs0.pt").named_buffers()]
    count = len(zoo.inputs())
    losses = []
    for factor in (1, 1 + 2**-24):
        model = torch.load(place_of(directory, name) / "eager.pt", weights_only=False).train()
        scale(model, factor)
        optimizer = torch.optim.AdamW(model.parameters(), lr=zoo.lr, betas=JOB["betas"], eps=JOB["eps"],
                                      weight_decay=JOB["weight_decay"])
        losses.append([])
        for step in range(JOB["steps"]):
            first = step % BATCHES * count
            loss = model(*buffers[first:first + count])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
    return max(abs(a - b) for a, b in zip(*losses, strict=True))


HEAD = f"""# Parity with fully_shard

`tools/dev parity` makes this file. Each model of the tests' zoo (small random models from the real
packages) is trained for {JOB['steps']} steps by accel and by Python, on the same batches, in fp32. Python
uses `fully_shard`, `torch.optim.AdamW` and Gloo. A cell is the largest difference between the two
losses in any step. It has to be below {BOUND:g}.

`!` marks a difference that is not below the bound. The number in brackets is the largest difference
between `fully_shard` and itself if every weight is first multiplied by 1 + 2^-24 or 1 + 2^-23. An
empty cell was not tried: accel refuses activation checkpointing for a unit that changes its
argument in place.

"Rounding" is the effect of one rounding error on the model itself: the largest difference of the
losses of eager Python, in one process, if every weight is first multiplied by 1 + 2^-24. The first
steps of AdamW multiply this error by thousands where BatchNorms have few values and ReLUs are
crossed. So the two kinds of ResNet have smaller learning rates than the 3e-3 of the others:

- ResNet18 has 1e-6. With 3e-3 its "rounding" is 9e-2.
- ResNet has 1e-4. With 3e-3, on 3 ranks and with accumulation, accel's losses differed by 4.3e-4.
  In the same steps `fully_shard` differed from itself by 4.3e-4 if the weights were multiplied by
  1 + 2^-23, and by 1.6e-3 if they were multiplied by 1 + 2^-24.
"""


def markdown(found, roundings):
    """Returns the table. `found` is {world size: run()} and `roundings` is {model: rounding()}."""
    text = HEAD
    for world, cells in found.items():
        text += f"\n## {world} {'rank' if world == 1 else 'ranks'}\n\n"
        text += f"| model | rounding | {' | '.join(VARIANTS)} |\n|{' --- |' * (len(VARIANTS) + 2)}\n"
        for name in dict.fromkeys(name for name, _ in cells):
            row = [cells.get((name, variant)) for variant in VARIANTS]
            text += f"| {name} | {roundings[name]:.0e} | " + " | ".join(
                "" if cell is None else str(cell) for cell in row) + " |\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="some models only: prints the table, and writes nothing")
    parser.add_argument("--ranks", type=int, nargs="*", default=WORLDS)
    options = parser.parse_args()
    names = options.models or list(zoo_models.models())
    found, roundings = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        write(directory, names, options.ranks)
        torch.set_num_threads(1)
        for name in names:
            roundings[name] = rounding(directory, name)
        for world in options.ranks:
            found[world] = run(directory, world, names)
            print(f"{world}: largest difference {max(cell.loss for cell in found[world].values()):.1e}, of gradient norms "
                  f"{max(cell.norm for cell in found[world].values()):.1e}", file=sys.stderr)
    text = markdown(found, roundings)
    if options.models or tuple(options.ranks) != WORLDS:
        print(text)
    else:
        out = HERE.parents[1] / "docs/parity-table.md"
        out.write_text(text)
        print(f"{out}: written")
    return any(cell.loss >= BOUND for cells in found.values() for cell in cells.values())


if __name__ == "__main__":
    sys.exit(main())
