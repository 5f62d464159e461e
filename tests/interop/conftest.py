"""Fixtures: checkpoints of torch's own writers, made once for all tests; the judges; the peers; the interop matrix."""

import os
import pathlib

import ckpt_peers
import judges
import matrix
import peers
import pytest
import torch
from zoo_kinds import Kind


@pytest.fixture(scope="session")
def torch_checkpoints(made_once) -> pathlib.Path:
    """A directory with one checkpoint directory for each of ckpt_peers.KINDS, saved by torch on several ranks."""
    return made_once("torch_checkpoints", ckpt_peers.save_on_ranks)


def _need(torch_version: str) -> None:
    if judges.interpreter(torch_version) is None:
        reason = f"torch {torch_version} is not there (ACCEL_TORCH_215); use tools/dev test --all"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


class Zoo:
    """The zoo that one torch version wrote."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory

    def path(self, kind: Kind) -> pathlib.Path:
        return self.directory / kind.name / kind.path

    def expected_file(self, kind: Kind) -> pathlib.Path:
        return self.directory / f"{kind.name}.expected.pt"

    def expected(self, kind: Kind) -> dict[str, torch.Tensor]:
        return torch.load(self.expected_file(kind), weights_only=True)


@pytest.fixture(scope="session")
def zoos(made_once):
    """zoos(TORCH) returns the zoo that this torch version wrote. It is written once."""

    def zoo(version: str) -> Zoo:
        _need(version)
        return Zoo(made_once(f"zoo-{version}", lambda directory: judges.write_zoo(version, directory)))

    return zoo


@pytest.fixture(scope="session", params=judges.EACH_TORCH)
def zoo(request, zoos) -> Zoo:
    """The zoo of each torch version in turn."""
    return zoos(request.param)


@pytest.fixture(scope="session")
def judge_of(tmp_path_factory):
    """judge_of(TORCH) returns the judge of this torch version. It is started once."""
    running = {}

    def judge(version: str) -> judges.Judge:
        _need(version)
        if version not in running:
            running[version] = judges.Judge(version, tmp_path_factory.mktemp("judge") / "log")
        return running[version]

    yield judge
    for process in running.values():
        process.close()


@pytest.fixture(scope="session", params=judges.EACH_TORCH)
def judge(request, judge_of) -> judges.Judge:
    """The judge of each torch version in turn."""
    return judge_of(request.param)


@pytest.fixture(scope="session")
def peer_server(tmp_path_factory):
    server = peers.Server(tmp_path_factory.mktemp("peers") / "server.log")
    yield server
    server.close()


@pytest.fixture
def peer(peer_server, tmp_path):
    """peer(RANKS, SCRIPT, ARGS...) runs a script of this folder on RANKS ranks over Gloo and fails if a rank fails."""
    return lambda ranks, *command: peer_server.run(ranks, tmp_path / "peer.log", *command)


@pytest.fixture
def cell(request):
    """cell(TABLE, ROW, COLUMN, TORCH) records this test's outcome in that cell of the interop matrix."""

    def place(table: str, row: str, column: str, version: str) -> None:
        request.node.user_properties.append(("matrix", (table, row, column, version)))

    return place


@pytest.fixture
def reads(request, cell):
    """reads(KIND, COLUMN) records that the test reads this kind of checkpoint of the `zoo`."""
    return lambda kind, column: cell(matrix.READS, kind.title, column, request.node.callspec.params["zoo"])


@pytest.fixture
def writes(request, cell):
    """writes(ROW, COLUMN) records that the `judge` loads what the test writes."""
    return lambda row, column: cell(matrix.WRITES, row, column, request.node.callspec.params["judge"])


def pytest_runtest_logreport(report):
    if report.when == "call" and not report.skipped:
        for name, value in report.user_properties:
            if name == "matrix":
                cell = tuple(value)  # `value` is a list if the report comes from another process.
                matrix.SEEN[cell] = matrix.SEEN.get(cell, True) and report.passed


def pytest_terminal_summary(terminalreporter):
    if matrix.SEEN and not terminalreporter.no_summary:
        terminalreporter.write_line("")
        terminalreporter.write_line(matrix.summary())
    if matrix.SEEN and os.environ.get("ACCEL_MATRIX"):
        pathlib.Path(os.environ["ACCEL_MATRIX"]).write_text(matrix.markdown())
