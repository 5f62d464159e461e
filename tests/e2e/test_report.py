"""The page of `accel report` shows the numbers of metrics.jsonl, and a browser draws it in light and dark."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as tree

import numpy
import pytest

import needs
import train_runs

# pillow is beside the environment; see make_zoo in tools/dev.
sys.path.append(os.environ.get("ACCEL_ZOO_PACKAGES", ""))
QUANTITIES = {"Learning rate": "lr", "Norm of the gradient": "grad_norm", "Tokens per second": "tokens_per_s",
              "Peak memory of the process of rank 0": "max_rss_bytes", "Training waited for a checkpoint": "stall_s",
              "Time until a checkpoint was complete": "save_time_s"}


@pytest.fixture(scope="module")
def runs(accel_path, made_once):
    """A directory with two runs: `a`, which was stopped and went on, and `b` with another learning rate."""

    def make(directory):
        held_out = directory / "eval.txt"
        held_out.write_bytes(train_runs.TEXT.read_bytes()[:2000])
        train_runs.export(directory / "gpt.pt")
        for name, steps, lr in (("a", 6, 3e-3), ("a", 12, 3e-3), ("b", 12, 1e-3)):
            config = train_runs.config(directory, 2, max_steps=steps, output_dir=str(directory / name), eval_every=3, **{
                "optimizer.lr": lr, "checkpoint": {"every": 3, "resume": "auto"}, "lr_scheduler.total_steps": 12,
                "data.eval": {"format": "text", "path": str(held_out), "sequence_length": 32}})
            subprocess.run([accel_path, "launch", config], check=True, capture_output=True, timeout=300)

    return made_once("report-runs", make)


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def of(run, name):
    return [(record["step"], record[name]) for record in records(run) if name in record]


def charts(page):
    """The svg elements of a page by their titles."""
    found = [tree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]
    return {svg.get("aria-label"): svg for svg in found}


def lines(svg):
    """The points of each curve: (step, value, x, y)."""
    return {group.get("data-line"): [tuple(float(circle.get(name)) for name in ("data-step", "data-value", "cx", "cy"))
                                     for circle in group.iter("circle")]
            for group in svg.iter("g")}


def tables(page):
    """The rows of each table with an id, as lists of texts."""

    class Reader(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.found, self.rows, self.is_in_cell = {}, None, False

        def handle_starttag(self, tag, attributes):
            if tag == "table":
                self.rows = self.found.setdefault(dict(attributes)["id"], [])
            elif tag == "tr":
                self.rows.append([])
            elif tag in ("td", "th"):
                self.rows[-1].append("")
            self.is_in_cell = self.is_in_cell or tag in ("td", "th")

        def handle_endtag(self, tag):
            self.is_in_cell = self.is_in_cell and tag not in ("td", "th")

        def handle_data(self, data):
            if self.is_in_cell:
                self.rows[-1][-1] += data

    reader = Reader()
    reader.feed(page)
    return reader.found


def require_scale(svg):
    """Each point lies where the labels of the axes say: on a straight line through the labels, or a logarithmic one."""
    for axis, place, value, coordinate in (("x", "x", 0, 2), ("y", "y", 1, 3)):
        labels = [(float(text.get("data-value")), float(text.get(place)) - (4 if axis == "y" else 0))
                  for text in svg.iter("text") if text.get("class") == f"tick {axis}"]
        points = [point for line in lines(svg).values() for point in line]
        values, places = numpy.array(labels).T
        assert len(labels) >= 2, svg.get("aria-label")
        is_log = axis == "y" and abs(numpy.polyfit(values, places, 1, full=True)[1].sum()) > 1
        scale = numpy.log10 if is_log else lambda number: number
        slope, offset = numpy.polyfit(scale(values), places, 1)
        for point in points:
            assert slope * scale(point[value]) + offset == pytest.approx(point[coordinate], abs=0.05), svg.get("aria-label")


@pytest.mark.long
def test_the_numbers_of_a_page_are_those_of_metrics_jsonl(accel, runs, tmp_path):
    said = accel("report", runs / "a", "--output", tmp_path / "a.html").stdout
    assert said.startswith(f"{tmp_path}/a.html: 1 run, ")
    page = (tmp_path / "a.html").read_text()
    found = charts(page)
    assert list(found) == ["Loss, and held-out loss (dashed)", *QUANTITIES]
    loss = lines(found.pop("Loss, and held-out loss (dashed)"))
    assert [point[:2] for point in loss[f"{runs}/a loss"]] == of(runs / "a", "loss") and len(of(runs / "a", "loss")) == 12
    assert [point[:2] for point in loss[f"{runs}/a held-out loss"]] == of(runs / "a", "eval_loss")
    for title, svg in found.items():
        [points] = lines(svg).values()
        assert [point[:2] for point in points] == of(runs / "a", QUANTITIES[title]), title
    for svg in charts(page).values():
        require_scale(svg)
        [mark] = [line for line in svg.iter("line") if line.get("class").startswith("mark")]
        assert mark.get("data-step") == "7" and mark.find("title").text == f"{runs}/a: attempt 1 begins with step 7"
    results = dict(zip(*tables(page)["results"], strict=True))
    least = min(of(runs / "a", "eval_loss"), key=lambda point: point[1])
    assert (results["Steps"], results["Samples"], results["Attempts"]) == ("12 of 12", str(12 * 2 * 4), "2")
    assert results["Last loss"] == f"{of(runs / 'a', 'loss')[-1][1]:.4f}"
    assert results["Least held-out loss"] == f"{least[1]:.4f} at step {least[0]}"
    times = tables(page)["times"]
    spent = [record for record in records(runs / "a") if "run_time_s" in record]
    assert [row[0] for row in times if len(row) > 1] == ["Run", f"{runs}/a, attempt 0", f"{runs}/a, attempt 1"]
    for row, record in zip(times[1::2], spent, strict=True):
        assert row[2 + 2].endswith(f"({100 * record['forward_s'] / record['run_time_s']:.0f}%)")
    settings = dict(tables(page)["settings"][1:])
    resolved = json.loads((runs / "a/config.resolved.json").read_text())
    assert json.loads(settings["training.optimizer.lr"]) == resolved["training"]["optimizer"]["lr"] == 3e-3
    assert json.loads(settings["training.optimizer.betas"]) == resolved["training"]["optimizer"]["betas"]


def test_several_runs_share_the_charts_and_differ_in_settings(accel, runs):
    said = json.loads(accel("report", "--json", "a", "b", cwd=runs).stdout)
    page = (runs / "a/report.html").read_text()
    assert said == {"file": "a/report.html", "bytes": len(page.encode()), "runs": 2}
    for svg in charts(page).values():
        assert {"a", "b"} == {name.split()[0] for name in lines(svg)}
        require_scale(svg)
    for name in ("a", "b"):
        points = lines(charts(page)["Norm of the gradient"])[name]
        assert [point[:2] for point in points] == of(runs / name, "grad_norm")
    settings = {row[0]: row[1:] for row in tables(page)["settings"]}
    assert settings.pop("Setting") == ["a", "b"]
    assert settings == {"training.optimizer.lr": ["0.003", "0.001"]}


def test_names_and_values_are_not_markup(accel, tmp_path):
    hostile = "<img src=x onerror=alert(1)>\"'&\u2028\x1b[31m"
    run = tmp_path / hostile
    run.mkdir()
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0, hostile: 5, "checkpoint_error": hostile}) + "\n")
    (run / "config.resolved.json").write_text(json.dumps({"training": {hostile: hostile, "max_steps": hostile}}))
    accel("report", hostile)
    page = (run / "report.html").read_text()
    assert "<img" not in page and "\x1b" not in page and "\u2028" not in page
    [svg] = charts(page).values()
    [name] = lines(svg)
    assert name == "<img src=x onerror=alert(1)>\"'&\\u2028\\x1b[31m loss"
    settings = dict(tables(page)["settings"][1:])
    assert "<img src=x onerror=alert(1)>" in settings[next(key for key in settings if "img" in key)]


@pytest.mark.parametrize("numbers", [
    {"loss": 1e308, "lr": -1e308, "grad_norm": None}, {"loss": "5", "lr": [1], "grad_norm": True}, {"loss": 5e-324, "lr": 0},
    {"run_time_s": None, "data_s": 1e300}, {"run_time_s": -1, "data_s": 1e300}, {"time": 1e308, "attempt": -1e300, "loss": 2}])
def test_numbers_that_no_run_writes_make_a_page(accel, tmp_path, numbers):
    lines_ = [json.dumps({"step": step, **numbers}) for step in (-2**63, 0, 5, 5, 2**64 - 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines_) + "\n")
    accel("report", ".")
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"[\"> (]-?(nan|inf)\b", page)
    for svg in charts(page).values():
        lines(svg)


def test_folders_that_are_not_runs(accel, runs, tmp_path):
    error = accel("report", runs, code=2).stderr
    assert f"'{runs}' is not the output_dir of a training: it has no metrics.jsonl" in error and "hint: " in error
    assert "there is no such directory" in accel("report", runs / "a", tmp_path / "x", code=2).stderr
    shutil.copytree(runs / "b", tmp_path / "b")
    (tmp_path / "b/report.html").write_text("an earlier page")
    with open(tmp_path / "b/metrics.jsonl", "a") as file:
        file.write("nonsense\n")
    count = len(records(runs / "b"))
    assert f"'b/metrics.jsonl', line {count + 1}: it is not a JSON object" in accel("report", "b", code=5).stderr
    assert (tmp_path / "b/report.html").read_text() == "an earlier page"
    assert "required" in accel("report", code=2).stderr


@pytest.mark.long
@pytest.mark.parametrize("scheme, back, first", [(1, "#f6f7f9", "#2563c9"), (0, "#14171c", "#6ea8ff")], ids=["light", "dark"])
def test_a_browser_draws_the_page(accel, runs, tmp_path, scheme, back, first):
    """The browser paints the background and the curves in the colors of the scheme, and finds every table and chart."""
    browser = shutil.which("chromium")
    if browser is None:
        needs.missing("there is no chromium; tools/dev installs it")
    try:
        from PIL import Image
    except ImportError:
        needs.missing("there is no pillow; tools/dev installs it")
    accel("report", runs / "a", "--output", tmp_path / "page.html")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/profile",
             "--window-size=1200,1800", f"--blink-settings=preferredColorScheme={scheme}"]
    address = f"file://{tmp_path}/page.html"
    subprocess.run([browser, *flags, f"--screenshot={tmp_path}/page.png", address], check=True, timeout=120, capture_output=True)
    picture = numpy.asarray(Image.open(tmp_path / "page.png").convert("RGB"))
    color = [numpy.array([int(text[at:at + 2], 16) for at in (1, 3, 5)]) for text in (back, first)]
    assert (picture[:, :20] == color[0]).all(), "the margin has another color"
    # The curve of the loss crosses most columns of the first chart, which is below the table and left of the middle.
    is_curve = (abs(picture[:, :600].astype(int) - color[1]) <= 2).all(axis=2)
    assert is_curve.any(axis=0).sum() > 300, "there is no curve in the color of the run"
    dom = subprocess.run([browser, *flags, "--dump-dom", address], check=True, timeout=120, capture_output=True, text=True).stdout
    assert dom.count("<svg ") == 1 + len(QUANTITIES) and dom.count("<circle ") == (tmp_path / "page.html").read_text().count("<circle ")
    assert all(dom.count(f'id="{name}"') == 1 for name in ("results", "times", "settings"))
