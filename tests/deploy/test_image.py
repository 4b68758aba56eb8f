"""deploy/Dockerfile can't be built here: it is linted, and the file system that it ends in is made and run in."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from harness import PENSTOCK, ROOT

TEXT = (ROOT / "deploy/Dockerfile").read_text()


def instructions():
    joined = re.sub(r"\\\n", " ", "\n".join(l for l in TEXT.splitlines() if not l.lstrip().startswith("#")))
    return [line.split(None, 1) for line in joined.splitlines() if line.strip()]


def arguments(name):
    return [rest for instruction, rest in instructions() if instruction == name]


def test_the_linter_has_nothing_to_say():
    linter = pathlib.Path(sys.executable).parent / "hadolint"
    answer = subprocess.run([linter, ROOT / "deploy/Dockerfile"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout


def test_it_installs_packages_that_the_source_tree_knows():
    known = set((ROOT / "tools/packages.txt").read_text().split())
    installs = re.search(r"install -y --no-install-recommends(.*?)&&", TEXT.replace("\\\n", " "), re.S)[1].split()
    assert set(installs) <= known
    assert installs == sorted(installs)


def test_what_it_copies_is_there_and_let_through():
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    for copy in arguments("COPY"):
        if copy.startswith("--from"):
            continue
        for source in copy.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in allowed, source


def test_the_image_is_the_picker_as_an_ordinary_user():
    assert arguments("USER") == ["65532:65532"]
    assert arguments("ENTRYPOINT") == ['["/usr/local/bin/penstock", "epp"]']
    assert arguments("FROM")[-1] == "scratch"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change root")
def test_the_program_runs_in_the_image_with_nothing_but_what_is_there(tmp_path):
    root = tmp_path / "root"
    subprocess.run([ROOT / "deploy/image-root", PENSTOCK, root], check=True)
    run = ["chroot", "--userspec=65532:65532", root, "/usr/local/bin/penstock"]
    version = subprocess.run([*run, "version"], capture_output=True, text=True)
    assert version.returncode == 0 and version.stdout.startswith("penstock "), version.stderr
    check = subprocess.run([*run, "check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    assert (root / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 100_000
    assert not list(root.rglob("bin/sh"))


def test_what_is_copied_is_enough_to_build_the_program(tmp_path):
    """Configured from the copied files alone, and every source that the program is made of is there; nothing is compiled."""
    for copy in arguments("COPY"):
        if not copy.startswith("--from"):
            *sources, target = copy.split()
            for source in sources:
                place = tmp_path / target if target != "./" else tmp_path / source
                place.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, place)
    command = next(rest for rest in arguments("RUN") if rest.startswith("cmake")).split("&&")
    configure, build = command[0].split(), command[1].split()
    subprocess.run(configure, cwd=tmp_path, check=True, capture_output=True)
    assert build == "cmake --build --preset release --target penstock".split()
    inputs = subprocess.run(["ninja", "-C", tmp_path / "build/release", "-t", "inputs", "penstock"], check=True,
                            capture_output=True, text=True).stdout.split("\n")
    sources = [i for i in inputs if i.startswith(str(tmp_path / "src"))]
    assert len(sources) > 200
    for source in sources:
        assert pathlib.Path(source).exists(), source
