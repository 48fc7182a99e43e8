"""The wheel, in a fresh environment: no compiler, no build tree, no package index, no PATH but its own."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import BUILD, DEADLINE, PACKAGE

EMULATED = BUILD / ".libs" / "libzenps_emu.so"
FOREIGN = ("ibverbs", "rdmacm", "libefa", "libpsm", "libnl", "libnuma", "libcuda", "libinfinipath")


def run(*command, env=None):
    done = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, env=env,
        timeout=DEADLINE, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if shutil.which("patchelf") is None:
        pytest.skip("patchelf is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    made = ["--fallback", folder / "libfabric.so.1"]
    if shutil.which("apt-get"):
        run(PACKAGE / "make-libfabric", folder)
    else:
        made = []
    if EMULATED.exists():  # in the place of the GPU's library
        made += ["--cuda", EMULATED]
    run(sys.executable, PACKAGE / "make-wheel", "--build", BUILD, "--output", folder, *made)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of an environment with the wheel, and what is to be its processes' environment."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    made = subprocess.run([sys.executable, "-m", "venv", str(folder)], stdout=subprocess.DEVNULL, check=False)
    if made.returncode != 0:
        pytest.skip("this Python makes no virtual environments (Debian: python3-venv)")
    run(folder / "bin" / "pip", "install", "--quiet", "--no-index", wheel)
    return folder, {"PATH": str(folder / "bin"), "HOME": "/nonexistent"}


def test_contents(wheel):
    assert wheel.name.startswith("zenps-") and wheel.name.endswith(f"_{os.uname().machine}.whl"), wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
    for name in ("libzenps.so.0", "bin/zenpsd", "bin/zenpsctl", "bin/zenpsrun"):
        assert f"zenps/_bundle/{name}" in names
    assert modes["zenps/_bundle/bin/zenpsd"] == 0o755 and modes["zenps/job.py"] == 0o644
    assert names[-1].endswith(".dist-info/RECORD")
    fabrics = [name for name in names if "libfabric" in name]
    assert fabrics in ([], ["zenps/_bundle/fallback/libfabric.so.1"]), fabrics
    found = [name for name in names if any(word in name for word in FOREIGN)]
    assert not found, found


def test_metadata(wheel, installed):
    """pyproject.toml's, and a version of this very commit."""
    folder, env = installed
    (info,) = folder.rglob("zenps-*.dist-info/METADATA")
    text, project = info.read_text(), (PACKAGE / "pyproject.toml").read_text()
    for name in re.findall(r'^  "(.* :: .*)",$', project, re.M):
        assert f"\nClassifier: {name}\n" in text, name
    assert "\nLicense-Expression: Apache-2.0\n" in text and "\nLicense-File: LICENSE\n" in text, text[:2000]
    assert '\nRequires-Dist: torch>=1.13; extra == "torch"\n' in text, text[:2000]
    assert '\nRequires-Dist: numpy; extra == "torch"\n' in text, text[:2000]
    assert "\n# worker/python" in text and "](INTEGRATIONS.md)" not in text
    (version,) = re.findall(r"^Version: (.*)$", text, re.M)
    assert wheel.name.startswith(f"zenps-{version}-"), (version, wheel.name)
    assert run(folder / "bin" / "python", "-c", "import zenps; print(zenps.__version__)", env=env).strip() == version
    (release,) = re.findall(r'^version = "(.*)"$', project, re.M)
    if (PACKAGE.parents[1] / ".git").exists():
        commit = run("git", "-c", "safe.directory=*", "-C", PACKAGE, "rev-parse", "--short=9", "HEAD").strip()
        assert version == release or re.match(rf"{re.escape(release)}\.dev\d+\+g{commit}(\.changed)?$", version), version
    else:
        assert version == release


def test_tag(wheel, installed):
    """The tag admits every host whose C library has the symbols, whatever the builder's is."""
    bundle = installed[0].rglob("zenps/_bundle")
    files = [path for folder in bundle for path in folder.rglob("*") if path.is_file()]
    wanted = re.findall(r"\bName: GLIBC_(\d+)\.(\d+)", run("readelf", "--version-info", *files))
    major, minor = max((int(major), int(minor)) for major, minor in wanted)
    assert f"-manylinux_{major}_{minor}_" in wheel.name, wheel.name


def test_needs(installed):
    """What the files ask the host for: the C library, and libfabric."""
    folder, _ = installed
    (bundle,) = folder.glob("lib/python*/site-packages/zenps/_bundle")
    ours = {path.name for path in bundle.rglob("*")}
    for path in bundle.rglob("*"):
        if path.is_file():
            asked = set(run("patchelf", "--print-needed", path).split()) - ours
            known = ("libc.", "libm.", "libgcc_s.", "ld-linux", "libfabric.so.1")
            assert all(name.startswith(known) for name in asked), (path, asked)


def test_programs_and_sums(installed):
    folder, env = installed
    assert shutil.which("cc", path=env["PATH"]) is None
    said = run(folder / "bin" / "zenpsrun", "-n", 2, "--servers", 2, "--", "python", "-m", "zenps.selftest", env=env)
    assert "are right, bit for bit" in said and "the system's" in said, said
    for program in ("zenpsd", "zenpsctl", "zenpsrun"):
        assert "Usage:" in run(folder / "bin" / program, "--help", env=env)
    said = run(folder / "bin" / "python", "-m", "zenps", "doctor", env=env)
    assert f"{folder}/lib" in said and "_bundle/libzenps.so.0" in said and "_bundle/bin/zenpsd" in said, said


def test_old_hosts():
    """make-old-wheel says how it is called before it looks at the host. Nothing is built here."""
    for arguments, status, words in (
        ([], 2, "make-old-wheel [--glibc 2.28] OUTPUT"),
        (["--help"], 2, "make-old-wheel [--glibc 2.28] OUTPUT"),
        (["--glibc", "eight", "/nonexistent"], 1, "--glibc: 'eight' is no version of glibc"),
    ):
        done = subprocess.run([str(PACKAGE / "make-old-wheel"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              universal_newlines=True, check=False)  # fmt: skip
        assert (done.returncode, words in done.stdout) == (status, True), done.stdout


@pytest.mark.skipif(not EMULATED.exists(), reason="this build has no emulated GPU")
def test_gpu(installed):
    """libzenps finds the library for GPUs within the package, without a word in the environment."""
    folder, env = installed
    ask = "import zenps; s = zenps.Sparsifier(1000, k=10, device=0); print(open('/proc/self/maps').read())"
    said = run(folder / "bin" / "python", "-c", ask, env=env)
    assert re.search(rf" {re.escape(str(folder))}/lib/.*/zenps/_bundle/lib/libzenps_cuda.so.0$", said, re.M), said


def test_fallback(installed, tmp_path):
    """Where the host has no libfabric, the package's own is used, by daemons, too, and said to be."""
    folder, env = installed
    (bundle,) = folder.glob("lib/python*/site-packages/zenps/_bundle")
    own = bundle / "fallback" / "libfabric.so.1"
    if not own.exists():
        pytest.skip("this host has no apt-get, by which make-libfabric gets a libfabric")
    ask = "import zenps; print(zenps.library().fabric_path)"
    host = pathlib.Path(run(folder / "bin" / "python", "-c", ask, env=env).strip())
    nothing = tmp_path / "nothing"
    nothing.write_bytes(b"")
    hide = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh"]
    hide += [str(nothing), str(host)]
    can = subprocess.run([*hide, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if can.returncode != 0:
        pytest.skip("this machine gives no mount namespace, in which the host's libfabric could be hidden")
    env = dict(env, PATH=f"{env['PATH']}:/usr/bin:/bin")
    said = run(*hide, folder / "bin" / "python", "-m", "zenps", "doctor", env=env)
    assert f"{own} (version 2." in said and "the package's own" in said, said
    said = run(*hide, folder / "bin" / "zenpsrun", "-n", 2, "--", folder / "bin" / "python", "-m", "zenps.selftest", env=env)
    assert "are right, bit for bit" in said and "the package's own" in said, said
    own.unlink()  # the last test
    missing = subprocess.run([*hide, str(folder / "bin" / "python"), "-m", "zenps", "doctor"], env=env,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)  # fmt: skip
    assert missing.returncode == 1 and "NOT FOUND" in missing.stdout and "libfabric" in missing.stdout, missing.stdout
