"""The sdist and the wheel: built, looked into, and installed into an environment that has torch and nothing else."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_string
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import powerpool

ROOT = Path(__file__).parents[2]
NAME = f"powerpool-{powerpool.__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with an sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def core(built, tmp_path_factory) -> Path:
    """The scripts of an environment with the wheel, and with what torch needs, by links to what is installed here."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needs("torch"):
        for top in tops(metadata.distribution(name)):
            link = site / top.name
            if not link.exists():
                link.symlink_to(top, target_is_directory=top.is_dir())
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet"),
            *("--disable-pip-version-check", "--no-deps", "--no-index", built / f"{NAME}-py3-none-any.whl"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "bin"


def needs(name: str, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """A distribution and all that it requires on this machine, without extras."""
    if name in known:
        return known
    known |= {name}
    for requirement in map(Requirement, metadata.distribution(name).requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            known = needs(requirement.name, known)
    return known


def tops(distribution: metadata.Distribution) -> set[Path]:
    """The files and folders that a distribution puts into site-packages."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    return {Path(distribution.locate_file(name)) for name in names}


def run(*words: str | Path) -> subprocess.CompletedProcess:
    """A command that sees nothing of this checkout."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(words, text=True, capture_output=True, env=variables, cwd=words[0].parent, check=False)


def test_smoke_with_core_dependencies_only(core):
    done = run(core / "python", "-W", "error::DeprecationWarning", ROOT / "tests/distribution/smoke.py")
    assert done.returncode == 0, done.stderr
    assert "works beside torch" in done.stdout


def test_the_command_says_its_version_and_what_to_install(core):
    assert run(core / "powerpool", "--version").stdout.split()[1] == powerpool.__version__
    done = run(core / "powerpool", "demo")
    assert done.returncode == 1
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"powerpool", "_powerpool_main.py", f"{NAME}.dist-info"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/powerpool").rglob("*") if path.is_file()}
    assert {name for name in sources if "__pycache__" not in name} <= set(names)
    assert f"{NAME}.dist-info/licenses/LICENSE" in names


def test_the_sdist_holds_what_a_reader_and_a_packager_need(built):
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        names = {name.removeprefix(f"{NAME}/") for name in sdist.getnames()}
    needed = {
        "README.md",
        "SECURITY.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "pyproject.toml",
        "Makefile",
    }
    needed |= {"constraints.txt", "mkdocs.yml", "docs/numerics.md", "tests/distribution/smoke.py"}
    assert needed | {"results/graph/README.md", "results/graph/MUTAG/GIN0.json"} <= names  # docs and tests read them
    assert not [name for name in names if name.startswith((".venv", "runs/", "site/"))]


def test_the_long_description_has_no_link_into_the_repository(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        described = message_from_string(wheel.read(f"{NAME}.dist-info/METADATA").decode())
    assert described["Description-Content-Type"] == "text/markdown"
    text = described.get_payload()
    assert text.startswith("# powerpool\n")
    assert "| ridge regression |" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    assert "<!--" not in text


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {powerpool.__version__}\n" in citation
    assert f"## [{powerpool.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
