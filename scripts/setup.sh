#!/usr/bin/env bash
# Makes the project's own environment, so that a newcomer needs Python and make only.
#
#   setup.sh python   .venv with the pinned packages; done again only when their list changes
#   setup.sh java     Java 17 or newer, which Spark needs
#
# One line of output a step, nothing when there is nothing to do. What cannot be
# done without asking stops with one line that says what to install.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MIN_JAVA=17

say() { printf 'set-up: %s\n' "$1"; }
stop() {
  printf 'set-up stopped: %s\n' "$1" >&2
  exit 1
}

# Can packages be installed without asking anyone?
can_apt() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; }

apt_update() { DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null 2>&1 || true; }
apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>&1; }

# The first interpreter that is new enough; $PYTHON overrides the search.
find_python() {
  local candidate found
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  found=$("${PYTHON:-python3}" --version 2>/dev/null) || found=none
  stop "Headrace needs Python 3.11 or newer as python3 (found: $found); install it, or run make PYTHON=/path/to/python"
}

make_venv() {
  local python=$1 version
  version=$("$python" -c 'import platform; print(platform.python_version())')
  say "virtual environment .venv (Python $version)"
  rm -rf .venv
  "$python" -m venv .venv >/dev/null 2>&1 && return
  # Debian ships the venv module without pip's wheel: that is a package of its own.
  local package="python${version%.*}-venv"
  if can_apt; then
    say "$package from the system's packages"
    apt_update
    rm -rf .venv
    if apt_install "$package" && "$python" -m venv .venv >/dev/null 2>&1; then return; fi
  fi
  rm -rf .venv
  stop "$python cannot make virtual environments; install $package (Debian, Ubuntu) and run make again"
}

setup_python() {
  local stamp=.venv/.headrace-stamp wanted python log
  # The directory is part of the stamp: an editable install does not survive a move.
  wanted=$(cat pyproject.toml constraints.txt <(pwd) | cksum)
  if [ -x .venv/bin/python ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  if ! .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python=$(find_python)
    make_venv "$python"
  fi
  say "packages pinned in constraints.txt (a few minutes the first time)"
  log=.venv/setup.log
  # The build backend is installed first and pinned like the rest; an isolated build would fetch the newest one.
  if ! { .venv/bin/python -m pip install --disable-pip-version-check -q setuptools -c constraints.txt &&
    .venv/bin/python -m pip install --disable-pip-version-check -q --no-build-isolation -e '.[dev]' -c constraints.txt; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    stop "pip could not install the packages (whole log: $log); check the network and run make again"
  fi
  printf '%s\n' "$wanted" >"$stamp"
}

# The major version of a java command, 0 if it does not run ("1.8.0" is 8).
java_major() {
  local version
  version=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9.]*\).*/\1/p' | head -n 1) || true
  version=${version#1.}
  printf '%s\n' "$((${version%%.*} + 0))"
}

java_ok() { command -v "$1" >/dev/null 2>&1 && [ "$(java_major "$1")" -ge "$MIN_JAVA" ]; }

setup_java() {
  local package found
  if [ -n "${JAVA_HOME:-}" ]; then
    # Spark believes JAVA_HOME before anything else, so nothing installed would help.
    java_ok "$JAVA_HOME/bin/java" && return
    stop "JAVA_HOME is $JAVA_HOME, which is not Java $MIN_JAVA or newer; point it at one, or unset it"
  fi
  java_ok java && return
  found="none"
  if command -v java >/dev/null 2>&1; then found="Java $(java_major java)"; fi
  if can_apt; then
    say "Java from the system's packages (found: $found)"
    apt_update
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
      if apt_install "$package"; then
        hash -r
        java_ok java && return
      fi
    done
  fi
  stop "Spark needs Java $MIN_JAVA or newer (found: $found); install it, on Debian or Ubuntu: apt-get install openjdk-17-jre-headless"
}

case "${1:-}" in
  python) setup_python ;;
  java) setup_java ;;
  *) stop "usage: scripts/setup.sh python|java" ;;
esac
