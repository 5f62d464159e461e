"""The scripts of `accel completion` complete commands, options and values in real shells."""

import json
import os
import pty
import re
import select
import shlex
import subprocess
import time

import pytest

SHELLS = ["bash", "zsh", "fish"]
NAMES = {"bash": "accel", "zsh": "_accel", "fish": "accel.fish"}


@pytest.fixture(scope="session")
def build(accel_path):
    return accel_path.parents[2]


@pytest.fixture(scope="session")
def scripts(accel_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        text = subprocess.run([accel_path, "completion", shell], capture_output=True, text=True, check=True).stdout
        (folder / shell).write_text(text)
    return folder


@pytest.fixture(scope="session")
def commands(accel_path) -> dict[str, set[str]]:
    """The commands that --help lists, each with the options that its own --help and that of the program list."""

    def help_of(*command):
        return subprocess.run([accel_path, *command, "--help"], capture_output=True, text=True, check=True).stdout

    def options(text):
        lines = re.findall(r"^  (-\S+)", text, re.MULTILINE)
        return {name for line in lines for name in line.split(",")}

    top = help_of()
    names = re.findall(r"^  ([a-z][a-z-]*) ", top, re.MULTILINE)
    assert "merge-weights" in names
    return {name: options(help_of(name)) | options(top) for name in names}


@pytest.fixture(autouse=True)
def path(accel_path, monkeypatch):
    """Shells ask the `accel` of the command line that is typed."""
    monkeypatch.setenv("PATH", f"{accel_path.parent}:{os.environ['PATH']}")


@pytest.fixture
def bash(scripts, tmp_path):
    """bash(WORDS...) returns what completion offers for the last word."""
    (tmp_path / "a.yaml").touch()
    (tmp_path / "a folder").mkdir()

    def complete(*words):
        line = " ".join(shlex.quote(word) for word in words)
        program = f"""source {scripts / "bash"}
            COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _accel
            (( ${{#COMPREPLY[@]}} == 0 )) || printf '%s\\n' "${{COMPREPLY[@]}}" """
        result = subprocess.run(["bash", "--norc", "-euo", "pipefail", "-c", f"set +e; {program}"], cwd=tmp_path,
                                capture_output=True, text=True, timeout=60)
        assert result.stderr == ""
        return result.stdout.splitlines()

    return complete


@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_valid(scripts, shell):
    checked = subprocess.run([shell, "-n", scripts / shell], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_build_has_the_script(scripts, build, shell):
    assert (build / "completions" / NAMES[shell]).read_text() == (scripts / shell).read_text()


def test_scripts_are_installed_where_shells_look(build):
    installed = json.loads((build / "meson-info/intro-installed.json").read_text())
    places = [place for path, place in installed.items() if "/completions/" in path]
    for tail in ("share/bash-completion/completions/accel", "share/zsh/site-functions/_accel",
                 "share/fish/vendor_completions.d/accel.fish"):
        assert any(place.endswith(tail) for place in places), (tail, places)


def test_unknown_shell_is_refused(accel):
    assert "csh" in accel("completion", "csh", code=2).stderr


def test_bash_offers_all_commands(bash, commands):
    assert sorted(bash("accel", "")) == sorted(commands)
    assert bash("accel", "mer") == ["merge-weights"]
    assert bash("accel", "--json", "--color", "never", "mer") == ["merge-weights"]
    assert bash("accel", "--color", "=", "never", "mer") == ["merge-weights"]


def test_bash_offers_the_options_of_each_command(bash, commands):
    for command, options in commands.items():
        offered = bash("accel", command, "-")
        assert sorted(offered) == sorted(set(offered)) == sorted(options), command


def test_bash_offers_no_option_that_is_given(bash):
    assert "--run-id" in bash("accel", "launch", "--set", "a=1", "--use_cpu", "--r")
    assert bash("accel", "launch", "--run_id=x", "--r") == []
    assert bash("accel", "launch", "--set", "a=1", "--se") == ["--set"]
    assert bash("accel", "launch", "--use-cpu", "--cp") == []


def test_bash_offers_values(bash):
    assert bash("accel", "save", "a", "b", "--type", "") == ["full", "local", "sharded"]
    assert bash("accel", "save", "a", "b", "--type", "=") == ["full", "local", "sharded"]
    assert bash("accel", "save", "a", "b", "--type", "=", "s") == ["sharded"]
    assert bash("accel", "save", "a", "b", "--type=s") == ["--type=sharded"]
    assert bash("accel", "--color", "n") == ["never"]
    assert bash("accel", "plan", "--color", "n") == ["never"]
    assert bash("accel", "completion", "f") == ["fish"]
    assert bash("accel", "launch", "--mixed-precision", "b") == ["bf16"]
    assert bash("accel", "launch", "--set", "training.optimizer.ty") == ["training.optimizer.type="]
    assert bash("accel", "launch", "--num-processes", "") == []


def test_bash_offers_the_values_of_a_key(bash):
    modes = ["no", "fp16", "bf16", "fp8"]
    for before in (("--set", "mixed_precision"), ("--set", "=", "mixed_precision")):
        assert bash("accel", "launch", *before, "=") == bash("accel", "launch", *before, "=", "") == modes
        assert bash("accel", "launch", *before, "=", "b") == ["bf16"]
    assert bash("accel", "launch", "--set", "mixed_precision=b") == ["mixed_precision=bf16"]
    assert bash("accel", "plan", "--set=mixed_precision=b") == ["--set=mixed_precision=bf16"]
    assert bash("accel", "launch", "--set", "training.data.shuffle", "=", "") == ["true", "false"]
    assert bash("accel", "launch", "--set", "training.optimizer.lr", "=", "") == []


def test_bash_offers_paths(bash):
    assert sorted(bash("accel", "inspect", "a")) == ["a folder", "a.yaml"]
    assert sorted(bash("accel", "load", "ckpt", "--into", "a")) == ["a folder", "a.yaml"]
    assert bash("accel", "launch", "--log-dir", "a") == ["a folder"]
    assert bash("accel", "launch", "--log-dir", "=", "a") == ["a folder"]
    assert bash("accel", "launch", "--log-dir=a") == ["--log-dir=a folder"]
    assert sorted(bash("accel", "config", "m.pt", "--data", "a")) == ["a folder", "a.yaml"]
    assert sorted(bash("accel", "launch", "--num_processes", "2", "a")) == ["a folder", "a.yaml"]
    assert bash("accel", "env", "") == []


def test_bash_completes_the_program_behind_launch(bash):
    assert "python3" in bash("accel", "launch", "a.yaml", "--", "pytho")
    assert sorted(bash("accel", "launch", "a.yaml", "--", "python3", "a")) == ["a folder", "a.yaml"]
    assert bash("accel", "launch", "--", "cat", "--mixed-precision", "b") == []
    assert "python3" in bash("accel", "check", "a.yaml", "--", "pytho")


@pytest.fixture
def fish(scripts, tmp_path):
    (tmp_path / "a.yaml").touch()
    (tmp_path / "folder").mkdir()

    def complete(line) -> dict[str, str]:
        """Returns what fish offers at the end of the line, with descriptions."""
        result = subprocess.run(["fish", "--no-config", "-c", f"source {scripts / 'fish'}; complete -C {shlex.quote(line)}"],
                                cwd=tmp_path, capture_output=True, text=True, timeout=60,
                                env={**os.environ, "HOME": str(tmp_path)})
        assert result.stderr == ""
        return {entry.split("\t")[0]: (entry.split("\t") + [""])[1] for entry in result.stdout.splitlines()}

    return complete


def test_fish_offers_all_commands_with_descriptions(fish, commands):
    offered = fish("accel ")
    assert sorted(offered) == sorted(commands)
    assert offered["merge-weights"] == "Merge a sharded, local or full checkpoint into safetensors"
    assert list(fish("accel --color never mer")) == ["merge-weights"]


def test_fish_offers_the_options_of_each_command(fish, commands):
    for command, options in commands.items():
        long = {name for name in fish(f"accel {command} --") if name.startswith("--")}
        assert long == {name for name in options if name.startswith("--")}, command
    assert fish("accel diff --rt")["--rtol"] == "Allow |a - b| <= atol + rtol * |b| (0)"


def test_fish_offers_values_and_paths(fish):
    assert sorted(fish("accel save a b --type ")) == ["full", "local", "sharded"]
    assert list(fish("accel completion f")) == ["fish"]
    assert "a.yaml" in fish("accel launch a")
    assert list(fish("accel launch --log-dir f")) == ["folder/"]
    assert list(fish("accel launch --log-dir=f")) == ["--log-dir=folder/"]
    assert list(fish("accel launch --set training.optimizer.ty")) == ["training.optimizer.type="]
    assert list(fish("accel launch --set mixed_precision=b")) == ["mixed_precision=bf16"]
    assert sorted(fish("accel launch --set training.data.shuffle=")) == ["training.data.shuffle=false", "training.data.shuffle=true"]
    assert list(fish("accel save a b --type=s")) == ["--type=sharded"]
    assert fish("accel launch --num-processes ") == {}
    assert "a.yaml" in fish("accel check a.yaml -- cat a") and "a.yaml" in fish("accel launch a.yaml -- cat a")
    assert "a.yaml" in fish("accel launch -- cat --number a") and fish("accel launch -- cat --no-such-op") == {}
    assert fish("accel env a") == {}


class Zsh:
    """An interactive zsh that `load` has given the script. Its terminal shows what completion makes of the input."""

    def __init__(self, load, folder):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "PS1": "", "HOME": str(folder)})
        self.text = ""
        self.send("unsetopt beep list_beep auto_menu prompt_cr prompt_sp zle_bracketed_paste 2>/dev/null; PS1='> '\n")
        self.send(f"autoload -Uz compinit; {load}; echo rea''dy\n")
        self.wait_for("ready")

    def send(self, text):
        os.write(self.terminal, text.encode())

    def read(self, seconds):
        if select.select([self.terminal], [], [], seconds)[0]:
            self.text += os.read(self.terminal, 1 << 16).decode(errors="replace")

    def wait_for(self, text, seconds=30.0):
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, f"zsh did not write {text!r}: {self.text!r}"
            self.read(0.1)

    def completes(self, typed, expected):
        """Types `typed` and a tab, and waits for the words `expected`, none of which is in `typed`."""
        self.send("\x15")  # Ctrl-U empties the line.
        time.sleep(0.1)
        self.read(0)
        self.text = ""
        self.send(typed + "\t")
        for word in expected:
            self.wait_for(word)

    def close(self):
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@pytest.fixture(params=["sourced", "installed"])
def zsh(request, scripts, tmp_path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "site-functions").mkdir()
    (tmp_path / "site-functions/_accel").write_text((scripts / "zsh").read_text())
    load = {"sourced": f"compinit -u -D; source {shlex.quote(str(scripts / 'zsh'))}",
            "installed": f"fpath+=({shlex.quote(str(tmp_path / 'site-functions'))}); compinit -u -D"}[request.param]
    shell = Zsh(load, tmp_path)
    yield shell
    shell.close()


def test_zsh_completes_commands_options_and_values(zsh):
    zsh.completes("accel mer", ["ge-weights"])
    zsh.completes("accel --color never di", ["ff"])
    zsh.completes("accel save --ty", ["pe"])
    zsh.completes("accel save a b --type sh", ["arded"])
    zsh.completes("accel save a b --type=sh", ["arded"])
    zsh.completes("accel completion f", ["ish"])
    zsh.completes("accel launch --mixed-precision b", ["f16"])
    zsh.completes("accel launch --set training.optimizer.ty", ["pe="])
    zsh.completes("accel launch --set mixed_precision=b", ["f16"])


def test_zsh_completes_paths_and_the_program_behind_launch(zsh):
    zsh.completes("accel launch conf", ["ig.yaml"])
    zsh.completes("accel launch --log-dir fol", ["der/"])
    zsh.completes("accel launch --log-dir=fol", ["der/"])
    zsh.completes("accel launch config.yaml -- cat fol", ["der/"])
    zsh.completes("accel check config.yaml -- cat fol", ["der/"])


def test_zsh_lists_all_commands_with_descriptions(zsh, commands):
    zsh.completes("accel ", [f"{name} " for name in commands])
    zsh.completes("accel save --d", ["--dtype", "--dry-run", "Convert floating-point tensors"])
