# The Python environments of development: where they are, and functions that make them. tools/dev sources this file; it has
# set `root` and `cache`, and has the functions `say` and `die`.

requirements=$root/tools/requirements.txt
venv=$cache/venv-$(sha256sum <"$requirements" | cut -c1-12)
# Packages that the tests need in that environment.
requirements_test=$root/tools/requirements-test.txt
test_packages=$venv/.test-packages-$(sha256sum <"$requirements_test" | cut -c1-12)
# The other torch, which the interop tests run as a second judge.
requirements_215=$root/tools/requirements-torch-2.15.txt
venv_215=$cache/venv-torch-2.15-$(cat "$requirements" "$requirements_215" | sha256sum | cut -c1-12)
# Packages of models, for the tests alone.
requirements_zoo=$root/tools/requirements-zoo.txt
zoo=$cache/zoo-$(cat "$requirements" "$requirements_zoo" | sha256sum | cut -c1-12)
# The reader of event files, for a test alone.
requirements_tensorboard=$root/tools/requirements-tensorboard.txt
tensorboard=$cache/tensorboard-$(cat "$requirements" "$requirements_tensorboard" | sha256sum | cut -c1-12)
# Hugging Face datasets, for tests. dill takes only what lies in a folder of this name for a package that is installed.
requirements_datasets=$root/tools/requirements-datasets.txt
datasets=$cache/datasets-$(cat "$requirements" "$requirements_datasets" | sha256sum | cut -c1-12)/site-packages
# Other releases of transformers, for a test: a folder of each.
releases=$cache/transformers-$(cat "$requirements" "$root"/tools/requirements-transformers-*.txt | sha256sum | cut -c1-12)
# trl, for a benchmark alone.
requirements_trl=$root/tools/requirements-trl.txt
trl=$cache/trl-$(cat "$requirements" "$requirements_trl" | sha256sum | cut -c1-12)/site-packages
# What makes wheels.
requirements_package=$root/tools/requirements-package.txt
venv_package=$cache/venv-package-$(sha256sum <"$requirements_package" | cut -c1-12)

# The compiler of the toolkit's wheel, and libraries that it has compiled.
old_glibc=$cache/glibc-$(cat "$root/tools/old-glibc" "$requirements_package" | sha256sum | cut -c1-12)

# once DIR FUNCTION [WHAT]: runs FUNCTION to make the environment DIR, unless it is there; another checkout may be doing the same.
once() {
  local dir=$1
  [ -e "$dir/.complete" ] && return
  say "${3:-creating the Python environment (with torch it is a large download)} $dir"
  mkdir -p "$cache"
  exec 9>"$dir.lock"
  flock 9
  if [ ! -e "$dir/.complete" ]; then
    rm -rf "$dir"
    "$2" || die "$dir could not be made"
    touch "$dir/.complete"
  fi
  exec 9>&-
}

# pip_install ARGS...: pip install into the first environment, with a line for each download and its size.
pip_install() {
  "$venv/bin/pip" install --disable-pip-version-check --progress-bar off "$@" 2>&1 |
    sed -u -n -e '/\.metadata/d' -e 's/^ *Downloading /   downloading /p' -e '/^ERROR/p' >&2
}

# Meson comes first, since what needs no libtorch can be compiled while that is downloaded.
make_venv() {
  /usr/bin/python3 -m venv "$venv" &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$(grep '^meson' "$requirements")" &&
    touch "$venv/.meson" &&
    pip_install -r "$requirements"
}

install_test_packages() {
  [ -e "$test_packages" ] && return
  say "installing the packages that the tests need"
  exec 9>"$venv.lock"
  flock 9
  [ -e "$test_packages" ] || pip_install -r "$requirements" -r "$requirements_test" || die "pip could not install them"
  touch "$test_packages"
  exec 9>&-
}

# Only what differs from the first environment is installed. The rest is found there: Python packages through a .pth file,
# CUDA libraries, which torch needs to be loaded even on a CPU, through links.
make_venv_215() {
  local packages name
  /usr/bin/python3 -m venv --without-pip "$venv_215" || return
  "$venv/bin/python" -m pip --python "$venv_215/bin/python" install --quiet --disable-pip-version-check --no-deps \
    -r "$requirements_215" || return
  packages=$(echo "$venv_215"/lib/python3*/site-packages)
  echo "$venv"/lib/python3*/site-packages >"$packages/first-environment.pth"
  for name in "$venv"/lib/python3*/site-packages/nvidia/*/; do
    [ -e "$packages/nvidia/$(basename "$name")" ] || ln -s "$name" "$packages/nvidia/"
  done
  "$venv_215/bin/python" -c 'import torch; assert torch.__version__.startswith("2.15.")'
}

# make_beside DIR REQUIREMENTS MODULES: installs packages without what they depend on, for use beside the first environment.
make_beside() {
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$1" -r "$2" || return
  PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}" "$venv/bin/python" -c "import $3"
}
make_zoo() { make_beside "$zoo" "$requirements_zoo" torchvision,timm,torchao.optim,megatron.core; }
make_tensorboard() { make_beside "$tensorboard" "$requirements_tensorboard" tensorboard.backend.event_processing.event_accumulator; }
make_datasets() { make_beside "$datasets" "$requirements_datasets" datasets; }
make_releases() {
  local file release
  for file in "$root"/tools/requirements-transformers-*.txt; do
    release=${file##*-}
    make_beside "$releases/${release%.txt}" "$file" transformers || return
  done
}
make_trl() { PYTHONPATH="$datasets" make_beside "$trl" "$requirements_trl" trl; }

make_venv_package() {
  /usr/bin/python3 -m venv "$venv_package" || return
  "$venv_package/bin/pip" install --quiet --disable-pip-version-check -r "$requirements_package"
}

make_old_glibc() {
  PATH="$venv_package/bin:$PATH" "$root/tools/old-glibc" "$old_glibc" >"$cache/glibc.log" 2>&1 ||
    { cat "$cache/glibc.log" >&2; return 1; }
}

# The first environment alone, which the tests without the mark `long` need.
setup_python() {
  once "$venv" make_venv
  install_test_packages
}

setup_more_python() {
  once "$venv_215" make_venv_215
  once "$zoo" make_zoo
  once "$tensorboard" make_tensorboard
  once "$(dirname "$datasets")" make_datasets
  once "$releases" make_releases
}
