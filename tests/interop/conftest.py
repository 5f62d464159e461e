"""Checkpoints of torch's own writers, made once for all tests; the judges; the table of what was seen to work."""

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
        reason = f"torch {torch_version} is not there (ACCEL_TORCH_215); use tools/dev test"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


class Zoo:
    """The zoo that one torch wrote."""

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
    """zoos(TORCH): what that torch wrote, written once."""

    def zoo(version: str) -> Zoo:
        _need(version)
        return Zoo(made_once(f"zoo-{version}", lambda directory: judges.write_zoo(version, directory)))

    return zoo


@pytest.fixture(scope="session", params=judges.TORCHES)
def zoo(request, zoos) -> Zoo:
    """Each torch's zoo in turn."""
    return zoos(request.param)


@pytest.fixture(scope="session")
def judge_of(tmp_path_factory):
    """judge_of(TORCH): that torch's judge, started once."""
    running = {}

    def judge(version: str) -> judges.Judge:
        _need(version)
        if version not in running:
            running[version] = judges.Judge(version, tmp_path_factory.mktemp("judge") / "log")
        return running[version]

    yield judge
    for process in running.values():
        process.close()


@pytest.fixture(scope="session", params=judges.TORCHES)
def judge(request, judge_of) -> judges.Judge:
    """Each torch's judge in turn."""
    return judge_of(request.param)


@pytest.fixture(scope="session")
def peer_server(tmp_path_factory):
    server = peers.Server(tmp_path_factory.mktemp("peers") / "server.log")
    yield server
    server.close()


@pytest.fixture
def peer(peer_server, tmp_path):
    """peer(RANKS, SCRIPT, ARGS...) runs a Python script of this folder on so many ranks over Gloo, and fails if it does."""
    return lambda ranks, *command: peer_server.run(ranks, tmp_path / "peer.log", *command)


@pytest.fixture
def cell(request):
    """cell(TABLE, ROW, COLUMN, TORCH): the place in the interop matrix that this test's outcome fills."""

    def place(table: str, row: str, column: str, version: str) -> None:
        request.node.user_properties.append(("matrix", (table, row, column, version)))

    return place


@pytest.fixture
def reads(request, cell):
    """reads(KIND, COLUMN): the test reads that kind of the `zoo`."""
    return lambda kind, column: cell(matrix.READS, kind.title, column, request.node.callspec.params["zoo"])


@pytest.fixture
def writes(request, cell):
    """writes(ROW, COLUMN): the `judge` loads what the test wrote."""
    return lambda row, column: cell(matrix.WRITES, row, column, request.node.callspec.params["judge"])


def pytest_runtest_logreport(report):
    if report.when == "call" and not report.skipped:
        for name, value in report.user_properties:
            if name == "matrix":
                cell = tuple(value)  # A list, if it comes from another process.
                matrix.SEEN[cell] = matrix.SEEN.get(cell, True) and report.passed


def pytest_terminal_summary(terminalreporter):
    if matrix.SEEN and not terminalreporter.no_summary:
        terminalreporter.write_line("")
        terminalreporter.write_line(matrix.summary())
    if matrix.SEEN and os.environ.get("ACCEL_MATRIX"):
        pathlib.Path(os.environ["ACCEL_MATRIX"]).write_text(matrix.markdown())
