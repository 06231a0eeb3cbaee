"""Set-up refuses in one line, pins everything, and every promised target exists.

The script runs with a PATH of our own: a directory that holds the commands it
needs and whatever ``java`` or ``python3`` the case is about, so that the tests
see the same machine everywhere. ``id`` says "not root", so nothing is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("bash", "env", "sed", "head", "tail", "cat", "cksum", "dirname", "rm")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """An empty machine: no Java, no Python, no root. Returns its only PATH entry."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in COMMANDS:
        found = shutil.which(name)
        assert found, name
        (path / name).symlink_to(found)
    command(path, "id", "echo 1000")
    return path


def command(path: Path, name: str, body: str) -> None:
    """Put a shell script on the machine's PATH."""
    script = path / name
    script.unlink(missing_ok=True)
    script.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    script.chmod(0o755)


def java(path: Path, version: str) -> None:
    command(path, "java", f"echo 'Picked up JAVA_TOOL_OPTIONS: -Da=b' >&2; echo 'openjdk version \"{version}\"' >&2")


def setup(path: Path, what: str, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(root / "scripts" / "setup.sh"), what],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line a refusal prints."""
    assert done.returncode == 1
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("version", ["17.0.15", "21.0.1", "25", "17"])
def test_new_enough_java_is_silent(machine: Path, version: str) -> None:
    java(machine, version)
    done = setup(machine, "java")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("version", "found"), [("1.8.0_292", "Java 8"), ("11.0.2", "Java 11"), ("16", "Java 16")])
def test_old_java_is_named(machine: Path, version: str, found: str) -> None:
    java(machine, version)
    line = refusal(setup(machine, "java"))
    assert f"found: {found}" in line and "openjdk-17-jre-headless" in line


def test_no_java_says_what_to_install(machine: Path) -> None:
    line = refusal(setup(machine, "java"))
    assert "found: none" in line and "apt-get install openjdk-17-jre-headless" in line


def test_java_home_is_believed_before_path(machine: Path, tmp_path: Path) -> None:
    java(machine, "17.0.15")
    old = tmp_path / "jdk11" / "bin"
    old.mkdir(parents=True)
    java(old, "11.0.2")
    assert "JAVA_HOME" in refusal(setup(machine, "java", JAVA_HOME=str(old.parent)))
    java(old, "21.0.1")
    assert setup(machine, "java", JAVA_HOME=str(old.parent)).returncode == 0


def test_root_installs_java_and_looks_again(machine: Path) -> None:
    command(machine, "id", "echo 0")
    command(machine, "chmod", f'exec {shutil.which("chmod")} "$@"')
    # An apt-get that knows only the second package of the list, and installs a java.
    install = f"printf '#!{shutil.which('bash')}\\necho openjdk version \\\\\"21.0.1\\\\\"\\n' > {machine}/java"
    command(
        machine,
        "apt-get",
        f'case "$*" in *install*21*) {install}; chmod +x {machine}/java ;; *install*) exit 100 ;; esac',
    )
    done = setup(machine, "java")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "found: none" in done.stdout


def project_copy(tmp_path: Path) -> Path:
    """The files set-up reads, without an environment."""
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup.sh"):
        shutil.copy(ROOT / name, root / name)
    return root


def test_old_python_is_named(machine: Path, tmp_path: Path) -> None:
    command(machine, "python3", '[ "$1" = --version ] && echo "Python 3.9.2" && exit 0; exit 1')
    line = refusal(setup(machine, "python", project_copy(tmp_path)))
    assert "Python 3.11 or newer" in line and "found: Python 3.9.2" in line


def test_no_python_is_one_line(machine: Path, tmp_path: Path) -> None:
    assert "found: none" in refusal(setup(machine, "python", project_copy(tmp_path)))


def test_packages_are_installed_once_and_again_when_their_list_changes(machine: Path, tmp_path: Path) -> None:
    root = project_copy(tmp_path)
    calls = tmp_path / "calls"
    fake = f'echo "$*" >> {calls}'
    command(machine, "mkdir", f'exec {shutil.which("mkdir")} "$@"')
    command(machine, "chmod", f'exec {shutil.which("chmod")} "$@"')
    inner = f"printf '#!{shutil.which('bash')}\\n%s\\n' '{fake}' > .venv/bin/python"
    venv = f"mkdir -p .venv/bin; {inner}; chmod +x .venv/bin/python"
    command(machine, "python3", f'case "$1 $2" in "-m venv") {venv} ;; "-c import platform"*) echo 3.12.1 ;; esac')
    first = setup(machine, "python", root)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout.splitlines()) == 2  # the environment, the packages
    installs = calls.read_text()
    assert "-e .[dev]" in installs and installs.count("-c constraints.txt") == 2
    again = setup(machine, "python", root)
    assert (again.returncode, again.stdout) == (0, "") and calls.read_text() == installs
    with (root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert len(setup(machine, "python", root).stdout.splitlines()) == 1  # the packages only


PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.]*")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert all(PIN.fullmatch(entry) for entry in entries), "names and versions only"
    return {canonical(name): version for name, version in (entry.split("==") for entry in entries)}


def test_everything_the_project_needs_is_pinned() -> None:
    """Walk the requirements of the installed packages; a pin must exist for each one that is installed."""
    installed = {canonical(d.metadata["Name"]) for d in distributions()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    needed: set[str] = set()
    while todo:
        match = re.match(r"[A-Za-z0-9._-]+", todo.pop())
        assert match
        name = canonical(match[0])
        if name in installed and name not in needed:
            needed.add(name)
            todo += [r for r in requires(name) or [] if "extra ==" not in r]
    assert len(needed) > 20
    assert needed - pins().keys() == set()


def test_every_target_is_explained() -> None:
    done = subprocess.run(["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True)
    shown = {line.split()[1] for line in done.stdout.splitlines()}
    assert shown == {"help", "demo", "test", "bench", "soak", "lint", "clean"}


@pytest.mark.parametrize("script", ["scripts/setup.sh", ".ci/run"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
