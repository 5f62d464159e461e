"""Rules for the text of the sources: the width of prose, the length of files, names for pip, and functions of glibc."""

import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH = 100
LONGEST = 500


def tracked(*patterns: str) -> list[pathlib.Path]:
    if not (ROOT / ".git").exists():  # An unpacked release has no git repository.
        return [path for pattern in patterns for path in ROOT.glob(f"**/{pattern.rsplit('/', 1)[-1]}")
                if "build" not in path.relative_to(ROOT).parts[0]]
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in names.stdout.split("\n") if name and (ROOT / name).is_file()]


def test_ruff_finds_nothing_in_python():
    found = subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", "--no-cache", ".", "tools/export/accel-export"],
                           cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_prose_in_markdown_is_wrapped():
    """Tables, code blocks, headings, and lines that are one unbreakable word such as a link are exempt."""
    long = []
    for path in tracked("*.md"):
        code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                code = not code
            exempt = code or line.startswith(("|", "#", "```", "    ")) or " " not in line.strip(" -*")
            if len(line) > WIDTH and not exempt:
                long.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} columns")
    assert not long, "\n".join(long)


def test_no_file_is_longer_than_one_idea():
    long = [f"{path.relative_to(ROOT)}: {lines} lines" for path in
            tracked("src/*", "tests/*.py", "tests/*.[ch]pp", "bench/*.py", "bench/*.cpp", "tools/*")
            if (lines := len(path.read_bytes().splitlines())) > LONGEST]
    assert not long, "\n".join(long)


# The name accel belongs to somebody else on PyPI, and anybody may register those of this project's wheels there.
OF_INDEX = r"accel(?:[-_](?:toolkit|worker|export))?(?:\[\w+\])?(?:[=<>~]\S+)?"
NAMES_OF_OTHERS = re.compile(rf"pip3? (?:install|download)(?: +[^\s`#]+)*? +['\"]?(?:{OF_INDEX}(?![\w/.*-])|\S*\baccel-\*)|"
                             r"(?<![\w-])accel(?:[-_]\w+)?\[worker\]")


def test_no_text_names_a_package_of_others():
    for text in ("pip install accel", "pip3 install -U accel-worker accel", "pip install dist/accel-*.whl", "accel" + "[worker]",
                 "pip install accel-worker", "pip install dist/a.whl accel_worker", "pip install 'accel-toolkit[worker]'"):
        assert NAMES_OF_OTHERS.search(text)
    for text in ("pip install accelerate", "the wheel accel_worker", "`pip install tools/export` installs accel-export",
                 "pip install dist/accel_toolkit-*.whl dist/accel_worker-*.whl", "pip install tools/export"):
        assert not NAMES_OF_OTHERS.search(text)
    found = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
             for path in tracked("*") if path != pathlib.Path(__file__).resolve()
             for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
             if NAMES_OF_OTHERS.search(line)]
    assert not found, "\n".join(found)


def test_packages_have_names_of_their_own():
    toolkit = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    export = tomllib.loads((ROOT / "tools/export/pyproject.toml").read_text())["project"]
    assert (toolkit["name"], export["name"]) == ("accel-toolkit", "accel-export")
    worker = (ROOT / "tools/worker_wheel.py").read_text()
    assert re.search(r"^Name: accel-worker$", worker, re.MULTILINE)
    required = re.findall(r"^Requires-Dist: (\S+)", worker, re.MULTILINE) + toolkit.get("dependencies", []) + export["dependencies"]
    required += sum([*toolkit.get("optional-dependencies", {}).values(), *export["optional-dependencies"].values()], [])
    assert not [name for name in required if name.startswith("accel")]


def test_all_files_state_the_same_version():
    version = re.search(r"^  version : '([0-9.]+)',$", (ROOT / "meson.build").read_text(), re.MULTILINE)[1]
    assert re.match(r"accel \((.+)\) ", (ROOT / "debian/changelog").read_text())[1] == version
    assert re.search(r"^## (\S+) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version
    assert tomllib.loads((ROOT / "tools/export/pyproject.toml").read_text())["project"]["version"] == version
    assert f"Version {version}, for Linux." in (ROOT / "README.md").read_text()


CUDA_BY_NAME = re.compile(r"is_cuda\(|kCUDA|CUDAHooks|(?:c10|ATen|torch/csrc)/cuda|cuda_runtime|nccl\.h>")


def test_the_engine_asks_c10_for_a_device_and_not_cuda():
    """docs/accelerators.md."""
    assert CUDA_BY_NAME.search("if (device.is_cuda())") and CUDA_BY_NAME.search("#include <c10/cuda/CUDAStream.h>")
    knows = re.compile(r"train/(device/(accelerator|float8_kernels)\.|c10d/nccl)")
    found = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in tracked("src/train/*.cpp", "src/train/*.hpp")
             if not knows.search(str(path)) for number, line in enumerate(path.read_text().splitlines(), 1)
             if CUDA_BY_NAME.search(line)]
    assert not found, "\n".join(found)


# Functions that glibc has since a version after 2.28, the oldest that the toolkit's wheel is for.
NEW_FUNCTIONS = re.compile(r"::(sig(?:abbrev|descr)_np|strerror(?:name|desc)_np|close_range|closefrom|gettid|tgkill|getdents64|"
                           r"mallinfo2|execveat|epoll_pwait2|pidfd_\w+|process_m\w+|arc4random\w*|strl(?:cpy|cat)|getcpu)\(")


def test_toolkit_calls_no_function_that_old_c_libraries_lack():
    assert NEW_FUNCTIONS.search("::close_range(3, 9, 0)") and not NEW_FUNCTIONS.search("::syscall(SYS_pidfd_open, pid, 0)")
    found = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in tracked("src/*.cpp", "src/*.hpp")
             for number, line in enumerate(path.read_text().splitlines(), 1) if NEW_FUNCTIONS.search(line)]
    assert not found, "\n".join(found)
